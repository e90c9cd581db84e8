"""The first part of one participant's run, kept as it happens: where its time went, and its letters.

While the run is on, records are only put on a list; what they mean is worked out afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import msgspec

from fast.trace import Computed, Left, Observer, Received, Record, Reduced, Sent, Turned, Waited

COMPUTE, SEND, WAIT, MERGE = "compute", "send", "wait", "merge"
RECORD_LIMIT = 20_000
_ALL_RECORDS = 400_000
_NAMED = 4
_DRAWN = frozenset((Computed, Turned, Sent, Reduced, Waited, Received, Left))

Part = Sent | Reduced | Waited | Received
"""What happens inside computing or a turn."""


class Slice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A piece of time that was spent on one thing."""

    kind: str
    start_ns: int
    duration_ns: int
    note: str = ""
    """What was sent, or what was waited for."""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


class Departure(msgspec.Struct, array_like=True, frozen=True):
    """A letter that was sent in slice `place` of its sender."""

    place: int
    to: list[int]
    tag: str
    step: int


class Arrival(msgspec.Struct, array_like=True, frozen=True):
    """A letter that was read at the beginning of slice `place` of its receiver."""

    place: int
    sender: int
    tag: str
    steps: list[int]


class Excerpt(msgspec.Struct):
    """The first part of a participant's run as plain data: it can cross a process boundary as JSON.

    Slices come one after another. Some take no time: in the simulator a letter is sent or read in
    a moment, and an arrow needs something to hold on to.
    """

    name: str
    who: int = 0
    slices: list[Slice] = []
    sent: list[Departure] = []
    read: list[Arrival] = []
    stopped_ns: int | None = None
    """When there was no more room; None if all of the run is here."""


def records_for(participants: int) -> int:
    """How many records to keep of each of so many participants, so that all together stay small."""
    return max(200, min(RECORD_LIMIT, _ALL_RECORDS // max(1, participants)))


@final
class Recorder:
    """An observer that keeps the first `limit` records of one participant."""

    def __init__(self, name: str, limit: int = RECORD_LIMIT) -> None:
        self.name, self._room = name, limit
        self._records: list[Record] = []

    def __call__(self, record: Record) -> None:
        if type(record) in _DRAWN:
            self._keep(record)

    def taker(self, kind: type[Record]) -> Observer | None:
        return self._keep if kind in _DRAWN else None

    def _keep(self, record: Record) -> None:
        if self._room:
            self._room -= 1
            self._records.append(record)

    def excerpt(self) -> Excerpt:
        """What was kept, worked out."""
        who = self._records[0].who if self._records else 0
        stopped_ns = self._records[-1].at_ns if self._records and not self._room else None
        cutter, inside = _Cutter(Excerpt(self.name, who, stopped_ns=stopped_ns)), list[Part]()
        for record in self._records:
            match record:
                case Sent() | Reduced() | Waited() | Received():
                    inside.append(record)
                    continue
                case Computed(began_ns=began_ns):
                    cutter.cut(COMPUTE, began_ns, record.at_ns, inside)
                case Turned(began_ns=began_ns):
                    cutter.cut(MERGE, began_ns, record.at_ns, inside)
                case Left() if inside:  # what was read after everybody's last step
                    cutter.cut(MERGE, inside[0].at_ns, record.at_ns, inside)
            inside = []
        return cutter.excerpt


class _Cutter:
    """Cuts a participant's time into slices that follow each other."""

    def __init__(self, excerpt: Excerpt) -> None:
        self.excerpt = excerpt
        self._kind = COMPUTE
        self._cursor_ns = 0
        self._reading = False
        """Whether letters were read where the next slice begins."""

    def cut(self, kind: str, began_ns: int, ended_ns: int, inside: Iterable[Part]) -> None:
        """One stretch of time: its parts where they are, and `kind` wherever there is none."""
        self._kind, self._cursor_ns = kind, began_ns
        for part in inside:
            if isinstance(part, Received):
                self._read(part)
            else:
                self._place(part, began_ns)
        self._fill(ended_ns)

    def _read(self, part: Received) -> None:
        """A slice begins where a letter is read, so that an arrow can end there."""
        if part.at_ns > self._cursor_ns:
            self._fill(part.at_ns)
        self._reading = True
        place = len(self.excerpt.slices)
        self.excerpt.read.append(Arrival(place, part.sender, part.tag, list(part.steps)))

    def _place(self, part: Sent | Reduced | Waited, began_ns: int) -> None:
        start_ns = part.at_ns - (part.waited_ns if isinstance(part, Waited) else part.took_ns)
        if max(start_ns + 1, part.at_ns) > began_ns:  # else it was sent before the first step, at the start
            start_ns = max(start_ns, self._cursor_ns)
            self._fill(start_ns)
        if isinstance(part, Sent):
            place = len(self.excerpt.slices)
            self.excerpt.sent.append(Departure(place, list(part.to), part.tag, part.step))
        if part.at_ns > start_ns or isinstance(part, Sent):
            kind = WAIT if isinstance(part, Waited) else SEND
            self.excerpt.slices.append(Slice(kind, start_ns, part.at_ns - start_ns, _note(part)))
        self._cursor_ns = max(self._cursor_ns, part.at_ns)

    def _fill(self, until_ns: int) -> None:
        if until_ns > self._cursor_ns or self._reading:
            self.excerpt.slices.append(Slice(self._kind, self._cursor_ns, until_ns - self._cursor_ns))
        self._cursor_ns, self._reading = until_ns, False


def _note(part: Sent | Reduced | Waited) -> str:
    match part:
        case Sent(tag=tag, to=to):
            return f"{tag} to {_names(to)}"
        case Reduced(members=members):
            return f"mean of {_names(members)}"
        case Waited(why=why, on=on):
            return f"{why} of {_names(on)}"


def _names(peers: tuple[int, ...]) -> str:
    return (", ".join(map(str, peers)) or "anybody") if len(peers) <= _NAMED else f"{len(peers)} peers"
