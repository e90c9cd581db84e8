"""The weather: how fast this machine is at the moment, beside what it was when it was calibrated.

Whoever shares the hardware with a virtual machine slows it down by half for minutes, and nothing that runs here tells
of it. Two things change, each in its own way: how long a gradient takes while all cores compute, and how much longer it
takes after a sleep, when others have used the core and its caches. Both are asked of every core at once, by
computing alone: no strategy, no letters. A calibrated model in other weather is the same model with these two
scaled; nothing is fitted to what is to be predicted.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

import torch

from fast.core import Task
from fast.lab import load_task
from fast.lab.surroundings import cores
from fast.sim import Cluster, Compute

LOOK_S = 0.3
"""How long a look at the weather computes without a pause; then as long with naps."""
NAPS_S = (0.002, 0.008)
TOLD = 0.1
"""What a nap costs is told from noise where it is at least this share of a gradient; where it isn't, it stays as it was
calibrated, and matters little."""
STEADY, TRIES = 0.25, 3
"""By so much may a gradient take longer after a run than before it; else it is made again, so many times at most."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Look:
    """One look: how long a gradient takes, and how much longer after naps."""

    computing_s: float
    cold_s: float

    def and_(self, other: Look) -> Look:
        """The weather between two looks."""
        return Look((self.computing_s + other.computing_s) / 2, (self.cold_s + other.cold_s) / 2)

    def change_to(self, other: Look) -> float:
        return abs(math.log(other.computing_s / self.computing_s))


@dataclass(frozen=True)
class Weather:
    """As multiples of what they were at the calibration: computing and all local work, and what a sleep adds."""

    computing: float = 1.0
    cold: float = 1.0

    @staticmethod
    def of(now: Look, then: Look) -> Weather:
        """
        >>> Weather.of(Look(0.003, 0.001), Look(0.002, 0.004))
        Weather(computing=1.5, cold=0.25)
        >>> Weather.of(Look(0.003, 0.0001), Look(0.002, 0.004))
        Weather(computing=1.5, cold=1.0)
        """
        told = all(look.cold_s > TOLD * look.computing_s for look in (now, then))
        return Weather(now.computing_s / then.computing_s, now.cold_s / then.cold_s if told else 1.0)

    def over(self, cluster: Cluster) -> Cluster:
        """The same machine in this weather."""
        usual, work = cluster.compute, cluster.work
        assert isinstance(usual, Compute), "a calibrated machine has one"
        return replace(
            cluster,
            compute=replace(usual, step_s=usual.step_s * self.computing),
            work=replace(
                work.slowed(self.computing),
                means=tuple((many, nbytes, took * self.computing) for many, nbytes, took in work.means),
                cold=tuple((slept, longer * self.cold) for slept, longer in work.cold),
            ),
        )


@final
class Barometer:
    """Processes that compute when they are asked, one for each core."""

    def __init__(self, pools: list[ProcessPoolExecutor]) -> None:
        self._pools = pools
        self._task = ""
        self._last = self._calibrated = Look(math.inf, math.inf)

    def while_(self, calibrate: Callable[[], None], task: str) -> None:
        """What the weather is compared with from now on is that around this calibration. The very first look is only
        there to load what it needs."""
        if task != self._task:
            self._task = task
            self._look()
        before = self._look()
        calibrate()
        self._last = self._look()
        self._calibrated = before.and_(self._last)

    def around(self, run: Callable[[], Result]) -> tuple[Result, Weather]:
        """Of some tries the first one around which the machine stayed the same, else the one with the least change."""
        tries: list[tuple[float, Result, Look]] = []
        while not tries or (min(each[0] for each in tries) > STEADY and len(tries) < TRIES):
            before, result = self._last, run()
            self._last = self._look()
            tries.append((before.change_to(self._last), result, before.and_(self._last)))
        _, result, look = min(tries, key=lambda each: each[0])
        return result, Weather.of(look, self._calibrated)

    def _look(self) -> Look:
        asked = [pool.submit(_seen, self._task) for pool in self._pools]
        seen = [each.result() for each in asked]
        return Look(*(statistics.fmean(values) for values in zip(*seen, strict=True)))


@contextmanager
def barometer() -> Iterator[Barometer]:
    spawn = multiprocessing.get_context("spawn")
    pools = [ProcessPoolExecutor(1, spawn, torch.set_num_threads, (1,)) for _ in range(cores())]
    try:
        yield Barometer(pools)
    finally:
        for pool in pools:
            pool.shutdown()


def _seen(task: str) -> tuple[float, float]:
    """What one core sees, while the others look too."""
    warm_s = _gradient_s(task, 0.0)
    return warm_s, statistics.fmean(_gradient_s(task, nap_s) for nap_s in NAPS_S) - warm_s


def _gradient_s(name: str, nap_s: float) -> float:
    """Of a gradient, with such a nap before each."""
    task, model, batch = _ready(name)
    times, until = list[float](), time.perf_counter() + LOOK_S / (len(NAPS_S) if nap_s else 1)
    while not times or time.perf_counter() < until:
        if nap_s:
            time.sleep(nap_s)
        began = time.perf_counter()
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - began)
    return statistics.fmean(times)


@functools.cache
def _ready(name: str) -> tuple[Task, Any, Any]:
    task = load_task(name)
    return task, task.model(), task.batch(range(task.batch_size))
