"""Two bits per number: up, down or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.codecs.arguments import check_integer, check_positive
from fast.parts.codecs.base import NonFinite, State, Workspace
from fast.parts.codecs.quantizer import MOST, Quantizer, Sections
from fast.parts.kernels.hashing import keys_of
from fast.parts.kernels.levels import Grid, decode_levels, encode_crossings, encode_levels
from fast.parts.kernels.measuring import measure_deviations, measure_largest
from fast.parts.kernels.spans import Spans, by_segment, small_segments
from fast.view import Layout

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


@final
@dataclass(frozen=True, repr=False)
class TernGrad(Quantizer):
    """Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
    NeurIPS 2017.

    In each segment, with the standard deviation σ and s = min(max|v|, clip·σ), a number becomes

        s · sign(v) · (1 with probability min(|v|/s, 1), else 0)

    Without clipping (`clip=None`, or infinity) it is unbiased, and the expectation of its squared norm
    is max|v|·‖v‖₁. A segment whose numbers are all equal has σ = 0 and isn't clipped.

    Segments of fewer than `dense_below` numbers (biases, scales of a normalisation, mostly) are sent
    as they are: they have few bytes to save, and a σ that says little.
    ⌈size/4⌉ + 4 bytes for each segment that is quantized, 4·size for the others.
    """

    name: ClassVar[str] = "terngrad"
    clip: float | None = 2.5
    dense_below: int = 256

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip != math.inf:
            check_positive(self.name, clip=self.clip)
        check_integer(self.name, 0, MOST, dense_below=self.dense_below)
        object.__setattr__(self, "unbiased", not self._clips)

    @property
    def _clips(self) -> bool:
        return self.clip is not None and self.clip < math.inf

    @property
    def bits(self) -> int:
        return 2

    def spans(self, layout: Layout) -> Spans:
        return by_segment(layout, self.dense_below)

    def sent_as_is(self, layout: Layout) -> Spans:
        return small_segments(layout, self.dense_below)

    def quantize(
        self, values: Tensor, spans: Spans, into: Sections, state: State, work: Workspace, *, rest: bool
    ) -> None:
        measure_largest(values, spans, into.scales)
        if self._clips:
            bounds = work.take("quantizer.bounds", spans.groups, torch.float32, values.device)
            measure_deviations(values, spans, bounds)
            bounds.mul_(self.clip or 0.0)
            bounds.masked_fill_(~(bounds > 0), math.inf)
            torch.minimum(into.scales, bounds, out=into.scales)
        grid = Grid(1, self.bits, keys_of(state.seed, state.steps))
        encode_levels(values, spans, into.scales, grid, into.codes, rest)

    def restore(self, sent: Sections, spans: Spans, out: Tensor, work: Workspace) -> None:
        decode_levels(sent.codes, spans, sent.scales, self.bits, out)


@final
@dataclass(frozen=True, repr=False)
class TwoBit(Quantizer):
    """The quantizer of MXNet's key-value store: +θ for v >= θ, -θ for v <= -θ, else 0.

    Only with error feedback does it send everything sooner or later. Infinities count as ±θ, NaN as 0.
    ⌈size/4⌉ bytes for each segment.
    """

    name: ClassVar[str] = "two_bit"
    scales_per_group: ClassVar[int] = 0
    threshold: float = 0.5
    non_finite = NonFinite.DROPPED

    def __post_init__(self) -> None:
        check_positive(self.name, threshold=self.threshold)
        if not SMALLEST <= self.threshold <= LARGEST:
            raise UsageError(
                f"two_bit(threshold={self.threshold!r}): a number that float32 can hold is needed, about as "
                "large as a gradient's large entries"
            )

    @property
    def bits(self) -> int:
        return 2

    def quantize(
        self, values: Tensor, spans: Spans, into: Sections, state: State, work: Workspace, *, rest: bool
    ) -> None:
        encode_crossings(values, spans, self.threshold, into.codes, rest)

    def restore(self, sent: Sections, spans: Spans, out: Tensor, work: Workspace) -> None:
        units = work.take("quantizer.units", spans.groups, torch.float32, out.device).fill_(self.threshold)
        decode_levels(sent.codes, spans, units, self.bits, out)
