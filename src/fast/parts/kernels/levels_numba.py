"""The kernels of `levels.py` in compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fast.parts.kernels.compiling import compiled
from fast.parts.kernels.hashing_numba import uniform_of
from fast.parts.kernels.levels import Grid
from fast.parts.kernels.packing_numba import Bytes, pack_codes, unpack_codes
from fast.parts.kernels.spans import Spans
from fast.parts.kernels.summing import BLOCK
from fast.parts.kernels.summing_numba import Floats

Table = NDArray[np.int64]
Levels = NDArray[np.int8]
Random = tuple[bool, np.uint32, np.uint32]
"""Whether by chance, and the keys."""

NOTHING = np.float32(0)
LARGEST = np.float32(np.finfo(np.float32).max)


def encode_levels(
    values: Tensor, spans: Spans, units: Tensor, grid: Grid, codes: Tensor, rest: bool = False
) -> None:
    first, second = grid.keys or (0, 0)
    random = (grid.keys is not None, np.uint32(first), np.uint32(second))
    levels = np.float32(grid.levels)
    _encode_levels(values.numpy(), spans.table, units.numpy(), levels, grid.bits, random, codes.numpy(), rest)


def encode_crossings(
    values: Tensor, spans: Spans, threshold: float, codes: Tensor, rest: bool = False
) -> None:
    _encode_crossings(values.numpy(), spans.table, np.float32(threshold), codes.numpy(), rest)


def decode_levels(codes: Tensor, spans: Spans, units: Tensor, bits: int, out: Tensor) -> None:
    _decode_levels(codes.numpy(), spans.table, units.numpy(), bits, out.numpy())


@compiled
def _encode_levels(
    values: Floats,
    table: Table,
    units: Floats,
    levels: np.float32,
    bits: int,
    random: Random,
    codes: Bytes,
    rest: bool,
) -> None:
    chosen = np.empty(BLOCK, np.int8)
    at = group = 0
    for start, size, width in table:
        for begin in range(start, start + size, width):
            unit, end = units[group], min(begin + width, start + size)
            for here in range(begin, end, BLOCK):
                part = values[here : min(here + BLOCK, end)]
                if not unit > NOTHING:
                    chosen[: len(part)] = 0
                elif random[0]:
                    _choose_by_chance(part, unit, levels, np.uint32(here), random, chosen)
                else:
                    _choose_nearest(part, unit, levels, chosen)
                if rest:
                    _subtract(part, unit, chosen)
                at += _store(chosen, len(part), bits, codes[at:])
            group += 1


@compiled
def _choose_nearest(part: Floats, unit: np.float32, levels: np.float32, chosen: Levels) -> None:
    for i in range(len(part)):
        whole = np.int32(np.rint(min(abs(part[i]) / unit, levels)))
        chosen[i] = whole if part[i] >= NOTHING else -whole


@compiled
def _choose_by_chance(
    part: Floats, unit: np.float32, levels: np.float32, place: np.uint32, random: Random, chosen: Levels
) -> None:
    _, first, second = random
    for i in range(len(part)):
        size = min(abs(part[i]) / unit, levels)
        below = np.int32(size)
        chance = uniform_of(np.uint32(place + np.uint32(i)), first, second)
        whole = below + np.int32(chance < size - np.float32(below))
        chosen[i] = whole if part[i] >= NOTHING else -whole


@compiled
def _subtract(part: Floats, unit: np.float32, chosen: Levels) -> None:
    """The rest of a group that isn't finite is nothing."""
    if np.isnan(unit):
        part[:] = NOTHING
    else:
        for i in range(len(part)):
            part[i] -= unit * np.float32(chosen[i])


@compiled
def _store(chosen: Levels, count: int, bits: int, codes: Bytes) -> int:
    """Write these levels to the beginning of `codes`, and say how many bytes they are."""
    if bits == 8:
        for i in range(count):
            codes[i] = np.uint8(chosen[i])
        return count
    apart = 8 // bits
    size = (count + apart - 1) // apart
    chosen[count : size * apart] = 0
    pack_codes(chosen, bits, codes[:size])
    return size


@compiled
def _encode_crossings(values: Floats, table: Table, threshold: np.float32, codes: Bytes, rest: bool) -> None:
    chosen = np.empty(BLOCK, np.int8)
    at = 0
    for start, size, _ in table:
        for begin in range(start, start + size, BLOCK):
            part = values[begin : min(begin + BLOCK, start + size)]
            for i in range(len(part)):
                chosen[i] = np.int8(part[i] >= threshold) - np.int8(part[i] <= -threshold)
            if rest:
                for i in range(len(part)):
                    left = part[i] - threshold * np.float32(chosen[i])
                    part[i] = left if abs(left) <= LARGEST else NOTHING
            at += _store(chosen, len(part), 2, codes[at:])


@compiled
def _decode_levels(codes: Bytes, table: Table, units: Floats, bits: int, out: Floats) -> None:
    numbers = np.empty(BLOCK, np.int8)
    at = group = 0
    apart = 8 // bits
    for start, size, width in table:
        for begin in range(start, start + size, width):
            unit, end = units[group], min(begin + width, start + size)
            for here in range(begin, end, BLOCK):
                part = out[here : min(here + BLOCK, end)]
                used = (len(part) + apart - 1) // apart
                if bits == 8:
                    _multiply(codes[at : at + used].view(np.int8), unit, part)
                else:
                    unpack_codes(codes[at : at + used], bits, numbers)
                    _multiply(numbers, unit, part)
                at += used
            group += 1


@compiled
def _multiply(numbers: Levels, unit: np.float32, part: Floats) -> None:
    for i in range(len(part)):
        part[i] = np.float32(numbers[i]) * unit
