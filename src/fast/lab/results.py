"""The rows of a comparison, and what a run was worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from fast.core import Task
from fast.lab.measures import Run, State, one_thread

WorldName = Literal["real", "sim"]


@dataclass(frozen=True)
class Result:
    """One row. Time is real or virtual, counted from the common start to the first tick at which
    the mean of the workers' copies reaches the target.

    `steps` is the mean over workers, `samples` the sum. `bytes_sent_per_worker` doesn't contain
    what servers sent. Staleness is measured where updates are included: at the server, if there
    is one. `consensus_distance` is sqrt(mean_i |w_i - m|^2) / |m| of the replicas' final weights
    before they are consolidated. `wait_fraction` is the share of its time that a worker waited.
    """

    strategy: str
    seed: int
    reached_target: bool = False
    time_to_target_s: float | None = None
    final_score: float | None = None
    steps: float | None = None
    samples: int | None = None
    bytes_sent_per_worker: float | None = None
    mean_staleness: float | None = None
    max_staleness: int | None = None
    consensus_distance: float | None = None
    wait_fraction: float | None = None
    error: str | None = None
    """Why this strategy has no figures; None for one that was trained."""

    def to_json(self) -> dict[str, Any]:
        row = {field.name: _finite(getattr(self, field.name)) for field in fields(self)}
        if self.error is None:
            del row["error"]
        return row


@dataclass(frozen=True)
class Comparison:
    """All rows, and what they have in common."""

    task: str
    workers: int
    world: WorldName
    target: float
    results: Sequence[Result]

    @property
    def failed(self) -> bool:
        return any(result.error is not None for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "task": self.task,
            "workers": self.workers,
            "world": self.world,
            "target": self.target,
            "results": [result.to_json() for result in self.results],
        }


def judge(task: Task, target: float, strategy: str, seed: int, run: Run) -> Result:
    """What a run was worth."""
    score = _Judge(task)
    reached = next((tick for tick in run.ticks if score(tick.state) >= target), None)
    workers, stale = len(run.workers), run.staleness
    return Result(
        strategy=strategy,
        seed=seed,
        reached_target=reached is not None,
        time_to_target_s=None if reached is None else reached.at_s,
        final_score=score(run.final),
        steps=sum(report.steps for report in run.workers) / workers,
        samples=sum(report.samples for report in run.workers),
        bytes_sent_per_worker=sum(report.bytes_sent for report in run.workers) / workers,
        mean_staleness=stale.mean_staleness,
        max_staleness=stale.max_staleness,
        consensus_distance=run.consensus_distance,
        wait_fraction=sum(report.waiting_share for report in run.workers) / workers,
    )


class _Judge:
    """Scores a model's values on the test data."""

    def __init__(self, task: Task) -> None:
        self._task, self._test = task, task.test()
        self._model = task.model().eval()

    def __call__(self, state: State) -> float:
        self._model.load_state_dict(state)
        with torch.no_grad(), one_thread():
            return float(self._task.score(self._model, self._test))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
