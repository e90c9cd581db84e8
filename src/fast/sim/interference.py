"""What faults may do to a simulation: the few places where they reach into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from fast.core import Letter

if TYPE_CHECKING:
    from fast.sim.simulation import Simulation


@dataclass(frozen=True)
class Fate:
    """What becomes of one letter: the extra time of each copy that arrives (none if it is lost)."""

    delays_ns: tuple[int, ...] = (0,)
    ordered: bool = True
    """Whether it still arrives after those that were sent before it to the same peer."""


UNHARMED = Fate()


class Interference(Protocol):
    """Faults, as the simulation asks for them."""

    def prepare(self, simulation: Simulation) -> None:
        """Before the run: have the simulation call back at the times and steps where something happens."""

    def fate(self, letter: Letter, to: int, now_ns: int) -> Fate:
        """What becomes of this letter, which leaves now."""

    def sent_by(self, who: int, tensor: Tensor, now_ns: int) -> Tensor:
        """What this participant really sends instead of `tensor`, which stays as it is."""

    def held_ns(self, members: tuple[int, ...], now_ns: int) -> int:
        """So much longer a round among these takes that begins to move its values now."""
