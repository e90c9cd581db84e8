"""What everybody has said about itself, as far as it is known here; without any I/O.

Each participant numbers what it says, and the newest counts. So it may come late, twice or by way of
others: everybody passes on what is new to it. That takes a few neighbours each, and no participant
has to be connected with all others to know how they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import msgspec

from fast.errors import WireError
from fast.transport.base import Phase, Status

TEXT_CHARACTERS = 240
ENDED_CHARACTERS = 2000
_BEATS = 1 << 14


class Beat(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What one participant says about itself. It replaces all that it said before."""

    who: int
    life: int
    number: int
    phase: int = Phase.STARTING
    steps: int = 0
    samples: int = 0
    waits: str = ""
    wait_number: int = 0
    looks: int = 0
    address: str = ""
    """Where it listens."""
    sent: dict[int, int] = {}
    """From DONE on: letters sent to each peer, so that nobody counts it as gone before they have come."""
    ended: str = ""
    """Why the run can't go on, if it says so."""


@final
class Bulletin:
    """The newest beat of everybody, and when it came."""

    def __init__(self, id: int, size: int, now_ns: int) -> None:
        self._id, self._size = id, size
        self.beats: dict[int, Beat] = {}
        self.heard_ns = [now_ns] * size
        """When a participant was last known to live. It counts from the start, so that the deadline holds
        for those who were never heard."""

    def take(self, beat: Beat, now_ns: int) -> bool:
        """Whether it is news."""
        if not (0 <= beat.who < self._size and 0 <= beat.phase <= Phase.LEFT):
            raise WireError(f"it knows of participant {beat.who} in phase {beat.phase}; neither exists")
        known = self.beats.get(beat.who)
        if known is not None and (beat.life, beat.number) <= (known.life, known.number):
            return False
        if beat.who == self._id and known is not None and beat.life >= known.life:
            return False  # only we speak for ourselves
        self.beats[beat.who] = beat
        self.heard_ns[beat.who] = now_ns
        return True

    def since(self, told: dict[int, tuple[int, int]], to: int) -> list[Beat]:
        """What a peer has not been told, nor told us; it counts as told from now on."""
        fresh = [
            beat
            for who, beat in self.beats.items()
            if who != to and told.get(who, (-1, -1)) < (beat.life, beat.number)
        ]
        told.update((beat.who, (beat.life, beat.number)) for beat in fresh)
        return fresh

    def status(self, peer: int, received: int) -> Status:
        """How a peer is, given how many of its letters have come."""
        beat = self.beats.get(peer)
        if beat is None:
            return Status(Phase.STARTING, 0, 0, self.heard_ns[peer], "", 0)
        phase = Phase(beat.phase)
        if phase >= Phase.DONE and received < beat.sent.get(self._id, 0):
            phase = Phase.READY
        alive = self.heard_ns[peer]
        return Status(phase, beat.steps, beat.samples, alive, beat.waits, beat.wait_number, beat.looks)

    @property
    def ended(self) -> Beat | None:
        """The beat of somebody who says that the run can't go on."""
        return next((beat for beat in self.beats.values() if beat.ended), None)


def neighbours(id: int, size: int) -> list[int]:
    """Those with whom a participant exchanges news: a ring with chords, about 2 log2(size) of them.

    >>> neighbours(0, 8)
    [1, 2, 4, 6, 7]
    """
    found, reach = set[int](), 1
    while reach < size:
        found |= {(id + reach) % size, (id - reach) % size}
        reach *= 2
    return sorted(found - {id})


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Beat])


def encode_beats(beats: Iterable[Beat]) -> bytes:
    return _encoder.encode(list(beats))


def decode_beats(body: bytes) -> list[Beat]:
    try:
        beats = _decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"news that can't be read: {error}") from error
    for beat in beats:
        if len(beat.waits) > TEXT_CHARACTERS or len(beat.ended) > ENDED_CHARACTERS:
            raise WireError(f"participant {beat.who} says too much")
    return beats
