"""Headers and frames: what goes in comes out, and whatever isn't ours is refused."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError, WireError
from fast.wire import (
    DIMENSIONS,
    HEADER_BYTES,
    HEADER_LIMIT_BYTES,
    ITEM_BYTES,
    STEPS_LIMIT,
    TAG_CHARACTERS,
    Header,
    decode_header,
    encode_frame,
    encode_header,
)

int64 = st.integers(0, 2**63 - 1)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
shapes = st.lists(st.integers(0, 2**16), max_size=3).map(tuple)
notes = st.dictionaries(st.text(max_size=8), scalars | st.lists(scalars, max_size=3), max_size=4)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """Any that is true."""
    header = Header(
        sender=draw(int64),
        tag=draw(st.text(max_size=12)),
        dtype=draw(st.sampled_from(sorted(ITEM_BYTES))),
        shape=draw(shapes),
        steps=draw(st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 9)), max_size=8)),
        view=draw(int64),
        version=draw(int64),
        weight=draw(st.floats(0, allow_nan=False, allow_infinity=False)),
        note=draw(notes),
        present=draw(st.none() | st.binary(max_size=32)),
        checksum=draw(st.none() | st.integers(0, 2**32 - 1)),
        session=draw(int64),
        life=draw(int64),
    )
    values = math.prod(header.shape)
    if draw(st.booleans()):
        header.dtype, header.codec = "uint8", ["qsgd", {"levels": draw(st.integers(1, 256))}]
        header.value_dtype, header.value_shape = draw(st.sampled_from(sorted(ITEM_BYTES))), draw(shapes)
        values = math.prod(header.value_shape)
    if draw(st.booleans()):
        start, behind = draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40))
        header.part = (start, start + values, start + values + behind)
    return header


FIELDS: dict[str, Any] = {
    "sender": 3,
    "tag": "gradient",
    "dtype": "float32",
    "shape": (1000,),
    "steps": [(7, 1)],
    "note": {"share": 0.25},
}
small = Header(**FIELDS)
ENCODED: dict[str, Any] = {
    "dtype": "uint8",
    "codec": ["fp16", {}],
    "value_dtype": "float32",
    "value_shape": (10, 50),
}


def plain(header: Header) -> list[Any]:
    """The fields in the order of the wire."""
    return [getattr(header, name) for name in Header.__struct_fields__]


def frame(
    body: bytes, payload: int = 4000, *, magic: bytes = b"FAST", version: int = 3, crc: int | None = None
) -> bytes:
    """The layout as its docstring has it, written down a second time."""
    prefix = struct.pack("<4sHHQ", magic, version, len(body), payload)
    checksum = struct.pack("<I", zlib.crc32(prefix + body) if crc is None else crc)
    blocks = math.ceil((len(prefix) + 4 + len(body)) / 256)
    return (prefix + checksum + body).ljust(256 * blocks, b"\0")


def packed(*fields: Any, payload: int = 4000) -> bytes:
    return frame(msgspec.msgpack.encode(fields), payload)


def lying(payload: int | None = None, **fields: Any) -> bytes:
    """A frame with the right checksum, made by somebody who doesn't care about bounds."""
    header = Header(**{**FIELDS, **fields})
    if payload is None:
        payload = max(0, math.prod(header.shape)) * ITEM_BYTES.get(header.dtype, 1) % 2**64
    return packed(*plain(header), payload=payload)


# There and back


@given(headers())
def test_round_trip(header: Header) -> None:
    assert decode_header(encode_header(header)) == header


@given(headers())
def test_headers_fill_whole_blocks(header: Header) -> None:
    data = encode_header(header)
    assert len(data) % HEADER_BYTES == 0
    assert len(data) <= HEADER_LIMIT_BYTES


def test_the_layout_on_the_wire() -> None:
    body = msgspec.msgpack.encode(
        [3, "gradient", "float32", [1000], [[7, 1]], 0, 0, 1.0, {"share": 0.25}, None] + [None] * 5 + [0, 0]
    )
    assert encode_header(small) == frame(body)


def test_ordinary_headers_are_one_block() -> None:
    full = {
        **FIELDS,
        "sender": 999,
        "tag": "fast.12.reduce_scatter",
        "steps": [(1_000_000, 1)],
        "view": 1000,
        "version": 1_000_000,
        "weight": 128.0,
        "note": {"share": 0.123456789, "round": 1_000_000},
        "present": bytes(20),
        "codec": ["chain", {"codecs": [["clip", {"norm": 1.5}], ["top_k", {"fraction": 0.01}]]}],
        "value_dtype": "bfloat16",
        "value_shape": (25_000_000,),
        "part": (50_000_000, 75_000_000, 100_000_000),
        "checksum": 2**32 - 1,
        "dtype": "uint8",
    }
    assert len(encode_header(small)) == len(encode_header(Header(**full))) == HEADER_BYTES == 256


