"""The clauses about letters, compiled for one simulation: who to whom, when, and with which chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fast.sim.faults.deeds import Cut, Late, Mishap, Mishaps
from fast.sim.faults.parties import Group, Route, Span
from fast.sim.faults.scenario import Scenario
from fast.sim.faults.windows import Window

if TYPE_CHECKING:
    from fast.sim.simulation import Simulation

_APART = 16
"""Purposes of random numbers: that of a kind of clause, and so much more for each further one of its kind."""


@dataclass(frozen=True)
class Way:
    """Who to whom (None: anybody), and when."""

    senders: frozenset[int] | None
    receivers: frozenset[int] | None
    window: Window

    def covers(self, sender: int, to: int, now_ns: int) -> bool:
        """Whether a letter that is sent now goes this way."""
        return (
            self.window.covers(now_ns)
            and (self.senders is None or sender in self.senders)
            and (self.receivers is None or to in self.receivers)
        )

    def pairs(self, members: frozenset[int], now_ns: int) -> int:
        """How many ordered pairs of different members it is the way of, now."""
        if not self.window.covers(now_ns):
            return 0
        one = members if self.senders is None else members & self.senders
        other = members if self.receivers is None else members & self.receivers
        return len(one) * len(other) - len(one & other)


@dataclass(frozen=True)
class Delay:
    """Letters on this way take longer."""

    way: Way
    by_ns: int
    up_to: bool
    purpose: int


@dataclass(frozen=True)
class Accident:
    """Letters on this way meet with a mishap, with this probability."""

    way: Way
    share: float
    purpose: int


@dataclass(frozen=True)
class Ways:
    """All of them."""

    cuts: Sequence[Way]
    delays: Sequence[Delay]
    accidents: Mapping[Mishap, Sequence[Accident]]
    drawn: bool
    """Whether chance plays a part."""

    def prepare(self, simulation: Simulation) -> None:
        """Have the simulation tell when those begin that begin with a step."""
        accidents = (accident.way for group in self.accidents.values() for accident in group)
        for way in (*self.cuts, *(delay.way for delay in self.delays), *accidents):
            way.window.prepare(simulation)

    def __bool__(self) -> bool:
        return bool(self.cuts or self.delays or any(self.accidents.values()))


def ways_of(scenario: Scenario, workers: int) -> Ways:
    """For a simulation of so many workers."""
    late, mishaps = scenario.of(Late), scenario.of(Mishaps)
    return Ways(
        cuts=[way for cut in scenario.of(Cut) for way in _cut(cut, workers)],
        delays=[_delay(clause, late[:number], workers) for number, clause in enumerate(late)],
        accidents={
            kind: [
                Accident(
                    _way(clause.route, clause.span, workers), clause.percent / 100, purpose + _APART * number
                )
                for number, clause in enumerate(each for each in mishaps if each.mishap is kind)
            ]
            for purpose, kind in enumerate(Mishap, 1)
        },
        drawn=bool(mishaps) or any(clause.up_to for clause in late),
    )


def _delay(clause: Late, before: Sequence[Late], workers: int) -> Delay:
    purpose = _APART * sum(other.up_to for other in before)
    return Delay(_way(clause.route, clause.span, workers), clause.by_ns, clause.up_to, purpose)


def _cut(cut: Cut, workers: int) -> list[Way]:
    one, other = cut.one.ids(workers), cut.other.ids(workers)
    window = Window(cut.span, _counting((cut.one, cut.other), workers))
    ways = [Way(one, other, window)]
    return [*ways, Way(other, one, window)] if cut.both_ways else ways


def _way(route: Route, span: Span, workers: int) -> Way:
    sides = (route.senders, route.receivers)
    senders, receivers = (None if side is None else side.ids(workers) for side in sides)
    return Way(senders, receivers, Window(span, _counting(route.named, workers)))


def _counting(named: Sequence[Group], workers: int) -> Sequence[int]:
    """Whose steps count: those of the first group with workers in it, or everybody's."""
    return next((group.workers for group in named if group.workers), range(workers))
