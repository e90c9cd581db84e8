"""Frames: a header of whole blocks, versioned and with a checksum, and the payload behind it.

    magic 4 | version 2 | body length 2 | payload length 8 | crc32 of all that and the body 4
    body (msgpack) | zeros to the end of the block | payload

A header fills a whole number of blocks of 256 bytes, nearly always one, so that the bytes of a
letter are a formula: payload + 256. The payload is never touched. In shared memory it lies in a
slot beside the header and needs no checksum; in a stream the header has its crc32, so there is no
bit in a frame that can be flipped without notice.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from fast.errors import UsageError, WireError
from fast.wire.header import Header, fault_of

HEADER_BYTES = 256
HEADER_LIMIT_BYTES = 4096
PREFIX_BYTES = 20
_PREFIX = struct.Struct("<4sHHQ")
_MAGIC = b"FAST"
_VERSION = 3


def encode_header(header: Header) -> bytes:
    """As bytes, padded to whole blocks."""
    fault = fault_of(header)
    if fault:
        raise UsageError(f"letter {header.tag[:40]!r} can't be sent: {fault}")
    body = _encoded(header)
    total = _whole_blocks(PREFIX_BYTES + len(body))
    if total > HEADER_LIMIT_BYTES:
        raise UsageError(
            f"the header of letter {header.tag!r} would take {total} bytes, and {HEADER_LIMIT_BYTES} is the "
            "limit. Put large data into the tensor, not into the note."
        )
    prefix = _PREFIX.pack(_MAGIC, _VERSION, len(body), header.payload_bytes)
    return b"".join((prefix, _crc(prefix, body).to_bytes(4, "little"), body)).ljust(total, b"\0")


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """Back from bytes, or WireError. The payload is not among them."""
    data = bytes(data)
    total, payload_bytes = announced(data)
    if len(data) != total:
        raise WireError(f"a header announces {total} bytes and has {len(data)}")
    end = PREFIX_BYTES + int.from_bytes(data[6:8], "little")
    body = data[PREFIX_BYTES:end]
    if _crc(data[: _PREFIX.size], body) != int.from_bytes(data[_PREFIX.size : PREFIX_BYTES], "little"):
        raise WireError("a header's checksum is wrong: it was changed on its way")
    if data.count(0, end) != total - end:
        raise WireError("behind a header there is something else than zeros")
    header = _decoded(body)
    fault = fault_of(header)
    if fault:
        raise WireError(f"a header that can't be true: {fault}")
    if header.payload_bytes != payload_bytes:
        raise WireError(
            f"a header announces {payload_bytes} bytes for {header.dtype} of shape {header.shape}, "
            f"which takes {header.payload_bytes}"
        )
    return header


def encode_frame(header: Header, payload: bytes | bytearray | memoryview) -> tuple[bytes, memoryview]:
    """A header and its payload, for a stream: two parts to write one after the other. The payload
    is not copied."""
    memory = memoryview(payload).cast("B")
    encoded = encode_header(msgspec.structs.replace(header, checksum=zlib.crc32(memory)))
    if memory.nbytes != header.payload_bytes:
        raise UsageError(
            f"letter {header.tag!r} has {memory.nbytes} bytes, and {header.dtype} of shape {header.shape} "
            f"takes {header.payload_bytes}"
        )
    return encoded, memory


def announced(begun: bytes | bytearray) -> tuple[int, int]:
    """How long a header is and how long its payload, from its beginning.

    Refuses as soon as it can, also from fewer bytes than that takes; then the prefix is announced.
    """
    if not _MAGIC.startswith(begun[:4]):
        raise WireError(f"a frame begins with {bytes(begun[:4])!r}, not with {_MAGIC!r}: it isn't ours")
    version = int.from_bytes(begun[4:6], "little")
    if len(begun) >= 6 and version != _VERSION:
        raise WireError(f"a frame of version {version}; this release reads version {_VERSION}")
    if len(begun) < PREFIX_BYTES:
        return PREFIX_BYTES, 0
    _, _, body_bytes, payload_bytes = _PREFIX.unpack_from(begun)
    total = _whole_blocks(PREFIX_BYTES + body_bytes)
    if total > HEADER_LIMIT_BYTES:
        raise WireError(f"a header announces {total} bytes, and {HEADER_LIMIT_BYTES} is the limit")
    return total, payload_bytes


def _whole_blocks(nbytes: int) -> int:
    return -(-nbytes // HEADER_BYTES) * HEADER_BYTES


def _crc(prefix: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(prefix))


def _refuse_extension(code: int, data: memoryview) -> Any:
    raise WireError(f"a header holds data of a kind {code} that isn't ours")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header, ext_hook=_refuse_extension)


def _encoded(header: Header) -> bytes:
    try:
        return _encoder.encode(header)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"the note {header.note!r} of letter {header.tag!r} can't be sent: {error}. "
            "Notes hold numbers, strings, booleans and lists of them; tensors go into the letter itself."
        ) from error


def _decoded(body: bytes) -> Header:
    """Whatever a stranger put there: wrong types, broken text, a thousand lists in each other."""
    try:
        return _decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a header can't be read: {error}") from error
