"""Floating point numbers of 16 bits."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fast.parts.codecs.base import Codec, NonFinite, State, Workspace, check_size, sections
from fast.parts.codecs.quantizer import Quantizer, Sections
from fast.parts.kernels.measuring import measure_largest
from fast.parts.kernels.spans import Spans
from fast.view import Layout


class Cast(Codec):
    """Each number rounded to the nearest of another kind, the even one of two. 2d bytes."""

    summable = True
    non_finite = NonFinite.KEPT

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        return self.dtype.itemsize * layout.size

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        packed = work.take("cast.packed", self.nbytes(layout), torch.uint8, values.device)
        self.summands(packed, layout).copy_(values)
        return packed

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        check_size(self, packed, self.nbytes(layout))
        out.copy_(self.summands(packed, layout))

    def summands(self, packed: Tensor, layout: Layout) -> Tensor:
        return sections(packed, (self.dtype, layout.size))[0]


@final
@dataclass(frozen=True, repr=False)
class Fp16(Cast):
    """IEEE half precision: 11 significant bits, from 6e-8 to 65504.

    What is larger becomes infinite, and so do sums of such bytes; what is smaller becomes 0. Gradients
    of a scaled loss fit; `scaled_fp16` and `bf16` have no such limit.
    """

    name: ClassVar[str] = "fp16"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16


@final
@dataclass(frozen=True, repr=False)
class Bf16(Cast):
    """The upper half of a float32: its range, with 8 significant bits. Above 3.39e38 it is infinite."""

    name: ClassVar[str] = "bf16"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16


@final
@dataclass(frozen=True, repr=False)
class ScaledFp16(Quantizer):
    """Half precision with a scale per segment, so that nothing overflows.

    The scale is the power of two that brings the segment's largest magnitude into [2^14, 2^15):
    multiplying with it is exact, and there are 29 powers of two below that keep all 11 bits.
    2d bytes, and 4 for each segment. Scales differ between workers, so bytes can't be added.
    """

    name: ClassVar[str] = "scaled_fp16"

    @property
    def bits(self) -> int:
        return 16

    def quantize(
        self, values: Tensor, spans: Spans, into: Sections, state: State, work: Workspace, *, rest: bool
    ) -> None:
        measure_largest(values, spans, into.scales)
        inverses = work.take("quantizer.inverses", spans.groups, torch.float32, values.device)
        _powers_of_two(into.scales, inverses)
        scaled = work.take("quantizer.scaled", spans.size, torch.float32, values.device)
        for span, group, place in spans.walk():
            torch.mul(span.of(values), inverses[group], out=scaled[place])
        into.codes.view(torch.float16).copy_(scaled)
        if rest:
            self._subtract(values, spans, into, work)

    def _subtract(self, values: Tensor, spans: Spans, sent: Sections, work: Workspace) -> None:
        decoded = work.take("quantizer.rest", values.numel(), torch.float32, values.device)
        self.restore(sent, spans, decoded, work)
        for span in spans:
            span.of(values).sub_(span.of(decoded)).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def restore(self, sent: Sections, spans: Spans, out: Tensor, work: Workspace) -> None:
        halves = sent.codes.view(torch.float16)
        for span, group, place in spans.walk():
            span.of(out).copy_(halves[place]).mul_(sent.scales[group])


def _powers_of_two(largest: Tensor, inverses: Tensor) -> None:
    """Replace each largest magnitude by its scale, made of its exponent's bits; NaN stays. Inverses
    are exact, but a little less for numbers that would be rounded up beyond the largest float32."""
    broken = torch.isnan(largest)
    exponents = (largest.view(torch.int32) >> 23).clamp_(min=15)
    inverses.view(torch.int32).copy_((268 - exponents) << 23)
    inverses.sub_(inverses * 2.0**-11 * (exponents == 254))
    largest.view(torch.int32).copy_((exponents - 14) << 23)
    largest.masked_fill_(broken, torch.nan)
