"""The one way anything is reported: typed records, handed to observers.

A world emits records; observers (a meter, a file, a checker, a test) take them. Times are the
world's own, in nanoseconds: real in the real world, virtual in the simulator.

`Computed` and `Turned` tile a participant's time without gaps: a worker computes, takes its turn,
computes again; a server takes turn after turn. `Sent`, `Reduced` and `Waited` say what a turn was
spent on; the rest of it is merging. Some hundred thousand records are made per minute and
participant, so they are msgspec structs, which cost a tenth of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, final, runtime_checkable

from msgspec import Struct


class Record(Struct, frozen=True, gc=False):
    """Something that happened to participant `who` at `at_ns`."""

    who: int
    at_ns: int


class Computed(Record, frozen=True, gc=False):
    """A worker's gradient was ready at `at_ns`. It began right after its last turn."""

    began_ns: int


class Turned(Record, frozen=True, gc=False):
    """A turn ended: a worker's step with the `begin` after it, or a server's `serve`.

    A worker's begins when its gradient is ready, a server's when the one before it ends.
    """

    began_ns: int


class Sent(Record, frozen=True, gc=False):
    """A letter was taken by the world. `nbytes` is what all its copies cost, headers included."""

    to: tuple[int, ...]
    tag: str
    nbytes: int
    step: int
    took_ns: int = 0
    """How long the sender was busy with it; in the simulator, where links carry it, not at all."""
    whole: bool = True
    """False for a piece of a letter of which more pieces follow."""
    asks: bool = False
    """Whether it carries no update, but only asks for something."""


class Received(Record, frozen=True, gc=False):
    """A letter was read. `steps` are those of its sender at which what is inside was sent."""

    sender: int
    tag: str
    steps: tuple[int, ...]
    letters: int = 1
    """How many letters became this one while they waited."""


class Reduced(Record, frozen=True, gc=False):
    """A collective was finished. `nbytes` is this participant's share of the traffic."""

    nbytes: int
    members: tuple[int, ...]
    took_ns: int = 0
    """Moving and adding. What others had to be waited for is a `Waited` of its own, before this."""


class Included(Record, frozen=True, gc=False):
    """One update of `sender` became part of this participant's weights."""

    sender: int
    tag: str
    staleness: int
    step: int = -1
    """Of the sender, when it made this update."""


class Waited(Record, frozen=True, gc=False):
    """A wait ended at `at_ns` after `waited_ns`. `on` is who had to be waited for."""

    on: tuple[int, ...]
    why: str
    waited_ns: int


class Applied(Record, frozen=True, gc=False):
    """The optimizer moved this participant's weights."""

    version: int


class Stepped(Record, frozen=True, gc=False):
    """A worker finished a step on `samples` samples."""

    step: int
    samples: int


class Dropped(Record, frozen=True, gc=False):
    """A letter that nobody will read, and why. Nothing is swallowed."""

    sender: int
    to: int
    tag: str
    why: str
    steps: tuple[int, ...] = ()
    letters: int = 1
    """How many letters had become this one; 0 for one that was read and then thrown away."""


class Left(Record, frozen=True, gc=False):
    """A worker's loop ended after `step` steps; the others go on."""

    step: int


Observer = Callable[[Record], None]
Key = TypeVar("Key")


@runtime_checkable
class Choosy(Protocol):
    """An observer that says beforehand who takes which kind of record; the others get everything."""

    def taker(self, kind: type[Record]) -> Observer | None:
        """Whom to call with records of this kind; None if they are of no use."""


