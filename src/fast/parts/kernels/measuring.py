"""Kernels that measure groups of numbers: what a codec needs to know before it quantizes them."""

from __future__ import annotations

import torch
from torch import Tensor

from fast.parts.kernels.choosing import kernel
from fast.parts.kernels.spans import Span, Spans
from fast.parts.kernels.summing import grouped, halved

LARGEST = torch.finfo(torch.float32).max


@kernel
def measure_largest(values: Tensor, spans: Spans, out: Tensor) -> None:
    """The largest magnitude of each group; NaN if one isn't finite."""
    for span, groups, _ in spans.walk():
        largest = grouped(span.of(values), span.width).abs().amax(1)
        out[groups] = largest.masked_fill(~torch.isfinite(largest), torch.nan)


@kernel
def measure_norms(values: Tensor, spans: Spans, out: Tensor) -> None:
    """The Euclidean norm of each group; NaN if a number isn't finite.

    Squares of what is very large or very small would leave the range of float32: they are taken
    after a multiplication with the power of two that brings the largest near 1, which is exact.
    """
    for span, groups, _ in spans.walk():
        rows = grouped(span.of(values), span.width)
        largest = rows.abs().amax(1)
        exponents = (largest.view(torch.int32) >> 23).clamp_(1, 253)
        factors = ((254 - exponents) << 23).view(torch.float32)
        scaled = rows * factors[:, None]
        norms = (_root(halved(scaled * scaled)) / factors).clamp_(max=LARGEST)
        out[groups] = norms.masked_fill(~torch.isfinite(largest), torch.nan)


@kernel
def measure_deviations(values: Tensor, spans: Spans, out: Tensor) -> None:
    """The standard deviation of each group, around its mean; not finite where squares are too large."""
    for span, groups, _ in spans.walk():
        rows, counts = grouped(span.of(values), span.width), _counts(span, values)
        means = halved(rows) / counts
        inside = torch.arange(span.width, device=rows.device) < counts[:, None]
        apart = torch.where(inside, rows - means[:, None], 0.0)
        out[groups] = _root(halved(apart * apart) / counts)


@kernel
def measure_magnitudes(values: Tensor, spans: Spans, out: Tensor) -> None:
    """The mean magnitude of each group; NaN if it isn't finite."""
    for span, groups, _ in spans.walk():
        sums = halved(grouped(span.of(values), span.width).abs())
        means = sums / _counts(span, values)
        out[groups] = means.masked_fill(~torch.isfinite(means), torch.nan)


@kernel
def measure_sides(values: Tensor, spans: Spans, low: Tensor, high: Tensor) -> None:
    """The mean of each group's numbers below 0, and of those that are not. A side without numbers
    has 0; both are NaN if one isn't finite."""
    for span, groups, _ in spans.walk():
        rows, counts = grouped(span.of(values), span.width), _counts(span, values)
        below = (span.width - (rows >= 0).sum(1)).to(torch.float32)
        lower = halved(torch.where(rows >= 0, 0.0, rows)) / below.clamp(min=1)
        upper = halved(torch.where(rows > 0, rows, 0.0)) / (counts - below).clamp(min=1)
        broken = ~(torch.isfinite(lower) & torch.isfinite(upper))
        low[groups] = lower.masked_fill(broken, torch.nan)
        high[groups] = upper.masked_fill(broken, torch.nan)


def _counts(span: Span, values: Tensor) -> Tensor:
    """How many numbers each group has, as float32."""
    counts = torch.full((span.groups,), span.width, dtype=torch.float32, device=values.device)
    counts[-1:] -= -span.size % span.width
    return counts


def _root(squares: Tensor) -> Tensor:
    """Correctly rounded, which torch doesn't promise of float32, nor always gives."""
    return squares.to(torch.float64).sqrt_().to(torch.float32)
