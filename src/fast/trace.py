"""The one way anything is reported: typed records, handed to observers.

A world emits records; observers (a meter, a file, a checker, a test) take them. Times are the
world's own, in nanoseconds: real in the real world, virtual in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Record:
    """Something that happened to participant `who` at `at_ns`."""

    who: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Sent(Record):
    """A letter was handed to the world. `nbytes` is what all its copies cost, headers included."""

    to: tuple[int, ...]
    tag: str
    nbytes: int
    step: int


@dataclass(frozen=True, slots=True)
class Reduced(Record):
    """A collective was finished. `nbytes` is this participant's share of the traffic."""

    nbytes: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Included(Record):
    """One update of `sender` became part of this participant's weights."""

    sender: int
    tag: str
    staleness: int


@dataclass(frozen=True, slots=True)
class Waited(Record):
    """A wait ended at `at_ns` after `waited_ns`. `on` is who had to be waited for."""

    on: tuple[int, ...]
    why: str
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Applied(Record):
    """The optimizer moved this participant's weights."""

    version: int


@dataclass(frozen=True, slots=True)
class Stepped(Record):
    """A worker finished a step on `samples` samples."""

    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class Dropped(Record):
    """A letter that nobody will read, and why. Nothing is swallowed."""

    sender: int
    to: int
    tag: str
    why: str


@dataclass(frozen=True, slots=True)
class Left(Record):
    """A worker's loop ended after `step` steps; the others go on."""

    step: int


Observer = Callable[[Record], None]


@dataclass
class Meter:
    """An observer that adds up what a comparison reports about one participant."""

    bytes_sent: int = 0
    steps: int = 0
    samples: int = 0
    waited_ns: int = 0
    dropped: int = 0
    staleness: dict[int, int] = field(default_factory=dict)
    """How many updates were included at each staleness."""

    def __call__(self, record: Record) -> None:
        match record:
            case Sent(nbytes=nbytes) | Reduced(nbytes=nbytes):
                self.bytes_sent += nbytes
            case Included(staleness=staleness):
                self.staleness[staleness] = self.staleness.get(staleness, 0) + 1
            case Waited(waited_ns=waited_ns):
                self.waited_ns += waited_ns
            case Stepped(samples=samples):
                self.steps += 1
                self.samples += samples
            case Dropped():
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
