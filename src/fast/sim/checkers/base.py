"""What a checker is: somebody who watches a simulated run and raises when a promise is broken."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fast.core import Letter
from fast.errors import Violation
from fast.trace import Record

if TYPE_CHECKING:
    from fast.core import Me
    from fast.sim.participant import Participant
    from fast.sim.simulation import Simulation

Taker = Callable[[Any], None]
Takers = Mapping[type[Record], Taker]


class Checker(ABC):
    """Watches one promise. It is told of records as they are made, of letters that are dropped or
    doubled, of deaths and arrivals, and of the end of every event; it looks at the simulation and
    changes nothing in it."""

    promise: ClassVar[str]
    """What is promised, as the beginning of a sentence."""
    simulation: Simulation

    def attach(self, simulation: Simulation) -> None:
        """Before the run: this is what is watched."""
        self.simulation = simulation

    def takers(self) -> Takers:
        """Which records it wants to see, and what it does with them."""
        return {}

    def dropped(self, letter: Letter, to: int) -> None:  # noqa: B027 (most don't need the letter itself)
        """Nobody will read this letter."""

    def doubled(self, letter: Letter, to: int) -> None:  # noqa: B027
        """A fault has made another one of this letter."""

    def died(self, who: int) -> None:  # noqa: B027
        """This worker's life has ended in the event that is just over: it was killed, or had left before
        and now begins anew."""

    def came(self, who: int) -> None:  # noqa: B027
        """This worker has joined late or come back."""

    def after_event(self) -> None:  # noqa: B027
        """An event is over, and all that it changed can be seen."""

    def finish(self) -> None:  # noqa: B027
        """The run has ended in order."""

    # What all of them need

    def violated(self, found: str) -> Violation:
        return Violation(self.promise, self.simulation.now_ns, found)

    def participant(self, who: int) -> Participant:
        return self.simulation.participants[who]

    def me(self, who: int) -> Me:
        return self.simulation.participants[who].me

    def name(self, who: int) -> str:
        return self.simulation.participants[who].name

    def names(self, whose: tuple[int, ...]) -> str:
        return ", ".join(map(self.name, whose)) or "nobody"
