"""What a header may say: its fields, their bounds, and the kinds of numbers that travel.

The same bounds hold at both ends. A sender learns of them as a UsageError before anything is
sent; what a stranger sends in spite of them is a WireError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import msgspec

ITEM_BYTES = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "complex128": 16,
        "complex64": 8,
        "complex32": 4,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint64": 8,
        "uint32": 4,
        "uint16": 2,
        "uint8": 1,
        "bool": 1,
    }
)
"""Every kind of number that travels as plain bytes, with its size."""

TAG_CHARACTERS = 128
DIMENSIONS = 32
STEPS_LIMIT = 1 << 16
"""Updates in one letter. More are never folded into one, or a header of some bytes could stand for
any amount of memory."""
_DEPTH = 32
"""Of lists in lists, in a note or a codec."""
_LARGEST = 2**63 - 1


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
    codec: list[Any] | None = None
    """Of an encoded payload: how to decode it, as plain data; and what comes out."""
    value_dtype: str | None = None
    value_shape: tuple[int, ...] | None = None
    part: tuple[int, int, int] | None = None
    """(start, stop, total) where the values are a slice of a flat tensor."""
    checksum: int | None = None
    """The crc32 of the payload, where that travels as a stream of bytes."""
    session: int = 0
    """The number of the job, and of the sender's life in it: TCP refuses what
    is of another job. Lives are told apart when a connection is made."""
    life: int = 0

    @property
    def payload_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def fault_of(header: Header) -> str | None:
    """What is wrong with a header, in words; None if nothing is."""
    return (
        _fault_of_names(header)
        or fault_of_shape(header.dtype, header.shape)
        or _fault_of_steps(header.steps)
        or _fault_of_values(header)
        or (None if header.part is None else _fault_of_part(header, *header.part))
    )


def fault_of_shape(dtype: str, shape: Sequence[int]) -> str | None:
    """What is wrong with a tensor of this kind, in words. An empty one must have sound dimensions too."""
    if dtype not in ITEM_BYTES:
        return f"dtype {dtype[:40]!r} is not one of those that travel"
    if len(shape) > DIMENSIONS:
        return f"{len(shape)} dimensions, and {DIMENSIONS} is the limit"
    if shape and min(shape) < 0:
        return f"the shape {tuple(shape)} has a negative dimension"
    if (math.prod(shape) or math.prod(n or 1 for n in shape)) * ITEM_BYTES[dtype] > _LARGEST:
        return f"no memory has room for a {dtype} tensor of shape {tuple(shape)}"
    return None


def _fault_of_names(header: Header) -> str | None:
    if len(header.tag) > TAG_CHARACTERS:
        return f"a tag of {len(header.tag)} characters, and {TAG_CHARACTERS} is the limit"
    if not (
        0 <= header.sender <= _LARGEST and 0 <= header.view <= _LARGEST and 0 <= header.version <= _LARGEST
    ):
        return f"sender {header.sender}, view {header.view}, version {header.version}: one is out of range"
    if not (math.isfinite(header.weight) and header.weight >= 0):
        return f"the weight is {header.weight}; it must be a finite number, 0 or more"
    if not (0 <= header.session <= _LARGEST and 0 <= header.life <= _LARGEST):
        return f"session {header.session}, life {header.life}: one is out of range"
    if header.checksum is not None and not 0 <= header.checksum < 1 << 32:
        return f"{header.checksum} is no checksum"
    if _is_deeper(header.note, _DEPTH) or _is_deeper(header.codec, _DEPTH):
        return f"lists in lists, more than {_DEPTH} deep"
    return None


def _fault_of_steps(runs: list[tuple[int, int]]) -> str | None:
    count = 0
    for first, number in runs:
        if first < 0 or number < 1 or first + number > _LARGEST:
            return f"{number} steps from step {first} on: that can't be"
        count += number
    return f"{count} updates in one letter, and {STEPS_LIMIT} is the limit" if count > STEPS_LIMIT else None


def _fault_of_values(header: Header) -> str | None:
    if header.codec is None and header.value_dtype is None and header.value_shape is None:
        return None
    if header.codec is None or header.value_dtype is None or header.value_shape is None:
        return "of codec, dtype and shape of encoded values some are there and some are missing"
    if header.dtype != "uint8":
        return f"encoded values are bytes, not {header.dtype}"
    return fault_of_shape(header.value_dtype, header.value_shape)


def _fault_of_part(header: Header, start: int, stop: int, total: int) -> str | None:
    if not 0 <= start <= stop <= total <= _LARGEST:
        return f"a slice from {start} to {stop} of {total} values"
    values = math.prod(header.shape if header.value_shape is None else header.value_shape)
    if values != stop - start:
        return f"{values} values for the slice from {start} to {stop}"
    return None


def _is_deeper(value: object, limit: int) -> bool:
    if not value or not isinstance(value, dict | list | tuple):
        return False
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    return limit == 0 or any(_is_deeper(each, limit - 1) for each in inner)
