"""Watching a simulated run: copies of the weights at every tick, and when the budget is used up.

Workers may come late, leave early or die. A tick belongs to those who are in: it is complete when each
of them has passed it, and who is gone for good or comes later has no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from fast.core import Me
from fast.lab.agreeing import AHEAD
from fast.lab.budget import Budget
from fast.lab.crew import Replica, Slice, copied_state
from fast.lab.measures import (
    Report,
    State,
    Tick,
    distance_of,
    flat_state,
    mean_state,
    parameter_names,
    replica_ticks,
    replicas_kept,
)
from fast.lab.notebook import Notebook
from fast.runtime.gathering import representative
from fast.sim import Simulation
from fast.trace import Meter

OnTick = Callable[[int, int], None]
"""Called as ticks pass, with the steps of the worker that came there first and the virtual time."""
Enough = Callable[[Tick], bool]
"""Asked at every tick that is complete, whether all has been seen that was to be seen."""


class SeenEnough(Exception):
    """Ends a simulated run at a tick: nothing of what would come after it is needed."""


def in_step(batches: Iterator[Slice], steps: Callable[[], int], last: Callable[[], float]) -> Iterator[Slice]:
    """In lock-step every step has its own batches, up to the last step. A worker that was away goes on
    with those of the step to which the others have come."""
    for number, batch in enumerate(batches):
        if number >= last():
            return
        if number >= steps():
            yield batch


def last_step(budget: Budget, agreed: Sequence[int]) -> Callable[[], float]:
    """Of workers in lock-step: by the samples, or with the clock by what has been agreed on."""
    if budget.seconds is None:
        return lambda: budget.steps
    return lambda: agreed[-1] if len(agreed) == budget.ticks else math.inf


@dataclass(frozen=True)
class Watcher:
    """What observes one participant, and its report as it grows."""

    report: Report
    notebook: Notebook

    @property
    def meter(self) -> Meter:
        """As of now."""
        self.notebook.work_out()
        return self.notebook.meter

    def bytes_at(self, number: int) -> int:
        """At the tick that was the `number`-th in which it took part."""
        self.notebook.work_out()
        return self.notebook.tick_bytes[number]

    def begin_late(self, now_ns: int) -> None:
        """Its time begins with its own first step, which has just ended."""
        meter = self.meter
        own_ns = meter.computed_ns + meter.sent_ns + meter.waited_ns + meter.merged_ns
        self.report.started_ns = now_ns - own_ns

    def finished(self) -> Report:
        self.report.take(self.notebook)
        self.report.steps, self.report.samples = self.meter.steps, self.meter.samples
        return self.report


@dataclass(frozen=True)
class Copy:
    """A worker's weights at a tick, when it made the copy, and the how-manieth copy of its own that is."""

    state: State
    at_ns: int
    number: int


