"""Headers: what goes in comes out, and whatever isn't ours is refused."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError, WireError
from fast.wire import HEADER_BYTES, HEADER_LIMIT_BYTES, Header, decode_header, encode_header

int64 = st.integers(0, 2**63 - 1)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
headers = st.builds(
    Header,
    sender=st.integers(0, 10_000),
    tag=st.text(max_size=12),
    dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
    shape=st.lists(int64, max_size=3).map(tuple),
    steps=st.lists(st.tuples(int64, int64), max_size=8),
    view=int64,
    version=int64,
    weight=st.floats(allow_nan=False),
    note=st.dictionaries(st.text(max_size=8), scalars | st.lists(scalars, max_size=3), max_size=4),
    present=st.none() | st.binary(max_size=32),
)
small = Header(sender=3, tag="gradient", dtype="float32", shape=(1000,), steps=[(7, 1)], note={"share": 0.25})


def frame(body: bytes, *, magic: bytes = b"FAST", version: int = 1, crc: int | None = None) -> bytes:
    """The layout as its docstring has it, written down a second time."""
    checksum = zlib.crc32(body) if crc is None else crc
    return struct.pack("<4sHHI", magic, version, len(body), checksum) + body


@given(headers)
def test_round_trip(header: Header) -> None:
    assert decode_header(encode_header(header)) == header


def test_an_ordinary_header_is_one_block() -> None:
    assert len(encode_header(small)) == HEADER_BYTES == 256


@given(headers)
def test_headers_fill_whole_blocks(header: Header) -> None:
    data = encode_header(header)
    assert len(data) % HEADER_BYTES == 0
    assert len(data) <= HEADER_LIMIT_BYTES


def test_the_layout_on_the_wire() -> None:
    body = msgspec.msgpack.encode(
        [3, "gradient", "float32", [1000], [[7, 1]], 0, 0, 1.0, {"share": 0.25}, None]
    )
    assert encode_header(small) == frame(body).ljust(256, b"\0")


def test_reads_from_a_memoryview_with_a_payload_behind() -> None:
    assert decode_header(memoryview(encode_header(small) + b"payload")) == small


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "too short"),
        (b"FAST\1\0", "too short"),
        (frame(b"", magic=b"GET "), "it isn't ours"),
        (frame(b"", version=2), "version 2; this release reads version 1"),
        (encode_header(small)[:40], "announces"),
        (frame(b"\xc1"), "can't be read"),
        (frame(msgspec.msgpack.encode([1, 2, 3])), "can't be read"),
        (frame(msgspec.msgpack.encode({"sender": 1})), "can't be read"),
        (
            frame(msgspec.msgpack.encode([0, "t", "float32", [], [], 0, 0, 1.0, {}, None, "more"])),
            "can't be read",
        ),
        (frame(msgspec.msgpack.encode([0, "t", "float32", [], []]), crc=1), "checksum is wrong"),
    ],
    ids=["empty", "cut", "magic", "version", "length", "garbage", "few", "map", "many", "crc"],
)
def test_what_is_not_ours_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode_header(data)


@given(headers, st.data())
def test_a_changed_byte_never_goes_unnoticed(header: Header, data: st.DataObject) -> None:
    good = bytearray(encode_header(header))
    end = struct.calcsize("<4sHHI") + struct.unpack_from("<4sHHI", good)[2]
    place = data.draw(st.integers(0, end - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        decode_header(bytes(good))


@given(st.binary(max_size=64))
def test_random_bytes_are_refused_as_such(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_header(data)


def test_notes_that_cannot_travel_are_refused_at_the_sender() -> None:
    with pytest.raises(UsageError, match=r"Notes hold numbers"):
        encode_header(Header(0, "t", "float32", (), (), note={"what": object()}))
    with pytest.raises(UsageError, match=r"Notes hold numbers"):
        encode_header(Header(0, "t", "float32", (), (), note={"huge": 2**70}))
    with pytest.raises(UsageError, match=r"4096 is the limit"):
        encode_header(Header(0, "t", "float32", (), (), note={"long": "x" * 5000}))


def test_two_headers_do_not_share_a_note() -> None:
    first, second = Header(0, "t", "float32", (), ()), Header(0, "t", "float32", (), ())
    first.note["a"] = 1
    assert second.note == {}
