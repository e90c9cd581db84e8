"""Cells of the grid: which trainings are made for real and simulated, and how long a step of one took."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from fast.lab import Budget, Run, load_task
from fast.lab.recording import COMPUTE
from truth.tasks import TASKS, WIDTHS
from truth.weather import Weather

STRATEGIES = (
    "allreduce", "local_sgd(tau=4)", "dpsgd", "sgp", "ssp(bound=0)", "ssp", "torus", "gossip(p=0.5)",
)  # fmt: skip
STRAGGLERS = (None, "4x")
STEPS = {"64-64-10": {2: 1500, 4: 300, 8: 300}, "1.9 M": {2: 200, 4: 40, 8: 40}}
"""More where no pace makes them last: a run of half a second shows the machine's mood rather than the strategy."""
PACES_S = {
    "64-64-10": {2: None, 4: 0.002, 8: 0.004},
    "1.9 M": {2: None, 4: 0.040, 8: 0.100},
}
"""Where workers are more than cores: two to three times as long as the two cores take for all workers' computing, so
that workers share them nearly as if each had its own, and what is not computing still counts."""
WARM_UP = 0.2
"""Of a run's steps; they are not counted."""


@dataclass(frozen=True)
class Cell:
    """One training. `where` names the ground that it runs on."""

    model: str
    workers: int
    straggler: str | None
    strategy: str
    where: str = "this host"

    @property
    def group(self) -> str:
        slow = f", straggler {self.straggler}" if self.straggler else ""
        return f"{self.model}, {self.workers} workers{slow}, {self.where}"

    @property
    def ground(self) -> str:
        """What is calibrated together, shortly before it runs."""
        return f"{self.model}, {self.workers} workers"

    @property
    def pace_s(self) -> float | None:
        return PACES_S[self.model][self.workers]

    @property
    def steps(self) -> int:
        """Of each worker, if all are equally fast; a straggler makes them last longer."""
        return STEPS[self.model][self.workers] // (2 if self.straggler else 1)

    def budget(self) -> Budget:
        batch = load_task(TASKS[self.model]).batch_size
        samples = self.steps * self.workers * batch
        return Budget(samples, samples, self.workers * batch, ticks=1, whole_steps=True)


@dataclass(frozen=True)
class Time:
    """Of a step of one worker, in seconds: all of it, and what of it was not computing."""

    step_s: float
    outside_s: float

    @property
    def share(self) -> float:
        return self.outside_s / self.step_s


@dataclass(frozen=True)
class Seen:
    """A real run, and the weather around it."""

    time: Time
    weather: Weather


def time_of(run: Run) -> Time:
    """From the records of all workers, without the first steps."""
    parts = [_parts(report.excerpt) for report in run.workers]
    steps, total_ns, computing_ns = (sum(part[i] for part in parts) for i in range(3))
    return Time(total_ns / steps / 1e9, (total_ns - computing_ns) / steps / 1e9)


def _parts(excerpt: Any) -> tuple[int, int, int]:
    """Steps, their time, and that of computing, from the beginning of one step to that of the last."""
    starts = [place for place, piece in enumerate(excerpt.slices) if piece.kind == COMPUTE]
    skipped = round(len(starts) * WARM_UP)
    first, last = starts[skipped], starts[-1]
    counted = excerpt.slices[first:last]
    computing = sum(piece.duration_ns for piece in counted if piece.kind == COMPUTE)
    total = excerpt.slices[last].start_ns - excerpt.slices[first].start_ns
    return len(starts) - 1 - skipped, total, computing


def grid(quick: bool) -> list[Cell]:
    models = ("64-64-10",) if quick else tuple(WIDTHS)
    workers = (2, 4) if quick else (2, 4, 8)
    strategies = ("allreduce", "dpsgd", "ssp") if quick else STRATEGIES
    cells = itertools.product(models, workers, STRAGGLERS, strategies)
    return [Cell(*cell) for cell in cells]
