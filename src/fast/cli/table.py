"""A comparison as a table on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from fast.lab import Comparison
from fast.lab.results import summary_of

_WIDTH = 100
"""Of a table that goes into a file or a pipe."""
_HEADS = (
    "time to\ntarget",
    "final\nscore",
    "sent per\nworker",
    "staleness\nmean/max",
    "distance",
    "computing",
)
Entry = Mapping[str, Any]


def print_table(comparison: Comparison, title: str, about: Sequence[str] = (), *, to_stderr: bool) -> None:
    """Title, what there is to say about it, and table; then the verdict, then what failed."""
    file = sys.stderr if to_stderr else sys.stdout
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDTH)
    console.print(Text(title, style="bold"), soft_wrap=True)
    for line in about:
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    console.print(table_of(comparison))
    verdict = comparison.to_json()["verdict"]
    console.print(Text(verdict), soft_wrap=True)
    for line in failures(comparison, verdict):
        console.print(Text(line, style="red"), soft_wrap=True)


def failures(comparison: Comparison, verdict: str) -> list[str]:
    """Who failed and why, each error of a strategy once: seeds may share it, and the verdict may have said it."""
    failed = dict.fromkeys(
        (result.label, result.error) for result in comparison.results if result.error is not None
    )
    return [
        f"{label} failed: {error}"
        for label, error in failed
        if not verdict.endswith(f", of {label}: {error}")
    ]


def table_of(comparison: Comparison) -> Table:
    """One row per strategy, over its seeds, in at most 100 columns."""
    entries = summary_of(comparison.results)
    tuned, several = bool(comparison.tuning), any(entry["seeds"] > 1 for entry in entries)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("strategy", overflow="fold")
    heads = [*_HEADS]
    if several:
        heads.insert(1, "reached")
    if tuned:
        heads.insert(0, "rate")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for entry in entries:
        table.add_row(entry["label"], *_cells(entry, tuned=tuned, several=several))
    return table


def _cells(entry: Entry, *, tuned: bool, several: bool) -> list[str]:
    rate = [f"x {entry['rate']:.3g}"] if tuned else []
    if entry["failed"] == entry["seeds"]:
        return [*rate, "failed", *["-"] * (len(_HEADS) - 1 + several)]
    return [
        *rate,
        _time(entry),
        *([f"{entry['reached']} of {entry['seeds']}"] if several else []),
        "diverged" if entry["final_score"] is None else _number(entry, "final_score", ".3f"),
        decimal(round(_mean(entry, "bytes_sent_per_worker") or 0)),
        _staleness(entry),
        _number(entry, "consensus_distance", ".4f"),
        _number(entry, "compute_fraction", ".0%"),
    ]


def _time(entry: Entry) -> str:
    """The mean over the seeds that reached the target, and their standard deviation."""
    spread = entry["time_to_target_s"]
    if spread is None:
        return "not reached"
    mean = spread["mean"]
    digits = 2 if mean < 100 else 0
    return f"{mean:.{digits}f} s" if spread["n"] == 1 else f"{mean:.{digits}f} ±{spread['std']:.{digits}f} s"


def _staleness(entry: Entry) -> str:
    worst = entry["max_staleness"]
    return "-" if worst is None else f"{_number(entry, 'mean_staleness', '.2f')}/{worst['max']:.0f}"


def _mean(entry: Entry, name: str) -> float | None:
    return None if entry[name] is None else entry[name]["mean"]


def _number(entry: Entry, name: str, style: str) -> str:
    mean = _mean(entry, name)
    return "-" if mean is None else format(mean, style)
