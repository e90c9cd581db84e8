"""Kernels of codecs that send whole multiples of a unit, in 2, 4 or 8 bits of two's complement.

Each group has a unit, float32. A unit that is 0 has only zeros; one that is NaN makes its group NaN
at decode. With `rest`, what the bytes don't say stays in `values`, with 0 for what isn't finite.
With fewer than 8 bits, a group that isn't the last of its span has a multiple of 8 numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fast.parts.kernels.choosing import kernel
from fast.parts.kernels.hashing import Keys, uniform_of
from fast.parts.kernels.packing import pack, signed, unpack
from fast.parts.kernels.spans import Spans
from fast.parts.kernels.summing import grouped, ungrouped


class Grid(NamedTuple):
    """How numbers are rounded to multiples of their unit."""

    levels: int
    """The highest multiple, either side of 0."""
    bits: int
    keys: Keys | None = None
    """Without, to the nearest multiple, the even one of two. With keys, to the one below (towards 0)
    or the one above, with probabilities that make the expectation right."""


@kernel
def encode_levels(
    values: Tensor, spans: Spans, units: Tensor, grid: Grid, codes: Tensor, rest: bool = False
) -> None:
    """Each number over its unit, as a whole number."""
    for span, groups, place in spans.walk(grid.bits):
        rows, unit = grouped(span.of(values), span.width), units[groups, None]
        sizes = _sizes(rows.abs(), unit).clamp_(max=grid.levels)
        whole = sizes.round() if grid.keys is None else _by_chance(sizes, span.start, grid.keys)
        chosen = torch.where(rows >= 0, whole, -whole)
        if rest:
            left = torch.where(torch.isnan(unit), 0.0, rows - unit * chosen)
            span.of(values).copy_(ungrouped(left, span.size))
        codes[place] = _packed(ungrouped(chosen.to(torch.int8), span.size), grid.bits)


def _sizes(magnitudes: Tensor, unit: Tensor) -> Tensor:
    """In units; 0 where there is none."""
    usable = unit > 0
    return torch.where(usable, magnitudes / torch.where(usable, unit, 1.0), 0.0)


def _by_chance(sizes: Tensor, start: int, keys: Keys) -> Tensor:
    below = sizes.floor()
    places = torch.arange(start, start + sizes.numel(), device=sizes.device).view_as(sizes)
    return below + (uniform_of(places, keys) < sizes - below)


def _packed(chosen: Tensor, bits: int) -> Tensor:
    return pack(chosen.view(torch.uint8) & ((1 << bits) - 1), bits)


@kernel
def encode_crossings(
    values: Tensor, spans: Spans, threshold: float, codes: Tensor, rest: bool = False
) -> None:
    """1 at or above the threshold, -1 at or below its opposite, else 0: 2 bits each."""
    for span, _, place in spans.walk(2):
        part = span.of(values)
        chosen = (part >= threshold).to(torch.int8) - (part <= -threshold).to(torch.int8)
        if rest:
            part.sub_(chosen.to(torch.float32) * threshold)
            part.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        codes[place] = _packed(chosen, 2)


@kernel
def decode_levels(codes: Tensor, spans: Spans, units: Tensor, bits: int, out: Tensor) -> None:
    """Each level times its unit."""
    for span, groups, place in spans.walk(bits):
        numbers = signed(unpack(codes[place], bits, span.size), bits).to(torch.float32)
        decoded = grouped(numbers, span.width) * units[groups, None]
        span.of(out).copy_(ungrouped(decoded, span.size))
