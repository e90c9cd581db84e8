"""Order: time goes on, whoever is gone does nothing, and weights are numbers."""

from __future__ import annotations

from typing import final

import torch

from fast.sim.checkers.base import Checker, Takers
from fast.trace import Applied, Computed, Record, Reduced, Sent, Stepped, Turned


@final
class TimeGoesOn(Checker):
    """Neither the clock of the simulation nor what a participant reports goes back."""

    promise = "time must not go back"

    def __init__(self) -> None:
        self._now_ns = 0
        self._last: dict[int, Record] = {}

    def takers(self) -> Takers:
        """A `Waited` is reported when it is known, which may be after the wait has ended."""
        return dict.fromkeys((Computed, Turned, Sent, Reduced, Applied, Stepped), self._check)

    def _check(self, record: Record) -> None:
        before = self._last.get(record.who)
        if before is not None and record.at_ns < before.at_ns:
            raise self.violated(
                f"{self.name(record.who)} reported {type(before).__name__} at {before.at_ns} ns and then "
                f"{type(record).__name__} at {record.at_ns} ns"
            )
        self._last[record.who] = record

    def after_event(self) -> None:
        now_ns = self.simulation.now_ns
        if now_ns < self._now_ns:
            raise self.violated(f"the clock went from {self._now_ns} ns to {now_ns} ns")
        self._now_ns = now_ns


@final
class GoneIsGone(Checker):
    """Whoever has left or died neither computes nor steps nor sends."""

    promise = "whoever is gone must not take part any more"

    def takers(self) -> Takers:
        return dict.fromkeys((Computed, Stepped, Sent, Reduced), self._check)

    def _check(self, record: Record) -> None:
        participant = self.participant(record.who)
        if not participant.alive:
            how = "died" if participant.dead else "left" if participant.left else "not come yet"
            raise self.violated(f"{participant.name} has {how}, and reported {type(record).__name__}")


@final
class FiniteWeights(Checker):
    """Weights stay finite. Only where nobody is hostile and the problem is one that can be solved."""

    promise = "weights must stay finite"

    def takers(self) -> Takers:
        return {Stepped: self._check, Applied: self._check_server}

    def _check_server(self, record: Applied) -> None:
        if self.participant(record.who).worker is None:  # which takes no steps
            self._check(record)

    def _check(self, record: Record) -> None:
        me = self.me(record.who)
        if not me.weights.is_meta and not bool(torch.isfinite(me.weights).all()):
            raise self.violated(
                f"the weights of {self.name(record.who)} hold NaN or infinity in its step {me.steps}. Letters are "
                "overwritten after the turn in which they were read: was one kept longer?"
            )
