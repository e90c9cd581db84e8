"""World: the few verbs behind `me`.

A world belongs to one participant. Clock, randomness, messages and failures all come from it,
which is why the same program runs on real processes and in virtual time, and why recording,
tracing and faults are wrappers around a World.

The waiting verbs are coroutines. The real world blocks inside them; the simulated world yields
to its event loop. A program can't tell the difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fast.core.letter import Letter
from fast.errors import UsageError
from fast.membership import Change, view_now
from fast.parts.codecs.base import Coder
from fast.trace import Record
from fast.view import Groups, Layout, View

_ROUND = "fast."


class Need(Enum):
    """What ends a wait for letters."""

    ALL = "all"
    """Each of the peers has a letter waiting, or is gone."""
    ANY = "any"
    """Anybody has a letter waiting, or one of the peers has left (or there is none to wait for)."""


class Kind(Enum):
    """What a collective gives each of its members."""

    MEAN = "mean"
    SUM = "sum"
    REDUCE_SCATTER = "reduce_scatter"
    """The mean of one's own slice: `cut_evenly` says which."""
    ALL_GATHER = "all_gather"
    """Everybody's tensor, in a row: shape (members, *shape)."""
    BROADCAST = "broadcast"
    """The tensor of `source`."""


class Labour(Enum):
    """What a participant does in its turns that takes time: a model of a machine has a cost for each."""

    APPLY = "apply"
    """One step of the optimizer; bytes of the weights."""
    SEND = "send"
    """Handing over one letter, to any number of peers; bytes of its tensor."""
    READ = "read"
    """Taking one letter; bytes of its tensor."""
    TAKE = "take"
    """The same with a letter that was noticed before, when there was nothing else to do."""
    MERGE = "merge"
    """One operation on tensors of the strategy's own; bytes that it reads and writes."""
    TURN = "turn"
    """Everything else in a turn."""
    WAKE = "wake"
    """Going on after a wait for letters."""


@dataclass(frozen=True)
class Link:
    """What a cost model needs to know of the way to a peer."""

    latency_s: float
    rate_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """One collective, as one of its members asks for it."""

    tensor: Tensor
    among: tuple[int, ...]
    """Ascending. Those who have left are not waited for."""
    kind: Kind = Kind.MEAN
    weight: float = 1.0
    """How much this member's tensor counts in a mean."""
    present: int | None = None
    read_only: bool = False
    """Whether the result may be memory that the other members read too."""
    algorithm: str = "auto"
    """By name, or chosen by the cost model."""
    any_order: bool = False
    """Whether the terms of a sum may be added in another order than that of the members."""
    coder: Coder | None = None
    """How the tensor is encoded on its way; None for not at all."""
    source: int = 0
    """Of a broadcast."""
    lane: int = 0
    """Rounds that are under way at once go in different lanes; all members number them alike."""
    part: tuple[int, int, int] | None = None
    """(start, stop, total) where the tensor is a slice of a flat one whose mean is made in pieces."""
    groups: Groups = ()
    """In which order a sum is made: the view's. Worlds fill it in."""

    def in_groups(self, groups: Groups) -> Round:
        """The same in this order."""
        return self if groups == self.groups else replace(self, groups=groups)

    @property
    def tag(self) -> str:
        """Under which its letters travel."""
        return f"{_ROUND}{self.lane}"


def is_round(tag: str) -> bool:
    """Whether letters with this tag belong to a round."""
    return tag.startswith(_ROUND) and tag[len(_ROUND) :].isdecimal()


def is_ticket(tag: str) -> bool:
    """Whether they belong to a round that goes on beside others."""
    return is_round(tag) and tag != f"{_ROUND}0"


@dataclass(frozen=True, slots=True)
class Pause:
    """What a program that must not wait yields where it would have to: see `Ticket`."""

    ready: Callable[[], bool]
    block: Callable[[], Coroutine[Any, Any, None]]
    """Waits until it is ready, where waiting is allowed."""

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


@dataclass(slots=True)
class Reduction:
    """What a collective mean gives back."""

    tensor: Tensor
    members: tuple[int, ...]
    present: int | None = None
    took_ns: int = 0
    """Moving and adding, without what others had to be waited for."""
    nbytes: int | None = None
    """What this member sent, headers included; None for the traffic of an in-place mean."""
    whole: Tensor | None = None
    """Of a round over a slice: the flat result that it is a slice of, where there is one in one piece."""
    weights: tuple[float, ...] = ()
    """What each member's tensor counts, where the round was made of letters."""