def test_a_frame_is_its_header_and_its_payload_which_is_not_copied() -> None:
    payload = bytearray(range(200)) * 20
    head, body = encode_frame(small, payload)
    assert len(head) + len(body) == HEADER_BYTES + 4000
    assert decode_header(head) == msgspec.structs.replace(small, checksum=zlib.crc32(payload))
    payload[7] ^= 1
    assert body[7] == payload[7]
    assert small.checksum is None, "the header of the caller stays as it is"


def test_every_kind_of_number_has_its_size() -> None:
    for name, nbytes in ITEM_BYTES.items():
        header = Header(0, "t", name, (3, 5), [])
        assert decode_header(encode_header(header)).payload_bytes == 15 * nbytes


# What is refused


NESTED = b"\x99" + msgspec.msgpack.encode(plain(small)[:8])[1:] + b"\x81\xa1x" + b"\x91" * 3000 + b"\x90"
"""The fields up to the note, in which three thousand lists are in each other."""
NOT_OURS = {
    "empty": (b"", "announces 20 bytes and has 0"),
    "cut": (b"FAST\3\0", "announces 20 bytes and has 6"),
    "magic": (frame(b"", magic=b"GET "), "it isn't ours"),
    "version": (frame(b"", version=1), "version 1; this release reads version 3"),
    "short": (encode_header(small)[:40], "announces 256 bytes and has 40"),
    "long": (encode_header(small) + b"\0", "announces 256 bytes and has 257"),
    "garbage": (frame(b"\xc1"), "can't be read"),
    "other fields": (packed(1, 2, 3), "can't be read"),
    "map": (frame(msgspec.msgpack.encode({"sender": 1})), "can't be read"),
    "too many": (packed(*plain(small), "more"), "can't be read"),
    "too few": (packed(*plain(small)[:4]), "can't be read"),
    "checksum": (frame(msgspec.msgpack.encode(plain(small)), crc=1), "checksum is wrong"),
    "limit": (frame(b"x" * 5000), "5120 bytes, and 4096 is the limit"),
    "padding": (encode_header(small)[:-1] + b"\1", "something else than zeros"),
    "nested": (frame(NESTED), "can't be read: maximum recursion"),
    "text": (frame(msgspec.msgpack.encode(plain(small)).replace(b"gradient", b"\xff" * 8)), "can't be read"),
    "extension": (
        packed(*plain(small)[:8], {"x": msgspec.msgpack.Ext(5, b"abc")}),
        "a kind 5 that isn't ours",
    ),
}


@pytest.mark.parametrize(("data", "why"), NOT_OURS.values(), ids=NOT_OURS)
def test_what_is_not_ours_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode_header(data)


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


