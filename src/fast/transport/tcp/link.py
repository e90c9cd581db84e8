"""The way between two participants, without any I/O: streams of letters that outlive their connection.

Every letter has a number in its stream, one stream per tag. A receiver tells how many it has got
completely and how many it has released; both only grow, so saying them twice or late does no harm.
A letter is kept here until it has been got. When a connection is lost, the next one begins with the
numbers that have been got, and goes on behind them: nothing is lost, and nothing comes twice.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, final

import torch
from torch import Tensor

from fast.errors import WireError
from fast.transport.tcp.records import (
    CHUNK_BYTES,
    PREFIX,
    Kind,
    Look,
    counts_body,
    look_record,
    prefix_of,
    read_counts,
    read_look,
    record,
)
from fast.wire import TAG_CHARACTERS, Header, decode_header, encode_frame

_SMALL_BYTES = 16 << 10
"""Letters up to this size are written whole, several in one go; larger ones in turn, in portions."""
_STAGING_BYTES = 64 << 10
_STREAMS = 4096


@final
class Parcel:
    """A letter on its way to one peer or several: its header and a copy of its values."""

    def __init__(self, header: Header, payload: Tensor, peers: int, done: Callable[[Tensor], None]) -> None:
        self.payload, self._peers, self._done = payload, peers, done
        self.encoded, self.memory = encode_frame(header, memoryview(payload.numpy()))  # type: ignore[arg-type]

    def got(self) -> None:
        """One of the peers has it; after the last one its memory is used again."""
        self._peers -= 1
        if not self._peers:
            self._done(self.payload)


class Arrived(NamedTuple):
    """A letter is complete."""

    stream: int
    header: Header
    payload: Tensor


class Told(NamedTuple):
    """The other end says something that isn't a letter."""

    kind: Kind
    body: bytes


@final
class _Out:
    """The letters of one tag that go to this peer."""

    def __init__(self, number: int, tag: str) -> None:
        self.number, self.tag = number, tag
        self.posted = self.got = self.released = 0
        self.kept: deque[Parcel] = deque()
        """Letters that the peer has not got: number `got` + 1 and the following ones."""
        self.begin()

    def begin(self) -> None:
        """A connection begins: everything that is kept is written again."""
        self.named, self.at, self.offset = False, 0, -1

    @property
    def next(self) -> Parcel | None:
        """The letter that is being written or comes next."""
        return self.kept[self.at] if self.at < len(self.kept) else None

    def confirm(self, got: int, released: int) -> list[Parcel]:
        if not self.got <= got <= self.posted or not self.released <= released <= got:
            raise WireError(
                f"it says that it has {got} letters {self.tag!r} and has released {released}; "
                f"{self.posted} were sent"
            )
        gone = [self.kept.popleft() for _ in range(got - self.got)]
        self.at -= len(gone)
        if self.at < 0:
            raise WireError(f"it says that it has letters {self.tag!r} that were not sent to it yet")
        self.got, self.released = got, released
        return gone


@final
class _In:
    """The letters of one tag that come from this peer."""

    def __init__(self, tag: str) -> None:
        self.tag, self.got, self.released = tag, 0, 0
        self.drop()

    def drop(self) -> None:
        """Forget the letter that is half there: its sender begins it anew."""
        self.header: Header | None = None
        self.payload, self.memory = torch.empty(0), memoryview(b"")
        self.filled = self.checksum = 0


