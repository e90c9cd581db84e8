"""How long a usual worker's step takes, and how far the slowest one is behind: always (a slower machine), or at times
(a busy one)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist, mean, median_low

from fast.sim.cluster import Compute


@dataclass(frozen=True)
class Straggling:
    """Slowest against median step of the workers, 1 where all are alike."""

    always: float = 1.0
    """By the machines: the same worker is the slowest all the time."""
    at_times: float = 1.0
    """By chance: how much longer a round of all workers takes in the mean than a usual step."""

    @property
    def worst(self) -> float:
        return max(self.always, self.at_times)


def straggling_of(compute: Compute, workers: int) -> Straggling:
    """Of so many workers with this model of computing."""
    steps_s = _steps_s(compute, workers)
    usual_s = median_low(steps_s)
    always = max(steps_s) / usual_s if usual_s else 1.0
    return Straggling(always, _spread(compute, workers) * _sporadic(compute, workers))


def usual_step_s(compute: Compute, workers: int) -> float:
    """Of the worker in the middle (of two the faster one), in the mean, but for the times when it is slowed down."""
    return median_low(_steps_s(compute, workers))


def _steps_s(compute: Compute, workers: int) -> list[float]:
    """Of each worker in the mean, but for the times when it is slowed down."""
    straggler = compute.straggler
    slowed = straggler.factor if straggler is not None and straggler.share is None else 1.0
    factors = [*[1.0] * (workers - 1), slowed]
    return [_step_s(compute, worker, factor) for worker, factor in enumerate(factors)]


def _step_s(compute: Compute, worker: int, factor: float) -> float:
    """A worker that keeps a pace rests until it is over, however fast it computes."""
    if compute.trace:
        step_s = mean(compute.trace[worker % len(compute.trace)])
    else:
        step_s = compute.workers_s.get(worker, compute.step_s)
    step_s *= math.exp(compute.spread**2 / 2) / compute.speed(worker)
    return step_s * factor if compute.pace_s is None else max(step_s, compute.pace_s * factor)


def _spread(compute: Compute, workers: int) -> float:
    """The usual largest of so many draws of the log-normal, in medians."""
    if not compute.spread:
        return 1.0
    return math.exp(compute.spread * NormalDist().inv_cdf(workers / (workers + 1)))


def _sporadic(compute: Compute, workers: int) -> float:
    straggler = compute.straggler
    if straggler is None or straggler.share is None:
        return 1.0
    somebody = 1 - (1 - straggler.share) ** workers
    return max(1.0, 1 + (straggler.factor - 1) * somebody)