@final
class Listeners(dict[type[Record], tuple[Observer, ...]]):
    """Whom to call with each kind of record. Observers are asked once, when the first of a kind comes."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        super().__init__()
        self.observers = tuple(observers)

    def __missing__(self, kind: type[Record]) -> tuple[Observer, ...]:
        takers = (each.taker(kind) if isinstance(each, Choosy) else each for each in self.observers)
        found = self[kind] = tuple(taker for taker in takers if taker is not None)
        return found


@dataclass
class Meter:
    """An observer that adds up what a comparison reports about one participant.

    At the end of a turn computed + sent + waited + merged is all the time since the first
    gradient began (at a server: since its first turn did), to the nanosecond.
    """

    bytes_sent: int = 0
    steps: int = 0
    samples: int = 0
    waited_ns: int = 0
    dropped: int = 0
    staleness: dict[int, int] = field(default_factory=dict)
    """How many updates were included at each staleness."""
    computed_ns: int = 0
    sent_ns: int = 0
    """Time spent on sending letters, and on moving and adding in collectives."""
    merged_ns: int = 0
    """Time inside turns that is neither sending nor waiting."""
    links: dict[int, list[int]] = field(default_factory=dict)
    """Letters and bytes sent to each peer."""
    means: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """Collectives among these members, and this participant's bytes in them."""
    _sending: list[tuple[int, int]] = field(default_factory=list, repr=False)
    """Since the last boundary: when each part ended, and how long it took. Likewise the waits."""
    _waiting: list[tuple[int, int]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._takers: dict[type[Record], Callable[[Any], None]] = {
            Sent: self._take_sent,
            Reduced: self._take_reduced,
            Included: self._take_included,
            Waited: self._take_waited,
            Computed: self._take_computed,
            Stepped: self._take_stepped,
            Turned: self._take_turned,
            Dropped: self._take_dropped,
        }

    def __call__(self, record: Record) -> None:
        taker = self._takers.get(type(record))
        if taker is not None:
            taker(record)

    def taker(self, kind: type[Record]) -> Observer | None:
        return self._takers.get(kind)

    def _take_sent(self, record: Sent) -> None:
        self.bytes_sent += record.nbytes
        self._sending.append((record.at_ns, record.took_ns))
        each = record.nbytes // len(record.to)
        for peer in record.to:
            _add(self.links, peer, each)

    def _take_reduced(self, record: Reduced) -> None:
        self.bytes_sent += record.nbytes
        self._sending.append((record.at_ns, record.took_ns))
        _add(self.means, record.members, record.nbytes)

    def _take_included(self, record: Included) -> None:
        self.staleness[record.staleness] = self.staleness.get(record.staleness, 0) + 1

    def _take_waited(self, record: Waited) -> None:
        self._waiting.append((record.at_ns, record.waited_ns))

    def _take_computed(self, record: Computed) -> None:
        """What was sent while backward was still running is sending; what was sent before the first
        step belongs to no time that is counted."""
        took_ns = record.at_ns - record.began_ns
        sent_ns = sum(part_ns for at_ns, part_ns in self._sending if at_ns - part_ns >= record.began_ns)
        waited_ns = sum(part_ns for at_ns, part_ns in self._waiting if at_ns - part_ns >= record.began_ns)
        self._count(sent_ns, waited_ns)
        self.computed_ns += took_ns - sent_ns - waited_ns

    def _take_stepped(self, record: Stepped) -> None:
        self.steps += 1
        self.samples += record.samples

    def _take_turned(self, record: Turned) -> None:
        sent_ns = sum(part_ns for _, part_ns in self._sending)
        waited_ns = sum(part_ns for _, part_ns in self._waiting)
        self._count(sent_ns, waited_ns)
        self.merged_ns += record.at_ns - record.began_ns - sent_ns - waited_ns

    def _count(self, sent_ns: int, waited_ns: int) -> None:
        self.sent_ns += sent_ns
        self.waited_ns += waited_ns
        self._sending.clear()
        self._waiting.clear()

    def _take_dropped(self, record: Dropped) -> None:
        self.dropped += 1

    @property
    def updates(self) -> int:
        return sum(self.staleness.values())

    @property
    def mean_staleness(self) -> float:
        return sum(s * n for s, n in self.staleness.items()) / max(1, self.updates)

    @property
    def max_staleness(self) -> int:
        return max(self.staleness, default=0)


def _add(counts: dict[Key, list[int]], key: Key, nbytes: int) -> None:
    """One more of these bytes."""
    count = counts.get(key)
    if count is None:
        counts[key] = [1, nbytes]
    else:
        count[0] += 1
        count[1] += nbytes
