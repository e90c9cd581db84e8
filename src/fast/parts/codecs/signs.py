"""A bit per number: whether it is at least 0. A segment's bits start at a whole byte."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fast.parts.codecs.base import NonFinite, State, Workspace
from fast.parts.codecs.quantizer import Quantizer, Sections
from fast.parts.kernels.measuring import measure_magnitudes, measure_sides
from fast.parts.kernels.signing import decode_signs, encode_signs, subtract_sides
from fast.parts.kernels.spans import Spans, by_row
from fast.view import Layout


class OneBit(Quantizer):
    """A group decodes to two values: `high` where the bit is 1, `low` where it is 0. Where they are
    means, a sum beyond the largest float32 counts as a number that isn't finite."""

    @property
    def bits(self) -> int:
        return 1

    @abstractmethod
    def measure(self, values: Tensor, spans: Spans, scales: Tensor) -> None:
        """Write the scales of each group."""

    @abstractmethod
    def sides(self, scales: Tensor, spans: Spans, work: Workspace) -> tuple[Tensor, Tensor]:
        """Low and high of each group."""

    def quantize(
        self, values: Tensor, spans: Spans, into: Sections, state: State, work: Workspace, *, rest: bool
    ) -> None:
        self.measure(values, spans, into.scales)
        encode_signs(values, spans, into.codes)
        if rest:
            subtract_sides(values, spans, *self.sides(into.scales, spans, work))

    def restore(self, sent: Sections, spans: Spans, out: Tensor, work: Workspace) -> None:
        decode_signs(sent.codes, spans, *self.sides(sent.scales, spans, work), out)


@final
@dataclass(frozen=True, repr=False)
class Sign(OneBit):
    """+1 or -1: Bernstein et al., "signSGD", ICML 2018.

    Where a sum of such values is encoded again (by the owner of a slice, in a compressed all-reduce),
    the result is the majority vote. 0 counts as positive and NaN as negative.
    ⌈size/8⌉ bytes for each segment.
    """

    name: ClassVar[str] = "sign"
    scales_per_group: ClassVar[int] = 0
    non_finite = NonFinite.DROPPED

    def measure(self, values: Tensor, spans: Spans, scales: Tensor) -> None:
        """There is nothing to measure."""

    def sides(self, scales: Tensor, spans: Spans, work: Workspace) -> tuple[Tensor, Tensor]:
        low, high = work.take("quantizer.sides", 2 * spans.groups, torch.float32, scales.device).view(2, -1)
        return low.fill_(-1.0), high.fill_(1.0)


@final
@dataclass(frozen=True, repr=False)
class ScaledSign(OneBit):
    """‖p‖₁/size · sign(p) in each segment: Karimireddy et al., "Error Feedback Fixes SignSGD and other
    Gradient Compression Schemes", ICML 2019.

    What is lost is ‖p‖² − ‖p‖₁²/size, never more than there was: so error feedback converges.
    ⌈size/8⌉ + 4 bytes for each segment.
    """

    name: ClassVar[str] = "scaled_sign"

    def measure(self, values: Tensor, spans: Spans, scales: Tensor) -> None:
        measure_magnitudes(values, spans, scales)

    def sides(self, scales: Tensor, spans: Spans, work: Workspace) -> tuple[Tensor, Tensor]:
        low = work.take("quantizer.low", spans.groups, torch.float32, scales.device)
        return torch.neg(scales, out=low), scales


@final
@dataclass(frozen=True, repr=False)
class ColumnMeans(OneBit):
    """The quantizer of 1-bit SGD: Seide et al., "1-Bit Stochastic Gradient Descent and its Application
    to Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.

    The weights into one unit of a layer (a column in the paper, a row in torch, where they lie side by
    side) become the mean of those that are at least 0, or the mean of the others. A segment with one
    dimension is one such row. ⌈size/8⌉ + 8·rows bytes for each segment.
    """

    name: ClassVar[str] = "column_means"
    scales_per_group: ClassVar[int] = 2

    def spans(self, layout: Layout) -> Spans:
        return by_row(layout)

    def measure(self, values: Tensor, spans: Spans, scales: Tensor) -> None:
        low, high = scales.view(2, -1)
        measure_sides(values, spans, low, high)

    def sides(self, scales: Tensor, spans: Spans, work: Workspace) -> tuple[Tensor, Tensor]:
        low, high = scales.view(2, -1)
        return low, high
