"""The kernels of `signing.py` in compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fast.parts.kernels.compiling import compiled
from fast.parts.kernels.packing_numba import Bytes, pack_flags, unpack_flags
from fast.parts.kernels.spans import Spans
from fast.parts.kernels.summing import BLOCK
from fast.parts.kernels.summing_numba import Floats

Table = NDArray[np.int64]

NOTHING = np.float32(0)
LARGEST = np.float32(np.finfo(np.float32).max)


def encode_signs(values: Tensor, spans: Spans, bits: Tensor) -> None:
    _encode_signs(values.numpy(), spans.table, bits.numpy())


def decode_signs(bits: Tensor, spans: Spans, low: Tensor, high: Tensor, out: Tensor) -> None:
    _decode_signs(bits.numpy(), spans.table, low.numpy(), high.numpy(), out.numpy())


def subtract_sides(values: Tensor, spans: Spans, low: Tensor, high: Tensor) -> None:
    _subtract_sides(values.numpy(), spans.table, low.numpy(), high.numpy())


@compiled
def _encode_signs(values: Floats, table: Table, bits: Bytes) -> None:
    flags = np.empty(BLOCK, np.uint8)
    at = 0
    for start, size, _ in table:
        for begin in range(start, start + size, BLOCK):
            part = values[begin : min(begin + BLOCK, start + size)]
            for i in range(len(part)):
                flags[i] = part[i] >= NOTHING
            count = (len(part) + 7) // 8
            flags[len(part) : 8 * count] = 0
            pack_flags(flags, bits[at : at + count])
            at += count


@compiled
def _decode_signs(bits: Bytes, table: Table, low: Floats, high: Floats, out: Floats) -> None:
    """Blocks are cut at the ends of rows; the first bit of a block is somewhere in its byte."""
    flags = np.empty(BLOCK + 8, np.uint8)
    first = group = 0
    for start, size, width in table:
        for begin in range(0, size, width):
            lower, upper = low[group], high[group]
            end = min(begin + width, size)
            for at in range(begin, end, BLOCK):
                part = out[start + at : start + min(at + BLOCK, end)]
                phase = at % 8
                byte = first + at // 8
                unpack_flags(bits[byte : byte + (phase + len(part) + 7) // 8], flags)
                here = flags[phase : phase + len(part)]
                for i in range(len(part)):
                    part[i] = upper if here[i] != 0 else lower
            group += 1
        first += (size + 7) // 8


@compiled
def _subtract_sides(values: Floats, table: Table, low: Floats, high: Floats) -> None:
    group = 0
    for start, size, width in table:
        for begin in range(start, start + size, width):
            row = values[begin : min(begin + width, start + size)]
            lower, upper = low[group], high[group]
            for i in range(len(row)):
                rest = row[i] - (upper if row[i] >= NOTHING else lower)
                row[i] = rest if abs(rest) <= LARGEST else NOTHING
            group += 1
