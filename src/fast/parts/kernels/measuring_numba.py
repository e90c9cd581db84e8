"""The kernels of `measuring.py` in compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fast.parts.kernels.compiling import compiled
from fast.parts.kernels.spans import Spans
from fast.parts.kernels.summing import BLOCK
from fast.parts.kernels.summing_numba import Floats, halve, halve_blocks

Table = NDArray[np.int64]

NOTHING, NAN = np.float32(0), np.float32(np.nan)
LARGEST = np.float32(np.finfo(np.float32).max)
MAGNITUDE, EXPONENT, INFINITE = np.uint32(0x7FFFFFFF), np.uint32(23), np.uint32(0x7F800000)
"""Of the bits of a float32: all but the sign; where its exponent starts; infinity, and beyond it NaN."""
MAGNITUDES, BELOW, ABOVE, PLAIN, SQUARES = range(5)
"""What is summed."""


def measure_largest(values: Tensor, spans: Spans, out: Tensor) -> None:
    _measure_largest(values.numpy(), spans.table, out.numpy())


def measure_norms(values: Tensor, spans: Spans, out: Tensor) -> None:
    _measure_norms(values.numpy(), spans.table, out.numpy())


def measure_deviations(values: Tensor, spans: Spans, out: Tensor) -> None:
    _measure_deviations(values.numpy(), spans.table, out.numpy())


def measure_magnitudes(values: Tensor, spans: Spans, out: Tensor) -> None:
    _measure_magnitudes(values.numpy(), spans.table, out.numpy())


def measure_sides(values: Tensor, spans: Spans, low: Tensor, high: Tensor) -> None:
    _measure_sides(values.numpy(), spans.table, low.numpy(), high.numpy())


@compiled
def _largest(row: Floats) -> np.uint32:
    """The largest magnitude as its bits: their order is that of the numbers, and NaN comes last."""
    bits = row.view(np.uint32)
    largest = np.uint32(0)
    for i in range(len(bits)):
        largest = max(largest, np.uint32(bits[i] & MAGNITUDE))
    return largest


@compiled
def _float(bits: np.uint32, cell: Floats) -> np.float32:
    """The number with these bits; `cell` is memory for one."""
    cell.view(np.uint32)[0] = bits
    number: np.float32 = cell[0]
    return number


@compiled
def _measure_largest(values: Floats, table: Table, out: Floats) -> None:
    cell = np.empty(1, np.float32)
    group = 0
    for start, size, width in table:
        for begin in range(start, start + size, width):
            largest = _largest(values[begin : min(begin + width, start + size)])
            out[group] = _float(largest, cell) if largest < INFINITE else NAN
            group += 1


@compiled
def _memory(table: Table) -> tuple[Floats, Floats]:
    """To sum in: for the terms of one block, and for the sums of the blocks of the longest group."""
    longest = 1
    for _, size, width in table:
        longest = max(longest, (min(size, width) + BLOCK - 1) // BLOCK)
    return np.empty(BLOCK, np.float32), np.empty(longest, np.float32)


@compiled
def _fill(part: Floats, what: int, shift: np.float32, factor: np.float32, terms: Floats) -> None:
    """The terms that are to be summed."""
    if what == MAGNITUDES:
        for i in range(len(part)):
            terms[i] = abs(part[i])
    elif what == BELOW:
        for i in range(len(part)):
            terms[i] = NOTHING if part[i] >= NOTHING else part[i]
    elif what == ABOVE:
        for i in range(len(part)):
            terms[i] = part[i] if part[i] > NOTHING else NOTHING
    elif what == PLAIN:
        for i in range(len(part)):
            terms[i] = part[i]
    else:
        for i in range(len(part)):
            term = (part[i] - shift) * factor
            terms[i] = term * term


@compiled
def _sum(
    row: Floats, what: int, shift: np.float32, factor: np.float32, terms: Floats, sums: Floats
) -> np.float32:
    blocks = 0
    for at in range(0, len(row), BLOCK):
        part = row[at : min(at + BLOCK, len(row))]
        _fill(part, what, shift, factor, terms)
        sums[blocks] = halve(terms, len(part))
        blocks += 1
    return halve_blocks(sums, blocks, terms)


@compiled
def _measure_norms(values: Floats, table: Table, out: Floats) -> None:
    (terms, sums), cell = _memory(table), np.empty(1, np.float32)
    group = 0
    for start, size, width in table:
        for begin in range(start, start + size, width):
            row = values[begin : min(begin + width, start + size)]
            largest = _largest(row)
            exponent = min(max(largest >> EXPONENT, np.uint32(1)), np.uint32(253))
            factor = _float(np.uint32((254 - exponent) << EXPONENT), cell)
            norm = np.sqrt(_sum(row, SQUARES, NOTHING, factor, terms, sums)) / factor
            out[group] = min(norm, LARGEST) if largest < INFINITE else NAN
            group += 1


@compiled
def _measure_deviations(values: Floats, table: Table, out: Floats) -> None:
    terms, sums = _memory(table)
    group = 0
    for start, size, width in table:
        for begin in range(start, start + size, width):
            row = values[begin : min(begin + width, start + size)]
            count = np.float32(len(row))
            mean = _sum(row, PLAIN, NOTHING, np.float32(1), terms, sums) / count
            squares = _sum(row, SQUARES, mean, np.float32(1), terms, sums)
            out[group] = np.sqrt(squares / count)
            group += 1


@compiled
def _measure_magnitudes(values: Floats, table: Table, out: Floats) -> None:
    terms, sums = _memory(table)
    group = 0
    for start, size, width in table:
        for begin in range(start, start + size, width):
            row = values[begin : min(begin + width, start + size)]
            mean = _sum(row, MAGNITUDES, NOTHING, NOTHING, terms, sums) / np.float32(len(row))
            out[group] = mean if np.isfinite(mean) else NAN
            group += 1


@compiled
def _measure_sides(values: Floats, table: Table, low: Floats, high: Floats) -> None:
    terms, sums = _memory(table)
    group = 0
    for start, size, width in table:
        for begin in range(start, start + size, width):
            row = values[begin : min(begin + width, start + size)]
            above = _count_above(row)
            lower = _sum(row, BELOW, NOTHING, NOTHING, terms, sums) / np.float32(max(len(row) - above, 1))
            upper = _sum(row, ABOVE, NOTHING, NOTHING, terms, sums) / np.float32(max(above, 1))
            fine = np.isfinite(lower) and np.isfinite(upper)
            low[group], high[group] = lower if fine else NAN, upper if fine else NAN
            group += 1


@compiled
def _count_above(row: Floats) -> int:
    count = 0
    for i in range(len(row)):
        count += row[i] >= NOTHING
    return count
