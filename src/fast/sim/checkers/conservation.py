"""Conservation: what letters carry from one to another neither appears nor disappears.

For strategies with `conserves`, say `share`: after every event the sum of `me.state.share` over the
workers and of `letter.note["share"]` over all letters that wait or are on their way is what it was at
the start, less what went with the dead and with letters that were dropped, plus what came with
newcomers and with letters that a fault has doubled.

So a strategy takes the number out of its state and sends it without waiting in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fast.core import Letter
from fast.errors import UsageError
from fast.sim.checkers.base import Checker, Takers
from fast.trace import Record, Sent, Stepped

if TYPE_CHECKING:
    from fast.core import Me
    from fast.sim.simulation import Simulation

TOLERANCE = 1e-9
"""Relative to the larger of the sum and 1: sums of a few thousand doubles are good to about 1e-12."""


@final
class Conservation(Checker):
    """One number, in all states and letters together."""

    promise = "what letters carry from one to another must neither appear nor disappear"

    def __init__(self, conserved: str) -> None:
        self._conserved = conserved
        self._expected = 0.0
        self._inside: dict[int, Me] = {}
        """Whose states are part of the sum."""
        self._awaited: dict[int, object] = {}
        """Who will be, as soon as it has a state that isn't this one, from a life before."""
        self._moved = False
        self._changes: list[str] = []
        """What faults have taken away or added so far, in words, for the message."""

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        self._awaited = {p.me.id: p.me.state for p in simulation.workers if p.alive}

    def takers(self) -> Takers:
        return {Sent: self._notice, Stepped: self._notice}

    def _notice(self, record: Record) -> None:
        self._moved = True

    def dropped(self, letter: Letter, to: int) -> None:
        self._change(
            -self._in(letter), f"a letter from {self.name(letter.sender)} to {self.name(to)} dropped"
        )

    def doubled(self, letter: Letter, to: int) -> None:
        self._change(self._in(letter), f"a letter from {self.name(letter.sender)} to {self.name(to)} doubled")

    def died(self, who: int) -> None:
        self._awaited.pop(who, None)
        if who in self._inside:
            self._change(-self._of(self._inside.pop(who)), f"{self.name(who)} died")

    def came(self, who: int) -> None:
        self._awaited[who] = self.me(who).state

    def _change(self, amount: float, why: str) -> None:
        if amount:
            self._expected += amount
            self._changes.append(why)
            self._moved = True

    def after_event(self) -> None:
        ready = [who for who, old in self._awaited.items() if self.me(who).state is not old]
        for who in ready:
            del self._awaited[who]
            self._inside[who] = self.me(who)
        if ready:
            self._expected = self._total()  # only a newcomer itself can say what it brings
        elif self._moved:
            self._check(self._total())
        self._moved = False

    def _check(self, found: float) -> None:
        if abs(found - self._expected) > TOLERANCE * max(1.0, abs(self._expected)):
            raise self.violated(self._sentence(found))

    def _total(self) -> float:
        states = sum(self._of(me) for _, me in sorted(self._inside.items()))
        return states + sum(self._in(letter) for letter in self._letters())

    def _letters(self) -> list[Letter]:
        """Those that somebody will still read."""
        waiting = [
            letter
            for p in self.simulation.participants
            if not p.dead
            for letter in self.simulation.unread(p.me.id)
        ]
        return [*waiting, *(letter for _, letter in self.simulation.on_the_way())]

    def _of(self, me: Me) -> float:
        value = getattr(me.state, self._conserved, None)
        if not isinstance(value, int | float):
            raise UsageError(
                f"{self.simulation.strategy!r} says that it conserves {self._conserved!r}, and the state of "
                f"{self.name(me.id)} has no such number: {me.state!r}. Name a number in it, or leave `conserves` out."
            )
        return float(value)

    def _in(self, letter: Letter) -> float:
        return float(letter.note.get(self._conserved, 0.0))

    def _sentence(self, found: float) -> str:
        states = ", ".join(
            f"{self.name(who)} has {self._of(me):.9g}" for who, me in sorted(self._inside.items())
        )
        carried = ", ".join(
            f"{self._in(x):.9g} from {self.name(x.sender)}" for x in self._letters() if self._in(x)
        )
        so_far = f" (after: {'; '.join(self._changes[-4:])})" if self._changes else ""
        return (
            f"the sum of {self._conserved!r} should be {self._expected:.9g}{so_far} and is {found:.9g}: {states}; "
            f"letters carry {carried or 'nothing'}"
        )
