"""Frames from a stream: in any portions, and nothing is believed before it is there."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import WireError
from fast.wire import HEADER_BYTES, Frame, FrameReader, Header, decode_header, encode_frame, encode_header

LIMIT = 1 << 20


def frame(tag: str, payload: bytes, **note: int) -> bytes:
    head, body = encode_frame(Header(1, tag, "uint8", (len(payload),), [(0, 1)], note=note), payload)
    return head + body


def plain(frames: list[Frame]) -> list[tuple[str, bytes]]:
    return [(header.tag, bytes(payload)) for header, payload in frames]


def read(reader: FrameReader, data: bytes) -> list[tuple[str, bytes]]:
    return plain(list(reader.feed(data)))


def portions(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


LETTERS = [("a", b""), ("b", b"x"), ("", bytes(range(256)) * 3), ("a", b"last")]
STREAM = b"".join(frame(*letter) for letter in LETTERS)


# What comes out


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_frames_come_out_whatever_the_portions(cuts: list[int]) -> None:
    reader = FrameReader(LIMIT)
    assert [letter for data in portions(STREAM, cuts) for letter in read(reader, data)] == LETTERS
    reader.finish()


def test_each_frame_comes_with_its_last_byte() -> None:
    reader, due, at = FrameReader(LIMIT), {}, 0
    for tag, payload in LETTERS:
        at += HEADER_BYTES + len(payload)
        due[at] = (tag, payload)
    for place in range(len(STREAM)):
        found = read(reader, STREAM[place : place + 1])
        assert found == ([due[place + 1]] if place + 1 in due else [])


@given(st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=700)), max_size=5), st.data())
def test_any_letters_in_any_portions(letters: list[tuple[str, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frame(tag, payload, number=k) for k, (tag, payload) in enumerate(letters))
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=8))
    reader = FrameReader(1000)
    frames = [each for portion in portions(stream, cuts) for each in reader.feed(portion)]
    assert plain(frames) == letters
    assert [header.note for header, _ in frames] == [{"number": k} for k in range(len(letters))]


def test_payloads_are_memory_of_their_own() -> None:
    """The caller may use its buffer again, and a reader may write into what it got."""
    reader, buffer = FrameReader(LIMIT), bytearray(frame("a", b"one") + frame("b", b"two"))
    (_, one), (_, two) = reader.feed(buffer)
    buffer[:] = bytes(len(buffer))
    one[0] = ord("O")
    assert (bytes(one), bytes(two)) == (b"One", b"two")


def test_feeding_does_not_wait_for_somebody_to_look() -> None:
    reader = FrameReader(LIMIT)
    first = reader.feed(STREAM[:300])
    second = reader.feed(STREAM[300:])
    assert plain([*first, *second]) == LETTERS


# What is refused


def refused(reader: FrameReader, data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        list(reader.feed(data))


@pytest.mark.parametrize(
    ("begun", "at", "why"),
    [
        (b"GET / HTTP/1.1", 1, "it isn't ours"),
        (b"FASt and furious", 4, "it isn't ours"),
        (b"FAST\1\0" + bytes(20), 6, "version 1"),
        (b"FAST\3\0" + b"\xff\xff" + bytes(20), 20, "65792 bytes, and 4096 is the limit"),
        (b"FAST\3\0\x40\0" + (10 * 2**30).to_bytes(8, "little") + bytes(9), 20, "announces 10737418240"),
    ],
    ids=["byte", "magic", "version", "header", "payload"],
)
def test_what_can_be_known_at_once_is_refused_at_once(begun: bytes, at: int, why: str) -> None:
    """With the very byte that makes it certain."""
    assert list(FrameReader(LIMIT).feed(begun[: at - 1])) == []
    refused(FrameReader(LIMIT), begun[:at], why)


def test_a_header_is_refused_before_its_payload_comes() -> None:
    head, _ = encode_frame(Header(1, "t", "uint8", (9000,), []), bytes(9000))
    refused(FrameReader(LIMIT), head[:30] + bytes([head[30] ^ 1]) + head[31:], "checksum is wrong")
    refused(FrameReader(LIMIT), encode_header(Header(1, "t", "uint8", (9000,), [])), "without the checksum")
    refused(FrameReader(8999), head, "announces 9000 bytes, and 8999 is the limit here")
    assert list(FrameReader(9000).feed(head)) == []


def test_after_a_refusal_nothing_is_read_any_more() -> None:
    reader = FrameReader(LIMIT)
    assert read(reader, frame("a", b"fine")) == [("a", b"fine")]
    refused(reader, b"nonsense", "it isn't ours")
    for _ in range(2):
        with pytest.raises(WireError, match=r"isn't read any more: .*it isn't ours"):
            reader.feed(frame("a", b"fine"))
        with pytest.raises(WireError, match="it isn't ours"):
            reader.finish()


def test_frames_before_a_refused_one_are_not_lost() -> None:
    frames = FrameReader(LIMIT).feed(frame("a", b"one") + frame("b", b"two") + b"nonsense")
    assert plain([next(frames), next(frames)]) == [("a", b"one"), ("b", b"two")]
    with pytest.raises(WireError, match="it isn't ours"):
        next(frames)


def test_an_end_in_the_middle_of_a_frame_is_noticed() -> None:
    whole = frame("a", b"payload")
    for size in range(1, len(whole)):
        reader = FrameReader(LIMIT)
        assert read(reader, whole[:size]) == []
        missing = (20 if size < 20 else HEADER_BYTES if size < HEADER_BYTES else len(whole)) - size
        with pytest.raises(WireError, match=f"in the middle of a frame; {missing} bytes are missing"):
            reader.finish()
    FrameReader(LIMIT).finish()


def read_all(data: bytes, portion: int) -> None:
    """To the end, without any frame on the way."""
    reader = FrameReader(LIMIT)
    for at in range(0, len(data), portion):
        assert list(reader.feed(data[at : at + portion])) == []
    reader.finish()


@pytest.mark.parametrize("portion", [10**6, 7])
def test_no_bit_of_a_frame_can_be_flipped_unnoticed(portion: int) -> None:
    """Header, padding and payload; a frame that got longer by it is noticed at the end at the latest."""
    good = frame("gradient", bytes(range(60)), step=5)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            read_all(bytes(bad), portion)


# Memory


def announcing(nbytes: int) -> bytes:
    """A sound header for a payload that will never come."""
    header = Header(1, "t", "uint8", (nbytes,), [], checksum=0)
    data = encode_header(header)
    assert decode_header(data).payload_bytes == nbytes
    return data


def peak_of(portions: list[bytes], limit_bytes: int) -> int:
    reader = FrameReader(limit_bytes)
    tracemalloc.start()
    try:
        for portion in portions:
            assert list(reader.feed(portion)) == []
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_ten_gigabytes_announced_and_ten_bytes_sent_take_no_memory() -> None:
    assert peak_of([announcing(10 * 2**30), b"0123456789"], 2**40) < 20_000


def test_memory_grows_with_what_has_come_and_no_further() -> None:
    """By an eighth at most, and what is fed at the moment."""
    came, portion = 0, bytes(64 * 1024)
    for count in (1, 10, 100):
        came = count * len(portion)
        assert peak_of([announcing(10 * 2**30), *[portion] * count], 2**40) < 1.2 * came + 20_000


def test_a_refused_stream_keeps_no_memory() -> None:
    reader = FrameReader(2**40)
    tracemalloc.start()
    try:
        whole = announcing(2**20) + b"x" * 2**20
        refused(reader, whole, "checksum is wrong")
        del whole
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()
