"""The records of a connection: what two participants write to each other, without any I/O.

    kind 1 | zero 1 | stream 2 | length 4 | body

A letter is a LETTER record (its frame header) and DATA records (its payload, in portions), so that
the portions of a large letter and whole small ones can take turns. The letters of one tag are one
stream and keep their order. Everything else is small and goes first:

    GREETING   who I am, and how many letters of each of your streams I have
    REFUSED    why I don't talk to you
    TAG        the tag of one of my streams
    COUNTS     how many letters of your streams have come, and how many may be forgotten
    BEATS      what I know of everybody
    LOOK       show me what you publish under this name
    NOTHING    there is nothing under it
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TypeVar

import msgspec

from fast.errors import WireError
from fast.wire import HEADER_LIMIT_BYTES, TAG_CHARACTERS

PREFIX = struct.Struct("<BBHI")
CHUNK_BYTES = 256 << 10
"""The longest portion of a payload: a small letter waits for at most one of them."""
_COUNT = struct.Struct("<HQQ")
_STREAMS = 1 << 16
Said = TypeVar("Said")


class Kind(IntEnum):
    GREETING = 1
    REFUSED = 2
    TAG = 3
    LETTER = 4
    DATA = 5
    COUNTS = 6
    BEATS = 7
    LOOK = 8
    NOTHING = 9


_LIMITS: Mapping[int, int] = MappingProxyType(
    {
        Kind.GREETING: 1 << 20,
        Kind.REFUSED: 4096,
        Kind.TAG: TAG_CHARACTERS * 4,
        Kind.LETTER: HEADER_LIMIT_BYTES,
        Kind.DATA: CHUNK_BYTES,
        Kind.COUNTS: _STREAMS * _COUNT.size,
        Kind.BEATS: 1 << 24,
        Kind.LOOK: 1024,
        Kind.NOTHING: 1024,
    }
)


class Greeting(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The first record in both directions."""

    release: str
    """The version of FAST."""
    session: str
    participant: int
    life: int
    size: int
    """The number of participants that the job has room for."""
    received: dict[int, int]
    """Complete letters by stream, so that a connection that was lost goes on where it was."""


class Look(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A question for what a participant publishes, and the answer that there is nothing."""

    number: int
    name: str


def record(kind: Kind, body: bytes = b"", stream: int = 0) -> bytes:
    return PREFIX.pack(kind, 0, stream, len(body)) + body


def prefix_of(data: bytes | bytearray | memoryview) -> tuple[int, int, int]:
    """Kind, stream and length of the record that begins here, or WireError."""
    kind, zero, stream, length = PREFIX.unpack_from(data)
    limit = _LIMITS.get(kind)
    if limit is None or zero:
        raise WireError(f"a record of kind {kind} that doesn't exist")
    if length > limit:
        raise WireError(f"a {Kind(kind).name} record of {length} bytes, and {limit} is the limit")
    return kind, stream, length


def counts_body(counts: Iterator[tuple[int, int, int]]) -> bytes:
    """Stream, complete letters, released letters."""
    return b"".join(_COUNT.pack(*each) for each in counts)


def read_counts(body: bytes) -> Iterator[tuple[int, int, int]]:
    if len(body) % _COUNT.size:
        raise WireError(f"a COUNTS record of {len(body)} bytes")
    return _COUNT.iter_unpack(body)


_encode = msgspec.msgpack.Encoder().encode
_greeting = msgspec.msgpack.Decoder(Greeting).decode
_look = msgspec.msgpack.Decoder(Look).decode


def greeting_record(greeting: Greeting) -> bytes:
    return record(Kind.GREETING, _encode(greeting))


def look_record(kind: Kind, look: Look) -> bytes:
    return record(kind, _encode(look))


def read_greeting(body: bytes) -> Greeting:
    return _read(_greeting, body, "GREETING")


def read_look(body: bytes) -> Look:
    return _read(_look, body, "LOOK")


def _read(decode: Callable[[bytes], Said], body: bytes, what: str) -> Said:
    try:
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a {what} record that can't be read: {error}") from error