class World(ABC):
    """What one participant may ask of its surroundings."""

    id: int
    start_view: View
    """Everybody who was there at the start; ids are never reused."""
    seed: int
    """Of the whole run; streams of random numbers are made from it."""
    link: Link
    """How fast the way to a peer is, for cost models: an order of magnitude."""
    layout: Layout | None = None
    """Of this participant's flat tensors, once it has any: encoded letters are opened by it."""
    shards: Mapping[int, slice] = MappingProxyType({})
    """Which slice of the flat tensor each server owns, for a worker whose letters with them are slices."""
    lane: int = 0
    """That of the ticket which drives the program under way; 0 if none does, and it may wait."""
    pieces: int = 1
    """In so many pieces a gradient travels."""
    _chores: tuple[Callable[[], None], ...] = ()

    def layout_of(self, peer: int) -> Layout | None:
        """Of the flat tensors that letters from or to this peer hold."""
        shard = self.shards.get(peer)
        return self.layout if shard is None or self.layout is None else _part(self.layout, shard)

    @property
    def polled(self) -> bool:
        """Whether the program under way must not wait but pause."""
        return self.lane > 0

    def when_waiting(self, chore: Callable[[], None]) -> None:
        """Call this again and again while this participant waits."""
        self._chores = (*self._chores, chore)

    def meanwhile(self) -> None:
        """This participant waits."""
        for chore in self._chores:
            chore()

    def stepped(self, steps: int) -> None:  # noqa: B027
        """Called when so many steps are done and nothing of the next has begun."""

    def working(self) -> None:  # noqa: B027
        """Called before what `worked` then reports: it is not the strategy's own arithmetic."""

    def worked(self, on: Labour, nbytes: int) -> None:  # noqa: B027 (real work takes its time by itself)
        """Called where a participant has done something that takes time on a real machine."""

    def outgoing(self, tensor: Tensor) -> Tensor:
        """What really goes out instead of these values; a hostile participant lies about them."""
        return tensor

    @abstractmethod
    def now(self) -> int:
        """The time in nanoseconds."""

    @abstractmethod
    def draw(self) -> float:
        """A random number in [0, 1), from this participant's own stream."""

    @abstractmethod
    def departures(self) -> Mapping[int, int]:
        """Who has left, with the number of steps it had done. Its letters may still be on their way."""

    def listening(self) -> Collection[int]:
        """The departed workers that still receive letters, until everybody has taken its last step."""
        return ()

    def changes(self) -> Sequence[Change]:
        """Who came and who left since the start, in that order; it only ever grows."""
        return [Change(who, steps) for who, steps in self.departures().items()]

    def view_at(self, step: int | None, period: int) -> View:
        """The view that holds for this participant: at a step of synchronous workers, or now."""
        return view_now(self.start_view, self.changes(), keep=self.id, step=step, period=period)

    @abstractmethod
    def send(self, to: tuple[int, ...], letter: Letter) -> None:
        """Hand over one letter for these peers. Never waits; values count as of now."""

    @abstractmethod
    def take(self, tag: str, senders: Collection[int] | None) -> list[Letter]:
        """What has arrived, by sender. Never waits."""

    @abstractmethod
    def take_one(self, tag: str, sender: int) -> Letter | None:
        """The oldest letter that has arrived from one sender. Never waits."""

    async def wait(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        """Wait until `take` has what is needed."""
        if not self.polled:
            await self.block(tag, peers, need)
            return
        while not self.ready(tag, peers, need):
            await Pause(lambda: self.ready(tag, peers, need), lambda: self.block(tag, peers, need))

    @abstractmethod
    async def block(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        """`wait` where waiting is allowed."""

    @abstractmethod
    def ready(self, tag: str, peers: tuple[int, ...], need: Need) -> bool:
        """Whether `wait` would return at once."""

    @abstractmethod
    async def collective(self, round_: Round) -> Reduction:
        """Take part in a round with those of its group who have not left."""

    @abstractmethod
    async def gradient_ready(self, number: int) -> None:
        """Wait until bucket `number` of this step's gradient has been computed."""

    @abstractmethod
    def publish(self, name: str, tensor: Tensor) -> Tensor:
        """Let peers read this tensor whenever they like; returns the memory that they read."""

    @abstractmethod
    async def read(self, peer: int, name: str) -> Tensor | None:
        """What a peer has published, as it is in this moment; None if there is nothing."""

    async def amend(self, peer: int, name: str, before: Tensor, after: Tensor, *, atomic: bool) -> bool:
        """Change what a peer has published as from `before` to `after`, where they differ; False if there
        is nothing. `atomic`: no change of anybody else to the same component is lost."""
        raise UsageError("workers of one host only can change each other's memory, and these share none")

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


def _part(layout: Layout, shard: slice) -> Layout:
    return _cached_part(layout, shard.start, shard.stop)


@lru_cache(maxsize=256)
def _cached_part(layout: Layout, start: int, stop: int) -> Layout:
    return layout.part(start, stop)
