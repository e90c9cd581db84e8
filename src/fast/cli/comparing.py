"""What `fast compare` and `fast simulate` share: one display, one table, one way to write it down."""

from __future__ import annotations

import ast
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fast.cli.display import write_json
from fast.errors import FastError, UsageError
from fast.lab import Comparison, Plan, Real, Result, Simulated, run_plan
from fast.lab.real import TrainingFailed
from fast.strategies import catalogue

DEFAULT_STRATEGIES = "allreduce,local_sgd,ssp,dpsgd,torus,gossip"
_QUIET_S = 10.0
"""Without a terminal, a line about the progress at most this often."""
_WIDTH = 100
"""Of a table that goes into a file or a pipe."""


def run_and_report(plan: Plan, world: Real | Simulated, title: str, json: str | None) -> int:
    """Run a comparison, show it, write it down if asked, and return the exit code."""
    with CompareDisplay(len(plan.strategies) * len(plan.seeds)) as display:
        comparison = run_plan(plan, world, display)
    report(comparison, title, to_stderr=json == "-")
    if json is not None:
        write_json(json, comparison.to_json())
    return 1 if comparison.failed else 0


def check_json(to: str | None) -> None:
    """Find out before the run whether its result can be written."""
    if to is None or to == "-":
        return
    path = Path(to)
    if path.is_dir():
        raise UsageError(f"--json {to}: that is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"--json {to}: there is no folder {path.parent}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--json {to}: can't write there: permission denied")


class CompareDisplay:
    """A listener of a comparison: one live line on a terminal, plain lines elsewhere, all on
    standard error. Use it in a `with` statement."""

    def __init__(self, runs: int) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._runs, self._run = runs, 0
        self._name, self._steps = "", 0
        self._began = self._spoke = time.monotonic()
        self._progress: Progress | None = None
        self._bar: TaskID | None = None

    def __enter__(self) -> CompareDisplay:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[steps]}"))
            self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    # What a comparison tells

    def begins(self, strategy: str, seed: int, steps: int) -> None:
        self._run += 1
        self._name, self._steps = short_call(strategy), steps
        self._began = self._spoke = time.monotonic()
        if self._progress is not None:
            title = f"{self._run} of {self._runs}: {self._name}"
            self._bar = self._progress.add_task(title, total=steps, steps="starting")

    def event(self, message: dict[str, Any]) -> None:
        match message:
            case {"event": "progress", "steps": steps}:
                self._tell_progress(sum(steps) / len(steps), message.get("virtual_s"))
            case {"event": "line", "who": who, "text": text}:
                self._print(f"[{who}] {text}")
            case {"event": "say", "text": text}:
                self._print(f"fast: {text}")
            case {"event": "failed", "error": Exception() as error}:
                self._print(_details(error))

    def ends(self, result: Result) -> None:
        if self._progress is not None and self._bar is not None:
            self._progress.remove_task(self._bar)
        outcome = "failed" if result.error is not None else f"score {_number(result.final_score, '.3f')}"
        elapsed = time.monotonic() - self._began
        self._print(f"fast: {self._run} of {self._runs}: {self._name}: {outcome}, {elapsed:.1f} s")

    def _tell_progress(self, steps: float, virtual_s: float | None) -> None:
        words = f"{steps:.0f} of {self._steps} steps"
        if virtual_s is not None:
            words += f", {virtual_s:.1f} s simulated"
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=steps, steps=words)
        elif time.monotonic() - self._spoke > _QUIET_S:
            self._spoke = time.monotonic()
            self._print(f"fast: {self._run} of {self._runs}: {self._name}: {words}")

    def _print(self, text: str) -> None:
        if text:
            self._console.print(Text(text, style="dim" if text.startswith("fast:") else ""))


def _details(error: Exception) -> str:
    """The traceback of what went wrong in somebody's code; our own errors say enough."""
    if isinstance(error, TrainingFailed):
        return error.details.rstrip()
    return "" if isinstance(error, FastError) else "".join(traceback.format_exception(error)).rstrip()


# The table


def report(comparison: Comparison, title: str, *, to_stderr: bool) -> None:
    """The table, then one line for each strategy that failed."""
    file = sys.stderr if to_stderr else sys.stdout
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDTH)
    console.print(table_of(comparison, title))
    for result in comparison.results:
        if result.error is not None:
            console.print(
                Text(f"{short_call(result.strategy)} failed: {result.error}", style="red"), soft_wrap=True
            )


def table_of(comparison: Comparison, title: str) -> Table:
    """One row per run, in at most 100 columns."""
    seeds = len({result.seed for result in comparison.results}) > 1
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("strategy", overflow="fold")
    heads = [
        "time to\ntarget",
        "final\nscore",
        "steps",
        "sent per\nworker",
        "staleness\nmean",
        "staleness\nmax",
    ]
    for head in [*(["seed"] * seeds), *heads, "distance", "waiting"]:
        table.add_column(head, justify="right", no_wrap=True)
    for result in comparison.results:
        cells = [str(result.seed)] * seeds + _cells(result)
        table.add_row(short_call(result.strategy), *cells)
    return table


def _cells(result: Result) -> list[str]:
    if result.error is not None:
        return ["failed", *["-"] * 7]
    return [
        _time(result.time_to_target_s),
        _number(result.final_score, ".3f"),
        _number(result.steps, ".0f"),
        decimal(round(result.bytes_sent_per_worker or 0)),
        _number(result.mean_staleness, ".2f"),
        _number(result.max_staleness, "d"),
        _number(result.consensus_distance, ".4f"),
        _number(result.wait_fraction, ".0%"),
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not reached"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


def _number(value: float | None, style: str) -> str:
    """A number that isn't finite is written as what it is."""
    return "-" if value is None else format(value, style)


def short_call(call: str) -> str:
    """A preset's call without the arguments that have their default value."""
    name = call.partition("(")[0]
    preset = catalogue().get(name)
    if preset is None:
        return call
    defaults = _arguments(preset().call)
    differing = [f"{key}={value}" for key, value in _arguments(call).items() if defaults.get(key) != value]
    return f"{name}({', '.join(differing)})" if differing else name


def _arguments(call: str) -> dict[str | None, str]:
    tree = ast.parse(call, mode="eval").body
    return {each.arg: ast.unparse(each.value) for each in tree.keywords} if isinstance(tree, ast.Call) else {}
