"""Kernels of codecs that send a bit per number: whether it is at least 0.

A group of numbers decodes to two values: `high` where the bit is 1 and `low` where it is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fast.parts.kernels.choosing import kernel
from fast.parts.kernels.packing import pack, unpack
from fast.parts.kernels.spans import Spans
from fast.parts.kernels.summing import grouped, ungrouped


@kernel
def encode_signs(values: Tensor, spans: Spans, bits: Tensor) -> None:
    """The bits alone."""
    for span, _, place in spans.walk(1):
        bits[place] = pack((span.of(values) >= 0).to(torch.uint8), 1)


@kernel
def decode_signs(bits: Tensor, spans: Spans, low: Tensor, high: Tensor, out: Tensor) -> None:
    """Write `high` or `low` of its group at every place."""
    for span, groups, place in spans.walk(1):
        flags = grouped(unpack(bits[place], 1, span.size), span.width) > 0
        decoded = torch.where(flags, high[groups, None], low[groups, None])
        span.of(out).copy_(ungrouped(decoded, span.size))


@kernel
def subtract_sides(values: Tensor, spans: Spans, low: Tensor, high: Tensor) -> None:
    """Leave what the bytes of these values don't say: their distances from `high` or `low`, with 0
    for what isn't finite."""
    for span, groups, _ in spans.walk():
        rows = grouped(span.of(values), span.width)
        rest = rows - torch.where(rows >= 0, high[groups, None], low[groups, None])
        rest.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        span.of(values).copy_(ungrouped(rest, span.size))