LIES = {
    "unknown dtype": ({"dtype": "qint8"}, "'qint8' is not one of those that travel"),
    "attribute of torch": ({"dtype": "save"}, "'save' is not one of those that travel"),
    "long dtype": ({"dtype": "f" * 500}, "not one of those that travel"),
    "negative dimension": ({"shape": (-1, -4)}, "negative dimension"),
    "many dimensions": ({"shape": (1,) * (DIMENSIONS + 1)}, "33 dimensions, and 32 is the limit"),
    "overflow": ({"shape": (2**32, 2**32)}, "no memory has room"),
    "huge": ({"shape": (2**62,)}, "no memory has room"),
    "empty overflow": ({"shape": (0, 2**62, 2**62)}, "no memory has room"),
    "long tag": ({"tag": "t" * (TAG_CHARACTERS + 1)}, "a tag of 129 characters"),
    "negative sender": ({"sender": -1}, "sender -1"),
    "negative view": ({"view": -1}, "view -1"),
    "huge version": ({"version": 2**64 - 1}, "version 18446744073709551615"),
    "weight nan": ({"weight": math.nan}, "the weight is nan"),
    "weight inf": ({"weight": math.inf}, "the weight is inf"),
    "weight negative": ({"weight": -1.0}, "the weight is -1.0"),
    "no steps": ({"steps": [(5, 0)]}, "0 steps from step 5"),
    "negative step": ({"steps": [(-5, 1)]}, "1 steps from step -5"),
    "negative count": ({"steps": [(5, -1)]}, "-1 steps from step 5"),
    "many steps": ({"steps": [(0, STEPS_LIMIT + 1)]}, "65537 updates in one letter"),
    "many in runs": ({"steps": [(0, STEPS_LIMIT), (9, 1)]}, "65537 updates in one letter"),
    "last step": ({"steps": [(2**63 - 1, 2)]}, "2 steps from"),
    "part order": ({"part": (5, 4, 1000)}, "a slice from 5 to 4 of 1000"),
    "part negative": ({"part": (-1, 999, 1000)}, "a slice from -1 to 999"),
    "part outside": ({"part": (500, 1500, 1000)}, "a slice from 500 to 1500 of 1000"),
    "part of another size": ({"part": (0, 999, 1000)}, "1000 values for the slice from 0 to 999"),
    "part of encoded": ({**ENCODED, "part": (0, 1000, 1000)}, "500 values for the slice from 0 to 1000"),
    "codec alone": ({"codec": ["fp16", {}]}, "some are there and some are missing"),
    "shape alone": ({"value_shape": (1,)}, "some are there and some are missing"),
    "encoded floats": ({**ENCODED, "dtype": "float32"}, "encoded values are bytes, not float32"),
    "encoded what": ({**ENCODED, "value_dtype": "object"}, "'object' is not one of those that travel"),
    "encoded huge": ({**ENCODED, "value_shape": (2**60, 2**60)}, "no memory has room"),
    "encoded negative": ({**ENCODED, "value_shape": (-5,)}, "negative dimension"),
    "deep note": ({"note": {"x": nested(40)}}, "more than 32 deep"),
    "deep codec": ({**ENCODED, "codec": nested(40)}, "more than 32 deep"),
    "checksum": ({"checksum": 2**32}, "is no checksum"),
}


@pytest.mark.parametrize(("fields", "why"), LIES.values(), ids=LIES)
def test_headers_that_lie_are_refused_and_can_not_be_made(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode_header(lying(**fields))
    with pytest.raises(UsageError, match=why):
        encode_header(Header(**{**FIELDS, **fields}))


@pytest.mark.parametrize("payload", [0, 3999, 4001, 10 * 2**30, 2**64 - 1])
def test_a_length_that_shape_and_dtype_do_not_give_is_refused(payload: int) -> None:
    assert decode_header(lying()).payload_bytes == 4000
    with pytest.raises(WireError, match=f"announces {payload} bytes for float32 of shape .*takes 4000"):
        decode_header(lying(payload=payload))


@pytest.mark.parametrize("header", [small, Header(**{**FIELDS, **ENCODED, "part": (0, 500, 9000)})])
def test_no_bit_of_a_header_can_be_flipped_unnoticed(header: Header) -> None:
    good = encode_header(header)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode_header(bad)


@given(headers(), st.data())
def test_a_changed_byte_never_goes_unnoticed(header: Header, data: st.DataObject) -> None:
    good = bytearray(encode_header(header))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        decode_header(bytes(good))


@given(st.binary(max_size=600))
def test_random_bytes_are_refused_as_such(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_header(data)


plain_data = st.recursive(
    scalars | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.data())
def test_bodies_of_the_right_form_are_read_or_refused(data: st.DataObject) -> None:
    """With any other field in any place: what comes back is a header that can be sent again."""
    fields = plain(small)
    for _ in range(data.draw(st.integers(1, 4))):
        fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(plain_data)
    payload = data.draw(st.sampled_from([4000, 0, 1000, 2**40]))
    try:
        found = decode_header(packed(*fields, payload=payload))
    except WireError:
        return
    assert found.payload_bytes == payload
    assert decode_header(encode_header(found)) == found


# What can't be sent


def test_notes_that_cannot_travel_are_refused_at_the_sender() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for note, why in (
        ({"what": object()}, "Notes hold numbers"),
        ({"huge": 2**70}, "Notes hold numbers"),
        ({"half a letter": "\ud800"}, "Notes hold numbers"),
        ({"endless": endless}, "lists in lists"),
        ({"long": "x" * 5000}, "4096 is the limit"),
    ):
        with pytest.raises(UsageError, match=why):
            encode_header(Header(0, "t", "float32", (), [], note=note))


def test_a_payload_of_another_size_is_refused_at_the_sender() -> None:
    with pytest.raises(UsageError, match=r"has 3999 bytes, and float32 of shape .* takes 4000"):
        encode_frame(small, bytes(3999))


def test_two_headers_do_not_share_a_note() -> None:
    first, second = Header(0, "t", "float32", (), []), Header(0, "t", "float32", (), [])
    first.note["a"] = 1
    assert second.note == {}
