"""How far the slowest worker is behind: always (a slower machine), or at times (a busy one)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist, mean, median

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
    return Straggling(_always(compute, workers), _spread(compute, workers) * _sporadic(compute, workers))


def _always(compute: Compute, workers: int) -> float:
    usual = [_usual_s(compute, worker) for worker in range(workers)]
    straggler = compute.straggler
    if straggler is not None and straggler.share is None:
        usual[-1] *= straggler.factor
    middle = median(usual)
    return max(1.0, max(usual) / middle) if middle else 1.0


def _usual_s(compute: Compute, worker: int) -> float:
    if compute.trace:
        step_s = mean(compute.trace[worker % len(compute.trace)])
    else:
        step_s = compute.workers_s.get(worker, compute.step_s)
    return step_s / compute.speed(worker)


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
