"""The rows of a comparison and what they have in common, as they are written down."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from fast.lab.verdict import verdict

WorldName = Literal["real", "sim"]
Curve = dict[str, list[int | float | None]]
"""Columns, one entry per tick."""
_SUMMARISED = (
    "time_to_target_s", "samples_to_target", "epochs_to_target", "bytes_to_target", "final_score", "samples_per_s",
    "scaling_efficiency", "bytes_sent_per_worker", "mean_staleness", "max_staleness", "consensus_distance",
    "wait_fraction", "compute_fraction", "steps",
)  # fmt: skip


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Time is real or virtual, counted from the common start to the first tick at which
    the consolidated model reaches the target.

    `steps` is the mean over workers, `samples` the sum. `bytes_sent_per_worker` doesn't contain
    what servers sent, `bytes_sent` does. Staleness is measured where updates are included: at the
    server, if there is one. `consensus_distance` is sqrt(mean_i |w_i - m|^2) / |m| of the replicas'
    final weights before they are consolidated. `wait_fraction` is the share of its time that a
    worker waited for others, `compute_fraction` the share that it computed. `scaling_efficiency` is
    the throughput over that of as many workers alone.
    """

    strategy: str
    """The call that was run; `asked` is the one that was asked for, before its knobs were tuned."""
    seed: int
    asked: str = ""
    label: str = ""
    rate: float = 1.0
    """A factor on the task's own learning rate."""
    reached_target: bool = False
    time_to_target_s: float | None = None
    samples_to_target: int | None = None
    epochs_to_target: float | None = None
    bytes_to_target: int | None = None
    final_score: float | None = None
    replica_scores: list[float | None] = []
    policies: dict[str, float | None] = {}
    """The final score by the policy that makes one model of the replicas: see `lab.policies`."""
    steps: float | None = None
    samples: int | None = None
    bytes_sent_per_worker: float | None = None
    bytes_sent: int | None = None
    samples_per_s: float | None = None
    scaling_efficiency: float | None = None
    duration_s: float | None = None
    mean_staleness: float | None = None
    max_staleness: int | None = None
    staleness: dict[str, int] = {}
    consensus_distance: float | None = None
    wait_fraction: float | None = None
    compute_fraction: float | None = None
    diverged: bool = False
    """Whether weights stopped being numbers, in a copy or at the end."""
    pace_exceeded: float | None = None
    curve: Curve = {}
    participants: list[dict[str, Any]] = []
    graph: dict[str, Any] | None = None
    timeline: dict[str, Any] | None = None
    error: str | None = None
    """Why this strategy has no figures; None for one that was trained."""

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = finite(msgspec.to_builtins(self))
        if self.error is None:
            del row["error"]
        return row


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and what they have in common."""

    task: str
    workers: int
    world: WorldName
    target: float
    results: Sequence[Result]
    tuning: Sequence[Mapping[str, Any]] = ()
    about: Mapping[str, Any] = {}
    """Settings, facts, machine, versions and the like: see docs/reference of run.json."""

    @property
    def failed(self) -> bool:
        return any(result.error is not None for result in self.results)

    @property
    def reached(self) -> bool:
        return any(result.reached_target for result in self.results)

    def to_json(self) -> dict[str, Any]:
        data = {
            "schema": 1,
            "task": self.task,
            "workers": self.workers,
            "world": self.world,
            "target": self.target,
            **self.about,
            "tuning": finite(list(self.tuning)),
            "results": [result.to_json() for result in self.results],
            "summary": finite(summary_of(self.results)),
        }
        return {**data, "verdict": verdict(data)}


def summary_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One entry per strategy that was asked for, over its seeds."""
    by_asked: dict[str, list[Result]] = {}
    for result in results:
        by_asked.setdefault(result.asked, []).append(result)
    return [_summary(rows) for rows in by_asked.values()]


def _summary(rows: Sequence[Result]) -> dict[str, Any]:
    first, trained = rows[0], [row for row in rows if row.error is None]
    entry: dict[str, Any] = {
        "asked": first.asked,
        "label": first.label,
        "strategy": first.strategy,
        "rate": first.rate,
        "seeds": len(rows),
        "reached": sum(row.reached_target for row in rows),
        "failed": len(rows) - len(trained),
        "diverged": sum(row.diverged for row in rows),
    }
    for name in _SUMMARISED:
        entry[name] = spread([getattr(row, name) for row in trained])
    entry["peak_memory_bytes"] = spread([_peak(row) for row in trained])
    policies = dict.fromkeys(name for row in trained for name in row.policies)
    entry["policies"] = {name: spread([row.policies.get(name) for row in trained]) for name in policies}
    return entry


def _peak(row: Result) -> float | None:
    """Of the worker that needed most."""
    known = [each["peak_memory_bytes"] for each in row.participants if each["peak_memory_bytes"] is not None]
    return max(known, default=None)


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean, standard deviation (of a sample), smallest and largest of those that are known."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    return {
        "mean": statistics.fmean(known),
        "std": statistics.stdev(known) if len(known) > 1 else 0.0,
        "min": min(known),
        "max": max(known),
        "n": len(known),
    }


def finite(value: Any) -> Any:
    """The same plain values, with null for numbers that aren't finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