@final
class Watch:
    """Copies weights at every tick and says when the budget is used up.

    A tick's mean is made as soon as its last copy is there, so that the copies of a thousand
    workers don't pile up.
    """

    def __init__(
        self,
        simulation: Simulation,
        replicas: Sequence[Replica],
        watchers: Sequence[Watcher],
        budget: Budget,
        agreed: list[int],
        on_tick: OnTick,
        enough: Enough,
    ) -> None:
        self.ticks: list[Tick] = []
        self._simulation, self._replicas, self._watchers = simulation, replicas, watchers
        self._budget, self._on_tick, self._agreed = budget, on_tick, agreed
        self._enough = enough
        self._lock_step = simulation.strategy.synchronous
        self._agreeing = self._lock_step and budget.seconds is not None
        self._copies: dict[int, dict[int, Copy]] = {}
        self._passed = [0] * len(replicas)
        self._awaited = 0
        """All workers below this one have passed the tick that is to be completed next, or are gone."""
        self._kept = replica_ticks(budget.ticks)
        self._parameters = parameter_names(replicas[0].model)

    def step(self, me: Me, now_ns: int) -> None:
        """After a worker's step."""
        watcher = self._watchers[me.id]
        if me.fresh and not watcher.report.ended_ns:
            watcher.begin_late(now_ns)
        watcher.report.ended_ns = now_ns
        passed = self._ticks_passed(me, now_ns)
        for tick in range(max(self._passed[me.id], len(self.ticks)), passed):
            self._take(tick, me, now_ns)
        self._passed[me.id] = passed
        while self._copies and self._is_complete(len(self.ticks)):
            self._complete(len(self.ticks))

    def finish(self) -> None:
        """The run is over: nobody is awaited any more."""
        for tick in sorted(self._copies):
            self._complete(tick)

    def is_over(self, simulation: Simulation) -> bool:
        """For workers that don't go in lock-step; those have a last step."""
        return not self._lock_step and self._budget.is_over(simulation.total_samples, simulation.now_ns)

    def _ticks_passed(self, me: Me, now_ns: int) -> int:
        """As on real workers: in lock-step a tick is a step, and with the clock the first worker that is
        in names it."""
        due = self._budget.ticks_after(self._seen(me), now_ns)
        if not self._agreeing:
            return due
        workers = self._simulation.workers
        if due > len(self._agreed) and me.id == next(worker.me.id for worker in workers if worker.alive):
            farthest = max(worker.me.steps for worker in workers)
            self._agreed += [farthest + AHEAD] * (due - len(self._agreed))
        return sum(step <= me.steps for step in self._agreed)

    def _seen(self, me: Me) -> int:
        return self._budget.samples_after(me.steps) if self._lock_step else self._simulation.total_samples

    def _take(self, tick: int, me: Me, now_ns: int) -> None:
        copies, watcher = self._copies.setdefault(tick, {}), self._watchers[me.id]
        if not copies:
            self._on_tick(me.steps, now_ns)
        self._replicas[me.id].settle()
        copies[me.id] = Copy(copied_state(self._replicas[me.id]), now_ns, len(watcher.report.tick_ns))
        watcher.report.tick_ns.append(now_ns)
        watcher.report.tick_samples.append(watcher.meter.samples)
        watcher.notebook.tick()

    def _is_complete(self, tick: int) -> bool:
        """Whether all who are in have copied. The awaited one is looked at until it has; only then the
        next, so that a thousand workers are gone through once per tick."""
        copies, workers = self._copies.get(tick, {}), self._simulation.workers
        if not copies:
            return False
        while self._awaited < len(workers):
            if self._awaited not in copies and workers[self._awaited].alive:
                return False
            self._awaited += 1
        return True

    def _complete(self, tick: int) -> None:
        copies, self._awaited = self._copies.pop(tick), 0
        replicas = [copies[worker].state for worker in sorted(copies)]
        state = mean_state(replicas)
        if not self._lock_step:  # in lock-step the workers' copies are the server's weights
            take_over_servers(state, self._simulation, self._replicas[0])
        samples, nbytes = self._seen_and_sent(copies)
        self.ticks.append(
            Tick(
                at_s=max(copy.at_ns for copy in copies.values()) / 1e9,
                state=state,
                samples=samples,
                nbytes=nbytes,
                distance=distance_of([flat_state(replica, self._parameters) for replica in replicas]),
                replicas=replicas_kept(replicas) if tick in self._kept else (),
            )
        )
        if self._enough(self.ticks[-1]):
            raise SeenEnough

    def _seen_and_sent(self, copies: dict[int, Copy]) -> tuple[int, int]:
        """Of everybody by this tick; who has no part in it counts with all that it has done."""
        samples = nbytes = 0
        for number, watcher in enumerate(self._watchers):
            copy = copies.get(number)
            samples += watcher.meter.samples if copy is None else watcher.report.tick_samples[copy.number]
            nbytes += watcher.meter.bytes_sent if copy is None else watcher.bytes_at(copy.number)
        return samples, nbytes


def take_over_servers(state: State, simulation: Simulation, replica: Replica) -> None:
    """Where servers own the weights, the model has their values."""
    if simulation.servers:
        weights = representative(simulation.strategy, [server.me.weights for server in simulation.servers])
        for segment in replica.layout.segments:
            if segment.name in state:
                state[segment.name].copy_(segment.of(weights))
