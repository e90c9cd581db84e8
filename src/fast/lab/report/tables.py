"""The numbers of a report as CSV: one file per kind of row, empty cells where there is no number."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from fast.lab.report.consistency import mixing_of
from fast.lab.report.look import KINDS
from fast.lab.report.reading import Entry, Reading, Row

STATISTICS = ("mean", "std", "min", "max", "n")
SUMMARISED = (
    "time_to_target_s", "samples_to_target", "epochs_to_target", "bytes_to_target", "final_score",
    "samples_per_s", "scaling_efficiency", "bytes_sent_per_worker", "mean_staleness", "consensus_distance",
    "wait_fraction", "steps", "peak_memory_bytes",
)  # fmt: skip
MEASURED = (
    "reached_target", "time_to_target_s", "samples_to_target", "epochs_to_target", "bytes_to_target",
    "final_score", "steps", "samples", "bytes_sent_per_worker", "bytes_sent", "samples_per_s",
    "scaling_efficiency", "duration_s", "mean_staleness", "max_staleness", "consensus_distance",
    "wait_fraction", "diverged", "pace_exceeded", "error",
)  # fmt: skip
CURVE = ("at_s", "epochs", "samples", "bytes", "score", "distance", "replica_worst", "replica_best")
PARTICIPANT = ("steps", "samples", *(f"{kind}_s" for kind in KINDS), "peak_memory_bytes")
TRIAL = ("rate", "score", "time_to_target_s", "samples_to_target", "diverged", "error", "chosen")
WHO = ("label", "strategy", "seed")
MIXING = ("label", "strategy", "topology", "lambda_2", "spectral_gap", "not_predicted_because")

Cells = Sequence[Any]


def tables(reading: Reading) -> dict[str, str]:
    """Every file by its name."""
    return {
        "summary.csv": _csv(_summary_head(), _summary(reading)),
        "results.csv": _csv(("label", "asked", "strategy", "rate", "seed", *MEASURED), _results(reading)),
        "curves.csv": _csv((*WHO, "tick", *CURVE), _curves(reading)),
        "staleness.csv": _csv((*WHO, "staleness", "updates"), _staleness(reading)),
        "tuning.csv": _csv(("label", "asked", "strategy", *TRIAL), _tuning(reading)),
        "time.csv": _csv((*WHO, "participant", *PARTICIPANT), _time(reading)),
        "mixing.csv": _csv(MIXING, _mixing(reading)),
    }


def _csv(head: Cells, rows: Iterable[Cells]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _summary_head() -> Cells:
    statistics = [f"{name}_{statistic}" for name in SUMMARISED for statistic in STATISTICS]
    return ("label", "asked", "strategy", "rate", "seeds", "reached", "failed", "diverged", *statistics)


def _summary(reading: Reading) -> Iterator[Cells]:
    for entry in reading.ordered:
        who = (entry.label, entry.asked, entry.call, entry.rate)
        outcome = (entry.seeds, entry.reached, len(entry.failures), entry.diverged)
        statistics = [(entry.stat(name) or {}).get(each) for name in SUMMARISED for each in STATISTICS]
        yield (*who, *outcome, *statistics)


def _rows(reading: Reading) -> Iterator[tuple[Entry, Row]]:
    for entry in reading.entries:
        for row in sorted([*entry.runs, *entry.failures], key=lambda row: row["seed"]):
            yield entry, row


def _who(entry: Entry, row: Row) -> tuple[Any, ...]:
    return (entry.label, entry.call, row["seed"])


def _results(reading: Reading) -> Iterator[Cells]:
    for entry, row in _rows(reading):
        who = (entry.label, entry.asked, entry.call, entry.rate, row["seed"])
        yield (*who, *(row.get(name) for name in MEASURED))


def _curves(reading: Reading) -> Iterator[Cells]:
    for entry, row in _rows(reading):
        curve: Mapping[str, Any] = row.get("curve") or {}
        for tick in range(len(curve.get("at_s") or [])):
            yield (*_who(entry, row), tick, *(_at(curve.get(name), tick) for name in CURVE))


def _at(values: Sequence[Any] | None, tick: int) -> Any:
    return values[tick] if values is not None and tick < len(values) else None


def _staleness(reading: Reading) -> Iterator[Cells]:
    for entry, row in _rows(reading):
        counts: Mapping[str, int] = row.get("staleness") or {}
        for staleness in sorted(counts, key=int):
            yield (*_who(entry, row), int(staleness), counts[staleness])


def _tuning(reading: Reading) -> Iterator[Cells]:
    for strategy in reading.data.get("tuning") or []:
        for trial in strategy.get("trials") or []:
            yield (
                strategy.get("label"),
                strategy["asked"],
                trial.get("strategy"),
                *(trial.get(name) for name in TRIAL),
            )


def _time(reading: Reading) -> Iterator[Cells]:
    for entry, row in _rows(reading):
        for participant in row.get("participants") or []:
            yield (*_who(entry, row), participant["name"], *(participant.get(name) for name in PARTICIPANT))


def _mixing(reading: Reading) -> Iterator[Cells]:
    for each in mixing_of(reading):
        promise = each.promise
        found = (promise.graph, promise.spectrum.factor, promise.spectrum.gap, promise.left_out)
        yield (each.entry.label, each.entry.call, *found)
