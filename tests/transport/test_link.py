"""Streams of letters that outlive their connection: no socket, any portions, connections that break anywhere."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest
import torch

from fast.core import Letter
from fast.core.framing import flat_copy, header_of, letter_of
from fast.errors import WireError
from fast.transport.tcp.link import Link, Parcel, Told
from fast.transport.tcp.records import CHUNK_BYTES, PREFIX, Kind, counts_body, record

LIMIT = 1 << 30


def fresh_memory(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


def parcel_of(letter: Letter, done=lambda memory: None) -> Parcel:
    return Parcel(header_of(letter), flat_copy(letter.tensor), 1, done)


@dataclass
class End:
    """One end of a pair, with all that it has got."""

    link: Link = field(default_factory=lambda: Link(LIMIT, fresh_memory))
    got: dict[str, list[Letter]] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)

    def feed(self, data: bytes) -> None:
        while data:
            room = self.link.buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            for found in self.link.filled(count):
                if isinstance(found, Told):
                    self.told.append(found)
                    continue
                letter = letter_of(found.header, found.payload)
                self.got.setdefault(letter.tag, []).append(letter)
                self.streams[letter.tag] = found.stream


def connect(one: End, other: End) -> None:
    """As the driver does it: each side learns what the other has got."""
    counts = one.link.counts, other.link.counts
    one.link.forget_news(), other.link.forget_news()
    one.link.connect(counts[1])
    other.link.connect(counts[0])


def move(sender: End, receiver: End, nbytes: int) -> int:
    """Write up to this many bytes and let them arrive."""
    first = next(iter(sender.link.outgoing()), None)
    if first is None:
        return 0
    data = bytes(first[:nbytes])
    sender.link.wrote(len(data))
    receiver.feed(data)
    return len(data)


def drain(one: End, other: End) -> None:
    while move(one, other, 1 << 20) or move(other, one, 1 << 20):
        pass


def letter(number: int, tag: str = "tag", length: int = 3, sender: int = 0) -> Letter:
    return Letter(sender, tag, torch.full((length,), float(number)), steps=(number,))


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_or_doubled_wherever_connections_break(seed):
    """Both sides send, in several tags, letters of all sizes; bytes under way are lost with a connection."""
    draw = random.Random(seed)
    ends = End(), End()
    connect(*ends)
    sent: list[dict[str, int]] = [{}, {}]
    lengths = (0, 1, 100, 5000, CHUNK_BYTES // 4, CHUNK_BYTES // 2 + 7)
    for _ in range(400):
        side = draw.randrange(2)
        what = draw.random()
        if what < 0.35:
            tag = f"tag {draw.randrange(3)}"
            number = sent[side].get(tag, 0)
            sent[side][tag] = number + 1
            ends[side].link.post(tag, parcel_of(letter(number, tag, draw.choice(lengths), side)))
        elif what < 0.97:
            move(ends[side], ends[1 - side], draw.choice((1, 7, 300, 70_000, 1 << 20)))
        else:  # what this side has begun to write never arrives
            connect(*ends)
    connect(*ends)
    drain(*ends)
    for side, end in enumerate(ends):
        found = {tag: [int(each.steps[0]) for each in letters] for tag, letters in end.got.items()}
        assert found == {tag: list(range(count)) for tag, count in sent[1 - side].items()}
        for each in (each for letters in end.got.values() for each in letters):
            assert each.tensor.eq(float(each.steps[0])).all()
        assert end.link.idle and not end.link.unsent


def test_memory_of_a_letter_is_given_back_when_all_peers_have_it():
    given = []
    pairs = [(End(), End()), (End(), End())]
    shared = Parcel(header_of(letter(1)), flat_copy(letter(1).tensor), 2, given.append)
    for one, other in pairs:
        connect(one, other)
        one.link.post("tag", shared)
    drain(*pairs[0])
    assert given == []
    drain(*pairs[1])
    assert given == [shared.payload]


def test_a_peer_tells_how_many_letters_it_has_released():
    one, other = End(), End()
    connect(one, other)
    for number in range(3):
        one.link.post("tag", parcel_of(letter(number)))
    drain(one, other)
    assert (one.link.unread("tag"), one.link.unsent) == (3, False)
    other.link.release(other.streams["tag"])
    connect(one, other)  # what was to be told is told on the next connection
    drain(one, other)
    assert one.link.unread("tag") == 2 and one.link.unread("another") == 0


def test_small_letters_and_news_dont_wait_behind_a_large_one():
    one, other = End(), End()
    connect(one, other)
    one.link.post("large", parcel_of(letter(0, "large", 2_000_000)))
    move(one, other, 1 << 20)  # the first portion is on its way
    one.link.post("small", parcel_of(letter(7, "small")))
    one.link.tell(record(Kind.BEATS, b"\x90"))
    for _ in range(4):
        move(one, other, 1 << 20)
    assert [each.steps for each in other.got["small"]] == [(7,)] and "large" not in other.got
    assert [each.kind for each in other.told] == [Kind.BEATS]
    drain(one, other)
    assert len(other.got["large"]) == 1


def test_large_letters_of_several_tags_take_turns():
    one, other = End(), End()
    connect(one, other)
    for tag in ("a", "b"):
        one.link.post(tag, parcel_of(letter(0, tag, 4 * CHUNK_BYTES)))
    order = []
    while move(one, other, 1 << 30):
        order += [tag for tag in other.got if tag not in order]
        if not order:
            begun = [stream.filled for stream in other.link._in.values()]
            assert max(begun) - min(begun) <= CHUNK_BYTES or len(begun) < 2
    assert order == ["a", "b"]


def honest_start(end: End) -> None:
    end.link.connect({})
    end.feed(record(Kind.TAG, b"tag", 0))


def a_header(**changes) -> bytes:
    from msgspec.structs import replace

    from fast.wire import encode_header

    return encode_header(replace(header_of(letter(1)), checksum=1, **changes))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (record(Kind.GREETING, b"\x90"), "greets a second time"),
        (PREFIX.pack(77, 0, 0, 0), "kind 77"),
        (PREFIX.pack(Kind.TAG, 1, 0, 0), "doesn't exist"),
        (PREFIX.pack(Kind.DATA, 0, 0, CHUNK_BYTES + 1), "is the limit"),
        (PREFIX.pack(Kind.LETTER, 0, 0, 1 << 31), "is the limit"),
        (record(Kind.DATA, b"1234", 0), "where no letter has begun"),
        (record(Kind.DATA, b"1234", 9), "where no letter has begun"),
        (record(Kind.LETTER, a_header(), 9), "has no tag"),
        (record(Kind.LETTER, a_header(), 0) * 2, "another one under way"),
        (record(Kind.LETTER, a_header(tag="other"), 0), "in the stream of"),
        (record(Kind.LETTER, b"x" * 256, 0), "begins with"),
        (record(Kind.LETTER, a_header(), 0) + record(Kind.DATA, b"1" * 13, 0), "of a letter that lacks 12"),
        (record(Kind.LETTER, a_header(), 0) + PREFIX.pack(Kind.DATA, 0, 0, 0), "sends 0 bytes"),
        (record(Kind.LETTER, a_header(), 0) + record(Kind.DATA, b"1" * 12, 0), "checksum is wrong"),
        (record(Kind.LETTER, a_header(shape=(1 << 40,)), 0), "is the limit here"),
        (record(Kind.TAG, b"\xff", 1), "isn't text"),
        (record(Kind.TAG, b"x" * 200, 1), "too long"),
        (record(Kind.TAG, b"gat", 0), "is now to have"),
        (record(Kind.COUNTS, counts_body(iter([(0, 1, 0)]))), "which doesn't exist"),
        (record(Kind.COUNTS, b"123"), "a COUNTS record of 3 bytes"),
        (record(Kind.LOOK, b"\xc1"), "can't be read"),
    ],
)
def test_what_cant_be_true_is_refused(data, why):
    end = End()
    honest_start(end)
    with pytest.raises(WireError, match=why):
        end.feed(data)


@pytest.mark.parametrize(("got", "released"), [(3, 0), (1, 2), (0, 0)])
def test_counts_that_cant_be_true_are_refused(got, released):
    """More than was sent, more released than got, fewer than before."""
    end = End()
    end.link.connect({})
    for number in range(2):
        end.link.post("tag", parcel_of(letter(number)))
    while end.link.outgoing():
        end.link.wrote(len(end.link.outgoing()[0]))
    end.feed(record(Kind.COUNTS, counts_body(iter([(0, 1, 0)]))))
    with pytest.raises(WireError, match="it says that it has"):
        end.feed(record(Kind.COUNTS, counts_body(iter([(0, got, released)]))))


def test_letters_that_were_not_written_yet_cant_be_confirmed():
    end = End()
    end.link.connect({})
    end.link.post("tag", parcel_of(letter(0)))
    with pytest.raises(WireError, match="not sent to it yet"):
        end.feed(record(Kind.COUNTS, counts_body(iter([(0, 1, 0)]))))


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_refused_or_wait_for_more(seed):
    """Honest traffic with flipped bytes: a WireError, or letters as they were sent; never anything else."""
    draw = random.Random(seed)
    one, other = End(), End()
    connect(one, other)
    for number in range(5):
        one.link.post("tag", parcel_of(letter(number, length=50)))
    data = bytearray()
    while one.link.outgoing():
        data += one.link.outgoing()[0]
        one.link.wrote(len(one.link.outgoing()[0]))
    for _ in range(60):
        torn = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            torn[draw.randrange(len(torn))] ^= 1 << draw.randrange(8)
        victim = End()
        victim.link.connect({})
        with contextlib.suppress(WireError):
            victim.feed(bytes(torn))
        for each in victim.got.get("tag", ()):
            assert each.tensor.eq(float(each.steps[0])).all()


def test_an_arrived_letter_has_memory_of_its_own():
    one, other = End(), End()
    connect(one, other)
    one.link.post("tag", parcel_of(letter(1, length=CHUNK_BYTES)))
    one.link.post("tag", parcel_of(letter(2, length=CHUNK_BYTES)))
    drain(one, other)
    first, second = other.got["tag"]
    assert first.tensor.data_ptr() != second.tensor.data_ptr()
