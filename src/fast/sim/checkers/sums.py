"""Sums of weights: where nobody computes a gradient, an exchange only moves values from one to another.

For runs with gradients of zero (or a rate of zero). After every event the sum of what each participant has and of
what letters carry is what it was at the start, value by value, less what went with the dead and with letters that
were dropped, plus what came with newcomers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from torch import Tensor

from fast.core import Letter
from fast.sim.checkers.base import Checker

if TYPE_CHECKING:
    from fast.core import Me
    from fast.sim.simulation import Simulation

TOLERANCE = 1e-10
"""Relative to the largest value: sums of a few hundred doubles are good to about 1e-13."""


@final
class SumOfWeights(Checker):
    """sum_p has(p) + sum_l carries(l) over participants p and letters l that wait or are on their way.

    `has` is what a participant contributes, its weights say, and `carries` what a letter does: None for
    nothing. `events` counts how often the sum was looked at, so that a test can say that it was.
    """

    promise = "without gradients the sum of all weights must stay what it is"

    def __init__(
        self, has: Callable[[Me], Tensor | None], carries: Callable[[Letter], Tensor | None]
    ) -> None:
        self._has, self._carries = has, carries
        self._inside: dict[int, Me] = {}
        self._awaited: set[int] = set()
        """Who is there and hasn't begun."""
        self._expected: Tensor | float = 0.0
        self.events = 0

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        self._awaited = {p.me.id for p in simulation.participants if p.alive}

    def dropped(self, letter: Letter, to: int) -> None:
        self._expected = self._expected - self._in(letter)

    def doubled(self, letter: Letter, to: int) -> None:
        self._expected = self._expected + self._in(letter)

    def died(self, who: int) -> None:
        self._awaited.discard(who)
        if who in self._inside:
            self._expected = self._expected - self._of(self._inside.pop(who))

    def came(self, who: int) -> None:
        self._awaited.add(who)

    def after_event(self) -> None:
        ready = [who for who in sorted(self._awaited) if self.participant(who).started]
        for who in ready:
            self._awaited.remove(who)
            self._inside[who] = self.me(who)
        if ready:
            self._expected = self._total()  # only who begins can say what it brings
        else:
            self._check(self._total())

    def _check(self, found: Tensor | float) -> None:
        self.events += 1
        off, size = _largest(found - self._expected), _largest(self._expected)
        if off > TOLERANCE * max(1.0, size):
            raise self.violated(f"the sum should be {self._expected} and is {found}")

    def _total(self) -> Tensor | float:
        total: Tensor | float = 0.0
        for _, me in sorted(self._inside.items()):
            total = total + self._of(me)
        for letter in self._letters():
            total = total + self._in(letter)
        return total

    def _letters(self) -> list[Letter]:
        """Those that somebody will still read."""
        there = [p.me.id for p in self.simulation.participants if not p.dead]
        waiting = [letter for who in there for letter in self.simulation.unread(who)]
        return [*waiting, *(letter for _, letter in self.simulation.on_the_way())]

    def _of(self, me: Me) -> Tensor | float:
        found = self._has(me)
        return 0.0 if found is None else found.clone()

    def _in(self, letter: Letter) -> Tensor | float:
        found = self._carries(letter)
        return 0.0 if found is None else found


def _largest(values: Tensor | float) -> float:
    return float(values.abs().max() if isinstance(values, Tensor) else abs(values))
