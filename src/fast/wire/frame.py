"""The header of a frame: fixed size, versioned, with a checksum.

    magic 4 | version 2 | body length 2 | crc32 of the body 4 | body (msgpack) | zeros

A header fills a whole number of blocks of 256 bytes, nearly always one, so that the bytes of a
letter are a formula: payload + 256. The payload travels beside it, untouched.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from fast.errors import UsageError, WireError

HEADER_BYTES = 256
HEADER_LIMIT_BYTES = 4096
_PREFIX = struct.Struct("<4sHHI")
_MAGIC = b"FAST"
_VERSION = 1


class Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a frame says about its payload."""

    sender: int
    tag: str
    dtype: str
    shape: tuple[int, ...]
    steps: list[tuple[int, int]]
    """Runs of steps: the first, and how many."""
    view: int = 0
    version: int = 0
    weight: float = 1.0
    note: dict[str, Any] = {}
    present: bytes | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode_header(header: Header) -> bytes:
    """As bytes, padded to whole blocks."""
    try:
        body = _encoder.encode(header)
    except (TypeError, OverflowError) as error:
        raise UsageError(
            f"the note {header.note!r} of letter {header.tag!r} can't be sent: {error}. "
            "Notes hold numbers, strings, booleans and lists of them; tensors go into the letter itself."
        ) from error
    total = -(-(_PREFIX.size + len(body)) // HEADER_BYTES) * HEADER_BYTES
    if total > HEADER_LIMIT_BYTES:
        raise UsageError(
            f"the header of letter {header.tag!r} would take {total} bytes, and {HEADER_LIMIT_BYTES} is the "
            "limit. Put large data into the tensor, not into the note."
        )
    prefix = _PREFIX.pack(_MAGIC, _VERSION, len(body), zlib.crc32(body))
    return (prefix + body).ljust(total, b"\0")


def decode_header(data: bytes | memoryview) -> Header:
    """Back from bytes, or WireError."""
    if len(data) < _PREFIX.size:
        raise WireError(f"a header of {len(data)} bytes is too short; it needs at least {_PREFIX.size}")
    magic, version, length, checksum = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise WireError(f"a frame begins with {bytes(magic)!r}, not with {_MAGIC!r}: it isn't ours")
    if version != _VERSION:
        raise WireError(f"a frame of version {version}; this release reads version {_VERSION}")
    body = bytes(data[_PREFIX.size : _PREFIX.size + length])
    if len(body) != length:
        raise WireError(f"a header announces {length} bytes and has {len(body)}")
    if zlib.crc32(body) != checksum:
        raise WireError("a header's checksum is wrong: it was changed on its way")
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise WireError(f"a header can't be read: {error}") from error