@final
class Link:
    """One participant's end."""

    def __init__(self, limit_bytes: int, memory: Callable[[int], Tensor]) -> None:
        self._limit_bytes, self._memory = limit_bytes, memory
        self._out: dict[str, _Out] = {}
        self._by_number: list[_Out] = []
        self._turns: deque[_Out] = deque()
        """Streams that have something to write, the next one first."""
        self._in: dict[int, _In] = {}
        self._news: deque[bytes] = deque()
        self._changed: set[int] = set()
        """Streams of the peer whose counts it has to be told."""
        self._writing: deque[memoryview] = deque()
        """What was begun to be written: it stays as it is, whatever comes meanwhile."""
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start_reading()
        self.received = 0
        """All letters that have come completely."""

    # Letters out

    def unread(self, tag: str) -> int:
        """The letters of this tag that the peer has not released."""
        out = self._out.get(tag)
        return 0 if out is None else out.posted - out.released

    @property
    def unsent(self) -> bool:
        """Whether the peer doesn't have all letters yet."""
        return any(out.kept for out in self._by_number)

    @property
    def idle(self) -> bool:
        """Whether the peer has all letters, and all that was to be said is written."""
        return not (self.unsent or self._news or self._writing)

    @property
    def sent(self) -> int:
        """All letters that were posted."""
        return sum(out.posted for out in self._by_number)

    def post(self, tag: str, parcel: Parcel) -> None:
        out = self._out.get(tag)
        if out is None:
            out = self._out[tag] = _Out(len(self._by_number), tag)
            self._by_number.append(out)
        out.posted += 1
        if out.next is None:
            self._turns.append(out)
        out.kept.append(parcel)

    def tell(self, news: bytes) -> None:
        """A record that goes before all letters."""
        self._news.append(news)

    def look(self, look: Look) -> None:
        self.tell(look_record(Kind.LOOK, look))

    # A connection begins and ends

    @property
    def counts(self) -> dict[int, int]:
        """Complete letters by the peer's stream, for the greeting."""
        return {number: stream.got for number, stream in self._in.items()}

    def connect(self, got: Mapping[int, int], first: bytes = b"") -> None:
        """A connection begins with a peer that has got these letters; `first` goes before everything."""
        self._start_reading()
        self._writing.clear()
        if first:
            self._writing.append(memoryview(first))
        self._turns.clear()
        for stream in self._in.values():
            stream.drop()
        self._changed = set(self._in)
        for number, count in got.items():
            if not 0 <= number < len(self._by_number):
                raise WireError(f"it says that it has letters of stream {number}, which doesn't exist")
            self._resume(self._by_number[number], count)
        for out in self._by_number:
            out.begin()
            if out.next is not None:
                self._turns.append(out)

    def _resume(self, out: _Out, got: int) -> None:
        out.at = len(out.kept)  # the last connection may have written all of them
        for parcel in out.confirm(got, out.released):
            parcel.got()

    def forget_news(self) -> None:
        """A connection is lost: what was to be said is said anew on the next one."""
        self._news.clear()

    # Writing

    def outgoing(self) -> Iterable[memoryview]:
        """What is to be written next; empty if there is nothing."""
        if not self._writing:
            self._gather()
        return self._writing

    def wrote(self, nbytes: int) -> None:
        while nbytes:
            first = self._writing[0]
            if nbytes < len(first):
                self._writing[0] = first[nbytes:]
                return
            nbytes -= len(first)
            self._writing.popleft()

    def _gather(self) -> None:
        """News first, then small letters, then one portion of a large one: streams take turns."""
        parts = [*self._news]
        self._news.clear()
        if self._changed:
            known = ((n, self._in[n].got, self._in[n].released) for n in sorted(self._changed))
            parts.append(record(Kind.COUNTS, counts_body(known)))
            self._changed.clear()
        room, portion = CHUNK_BYTES, None
        for _ in range(len(self._turns)):
            out = self._turns.popleft()
            while room > 0 and (parcel := out.next) is not None and parcel.payload.numel() <= _SMALL_BYTES:
                self._begin(out, parcel, parts)
                parts.append(record_of(parcel.memory, out.number))
                room -= _SMALL_BYTES + parcel.payload.numel()
                out.at += 1
            if out.next is not None and portion is None and room > 0:
                portion = self._portion(out, out.next, parts)
            if out.next is not None:
                self._turns.append(out)
            if room <= 0 or portion is not None:
                break
        if parts:
            self._writing.append(memoryview(b"".join(parts)))
        if portion is not None:
            self._writing.append(portion)

    def _begin(self, out: _Out, parcel: Parcel, parts: list[bytes]) -> None:
        if not out.named:
            parts.append(record(Kind.TAG, out.tag.encode(), out.number))
            out.named = True
        parts.append(record(Kind.LETTER, parcel.encoded, out.number))

    def _portion(self, out: _Out, parcel: Parcel, parts: list[bytes]) -> memoryview:
        """The next portion of a large letter, straight from its memory."""
        if out.offset < 0:
            self._begin(out, parcel, parts)
            out.offset = 0
        portion = parcel.memory[out.offset : out.offset + CHUNK_BYTES]
        parts.append(PREFIX.pack(Kind.DATA, 0, out.number, len(portion)))
        out.offset += len(portion)
        if out.offset == len(parcel.memory):
            out.at, out.offset = out.at + 1, -1
        return portion

    # Reading

    def _start_reading(self) -> None:
        self._begun = self._ended = 0
        self._data: _In | None = None
        self._missing = 0
        """Bytes of the DATA record under way that have not come, of the stream `_data`."""
        self._stream = 0

    def buffer(self) -> memoryview:
        """Where the next bytes belong: in a letter's own memory, or in between."""
        if self._data is not None and self._begun == self._ended:
            return self._data.memory[self._data.filled : self._data.filled + self._missing]
        if self._begun:
            rest = self._staging[self._begun : self._ended].tobytes()
            self._staging[: len(rest)] = rest
            self._begun, self._ended = 0, len(rest)
        return self._staging[self._ended :]

    def filled(self, nbytes: int) -> list[Arrived | Told]:
        """So many bytes have come into `buffer`. What is complete with them, or WireError."""
        found: list[Arrived | Told] = []
        if self._data is not None and self._begun == self._ended:
            self._took(nbytes, found)
            return found
        self._ended += nbytes
        while self._step(found):
            pass
        return found

    def _step(self, found: list[Arrived | Told]) -> bool:
        """Use up a record, or a part of a payload; False if more bytes are needed."""
        waiting = self._ended - self._begun
        if self._data is not None:
            portion = min(waiting, self._missing)
            if not portion:
                return False
            stream = self._data
            stream.memory[stream.filled : stream.filled + portion] = self._staging[
                self._begun : self._begun + portion
            ]
            self._begun += portion
            self._took(portion, found)
            return True
        if waiting < PREFIX.size:
            return False
        kind, number, length = prefix_of(self._staging[self._begun : self._begun + PREFIX.size])
        if kind == Kind.DATA:
            self._begun += PREFIX.size
            self._expect(number, length)
            return True
        if waiting < PREFIX.size + length:
            if PREFIX.size + length > len(self._staging):
                self._grow(PREFIX.size + length)
            return False
        body = self._staging[self._begun + PREFIX.size : self._begun + PREFIX.size + length].tobytes()
        self._begun += PREFIX.size + length
        self._take(Kind(kind), number, body, found)
        return True

    def _grow(self, nbytes: int) -> None:
        """For a long record that isn't data; news of thousands of participants, for example."""
        larger = memoryview(bytearray(nbytes))
        waiting = self._ended - self._begun
        larger[:waiting] = self._staging[self._begun : self._ended]
        self._staging, self._begun, self._ended = larger, 0, waiting

    def _expect(self, number: int, length: int) -> None:
        stream = self._in.get(number)
        if stream is None or stream.header is None:
            raise WireError(f"it sends data of stream {number}, where no letter has begun")
        if length > len(stream.memory) - stream.filled or not length:
            raise WireError(
                f"it sends {length} bytes of a letter that lacks {len(stream.memory) - stream.filled}"
            )
        self._data, self._missing, self._stream = stream, length, number

    def _took(self, nbytes: int, found: list[Arrived | Told]) -> None:
        stream = self._data
        assert stream is not None
        stream.checksum = zlib.crc32(stream.memory[stream.filled : stream.filled + nbytes], stream.checksum)
        stream.filled += nbytes
        self._missing -= nbytes
        if not self._missing:
            self._data = None
            self._complete(self._stream, stream, found)

    def _complete(self, number: int, stream: _In, found: list[Arrived | Told]) -> None:
        header = stream.header
        if header is None or stream.filled < header.payload_bytes:
            return
        if header.checksum != stream.checksum:
            raise WireError(
                f"the payload of letter {header.tag!r} was changed on its way: its checksum is wrong"
            )
        found.append(Arrived(number, header, stream.payload))
        stream.got += 1
        self.received += 1
        self._changed.add(number)
        stream.drop()

    def _take(self, kind: Kind, number: int, body: bytes, found: list[Arrived | Told]) -> None:
        match kind:
            case Kind.TAG:
                self._name(number, body)
            case Kind.LETTER:
                self._begin_letter(number, body, found)
            case Kind.COUNTS:
                for stream, got, released in read_counts(body):
                    if stream >= len(self._by_number):
                        raise WireError(f"it counts letters of stream {stream}, which doesn't exist")
                    for parcel in self._by_number[stream].confirm(got, released):
                        parcel.got()
                found.append(Told(kind, b""))
            case Kind.GREETING:
                raise WireError("it greets a second time")
            case Kind.LOOK | Kind.NOTHING:
                read_look(body)
                found.append(Told(kind, body))
            case _:
                found.append(Told(kind, body))

    def _name(self, number: int, body: bytes) -> None:
        try:
            tag = body.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"a tag that isn't text: {error}") from error
        stream = self._in.get(number)
        if len(tag) > TAG_CHARACTERS or (stream is None and len(self._in) >= _STREAMS):
            raise WireError(f"too long or one too many: the tag {tag[:40]!r} of stream {number}")
        if stream is None:
            self._in[number] = _In(tag)
        elif stream.tag != tag:
            raise WireError(f"stream {number} has the tag {stream.tag!r} and is now to have {tag!r}")

    def _begin_letter(self, number: int, body: bytes, found: list[Arrived | Told]) -> None:
        stream = self._in.get(number)
        if stream is None or stream.header is not None:
            raise WireError(f"a letter begins in stream {number}, which has no tag or another one under way")
        header = decode_header(body)
        if header.tag != stream.tag:
            raise WireError(f"a letter {header.tag!r} in the stream of {stream.tag!r}")
        if header.payload_bytes > self._limit_bytes:
            raise WireError(
                f"a letter {header.tag!r} announces {header.payload_bytes} bytes, and {self._limit_bytes} "
                "is the limit here"
            )
        stream.header = header
        stream.payload = self._memory(header.payload_bytes)
        stream.memory = memoryview(stream.payload.numpy())  # type: ignore[arg-type]
        if not header.payload_bytes:
            self._complete(number, stream, found)

    # Letters that are used up

    def release(self, stream: int) -> None:
        """The oldest letter of this stream that wasn't released is used up."""
        self._in[stream].released += 1
        self._changed.add(stream)


def record_of(payload: memoryview, stream: int) -> bytes:
    """The DATA record of a small letter; an empty one has none."""
    return record(Kind.DATA, payload.tobytes(), stream) if len(payload) else b""
