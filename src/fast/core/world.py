"""World: the few verbs behind `me`.

A world belongs to one participant. Clock, randomness, messages and failures all come from it,
which is why the same program runs on real processes and in virtual time, and why recording,
tracing and faults are wrappers around a World.

The two waiting verbs are coroutines. The real world blocks inside them; the simulated world
yields to its event loop. A program can't tell the difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from fast.core.letter import Letter
from fast.trace import Record
from fast.view import View


class Need(Enum):
    """What ends a wait for letters."""

    ALL = "all"
    """Each of the peers has a letter waiting, or is gone."""
    ANY = "any"
    """Anybody has a letter waiting, or one of the peers has left (or there is none to wait for)."""


@dataclass(slots=True)
class Reduction:
    """What a collective mean gives back."""

    tensor: Tensor
    members: tuple[int, ...]
    present: int | None = None
    took_ns: int = 0
    """Moving and adding, without what others had to be waited for."""


class World(ABC):
    """What one participant may ask of its surroundings."""

    id: int
    start_view: View
    """Everybody who was there at the start; ids are never reused."""

    @abstractmethod
    def now(self) -> int:
        """The time in nanoseconds."""

    @abstractmethod
    def draw(self) -> float:
        """A random number in [0, 1), from this participant's own stream."""

    @abstractmethod
    def departures(self) -> Mapping[int, int]:
        """Who has left, with the number of steps it had done. Its letters may still be on their way."""

    @abstractmethod
    def send(self, to: tuple[int, ...], letter: Letter) -> None:
        """Hand over one letter for these peers. Never waits; values count as of now."""

    @abstractmethod
    def take(self, tag: str, senders: Collection[int] | None) -> list[Letter]:
        """What has arrived, by sender. Never waits."""

    @abstractmethod
    def take_one(self, tag: str, sender: int) -> Letter | None:
        """The oldest letter that has arrived from one sender. Never waits."""

    @abstractmethod
    async def wait(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        """Wait until `take` has what is needed."""

    @abstractmethod
    async def collective(
        self, tensor: Tensor, among: tuple[int, ...], weight: float, present: int | None, read_only: bool
    ) -> Reduction:
        """The weighted mean over those of `among` who have not left, added in ascending order.

        With `read_only` the result may be memory that the other peers read too."""

    @abstractmethod
    def turn_ended(self) -> None:
        """Letters taken in this turn may be overwritten from now on."""

    @abstractmethod
    def emit(self, record: Record) -> None:
        """Report something to the observers."""

    @property
    @abstractmethod
    def observed(self) -> bool:
        """Whether anybody listens, so that nothing is recorded for nobody."""
