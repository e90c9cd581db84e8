"""Bounds: how far ahead a worker may be, and how old what is merged."""

from __future__ import annotations

from math import isfinite
from typing import final

from fast.sim.checkers.base import Checker, Takers
from fast.trace import Included, Received, Sent, Stepped


@final
class Lead(Checker):
    """No worker takes more than `lead` steps more than the slowest live one."""

    promise = "no worker may run further ahead of the slowest one than the strategy's `lead`"

    def __init__(self, lead: float) -> None:
        self._lead = lead
        self._slowest = 0
        """At most the steps of the slowest live worker: steps only grow, so it is seldom looked up anew."""

    def takers(self) -> Takers:
        return {Stepped: self._check}

    def _check(self, record: Stepped) -> None:
        self._slowest = min(self._slowest, record.step)  # of somebody who came late
        if record.step - self._slowest <= self._lead:
            return
        live = [worker.me for worker in self.simulation.workers if worker.alive and worker.started]
        slowest = min(live, key=lambda me: (me.steps, me.id))
        self._slowest = slowest.steps
        if record.step - slowest.steps > self._lead:
            raise self.violated(
                f"{self.name(record.who)} has taken {record.step} steps and {self.name(slowest.id)} only "
                f"{slowest.steps}, which is {record.step - slowest.steps} apart; the lead is {self._lead:g}"
            )


@final
class Staleness(Checker):
    """In lock-step nothing is staler than the strategy is `late`, nor of a step that is still to come.

    Where workers have a lead and servers apply each push once, an update that was computed on weights
    read `g` steps before meets a server that has applied at most 2 lead + g + 1 pushes of each other
    worker since: it may have been `lead` behind when the weights were read, be `lead` ahead now, and
    have one push more on its way. And g of its own, with those that were on their way when it read: a
    worker that doesn't wait for its own pushes has at most `lead` of them.
    """

    promise = "no update may be staler than the strategy's bound when it is merged"

    def __init__(self, lead: float, *, late: int | None) -> None:
        """`late` is None for workers that don't go in lock-step."""
        self._lead, self._late = lead, late
        self._read: dict[int, int] = {}
        """The step at which each worker last read a letter of a server."""
        self._gap: dict[tuple[int, int], int] = {}
        """Of each worker's step: how many steps before it had read when it sent its update."""

    def takers(self) -> Takers:
        return {Included: self._check, Received: self._take, Sent: self._send}

    def _send(self, record: Sent) -> None:
        """It may read again before the update is merged."""
        if isfinite(self._lead):
            self._gap[record.who, record.step] = record.step - self._read.get(record.who, -1)

    def _take(self, record: Received) -> None:
        if self.participant(record.sender).worker is None:
            self._read[record.who] = self.me(record.who).steps

    def _check(self, record: Included) -> None:
        if self._late is not None:
            self._check_not_ahead(record)
        bound = self._bound(record)
        if record.staleness > bound:
            raise self.violated(
                f"{self.name(record.who)} merged the update {record.tag!r} of {self.name(record.sender)} from its "
                f"step {record.step} with staleness {record.staleness}, and at most {bound:g} is promised"
            )

    def _check_not_ahead(self, record: Included) -> None:
        """Between workers, which number their steps alike; a server has none."""
        steps = self.me(record.who).steps
        if record.step > steps and self.participant(record.who).worker is not None:
            raise self.violated(
                f"{self.name(record.who)} merged the update {record.tag!r} of {self.name(record.sender)} from its "
                f"step {record.step} in its own step {steps}, although they go in lock-step"
            )

    def _bound(self, record: Included) -> float:
        if self._late is not None:
            return self._late
        if self.participant(record.who).worker is not None or not isfinite(self._lead):
            return float("inf")
        gap = self._gap.get((record.sender, record.step), record.step + 1)
        others = len(self.simulation.workers) - 1
        return others * (2 * self._lead + gap + 1) + gap + self._lead
