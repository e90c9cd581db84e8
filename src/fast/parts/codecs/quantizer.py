"""What all quantizers share: groups of numbers, a few scales for each group, and small codes.

The bytes are the scales (float32), then the segments that are sent as they are (float32), then the
codes. Everything is computed in float32, whatever kind the layout has.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fast.parts.codecs.base import Codec, State, Workspace, as_float32, check_size, sections
from fast.parts.kernels.spans import Spans, by_segment, gaps
from fast.view import Layout

NOT_SENT_AS_IS = Spans(())
MOST = 1 << 31
"""The largest group that can be asked for."""


class Sections(NamedTuple):
    """The bytes, as what they are."""

    scales: Tensor
    as_is: Tensor
    codes: Tensor


class Quantizer(Codec):
    """Subclasses say which numbers are a group, and how a group becomes codes and back."""

    scales_per_group: ClassVar[int] = 1

    @property
    @abstractmethod
    def bits(self) -> int:
        """Of one code: 1, 2, 4, 8 or 16."""

    def spans(self, layout: Layout) -> Spans:
        """What is quantized, and in which groups."""
        return by_segment(layout)

    def sent_as_is(self, layout: Layout) -> Spans:
        """What is not quantized."""
        return NOT_SENT_AS_IS

    @abstractmethod
    def quantize(
        self, values: Tensor, spans: Spans, into: Sections, state: State, work: Workspace, *, rest: bool
    ) -> None:
        """Write scales and codes of these float32. With `rest`, leave what the bytes don't say in
        `values`, with 0 for what isn't finite."""

    @abstractmethod
    def restore(self, sent: Sections, spans: Spans, out: Tensor, work: Workspace) -> None:
        """Write the values of all spans into `out`, float32."""

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        spans = self.spans(layout)
        floats = self.scales_per_group * spans.groups + self.sent_as_is(layout).size
        return 4 * floats + spans.nbytes(self.bits)

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return self._encode(as_float32(values, work), layout, state, work, rest=False)

    def encode_rest(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        if values.dtype != torch.float32:
            return super().encode_rest(values, layout, state, work)
        return self._encode(values, layout, state, work, rest=True)

    def _encode(self, values: Tensor, layout: Layout, state: State, work: Workspace, *, rest: bool) -> Tensor:
        spans, as_is = self.spans(layout), self.sent_as_is(layout)
        packed = work.take("quantizer.packed", self.nbytes(layout), torch.uint8, values.device)
        into = self._sections(packed, spans, as_is)
        self.quantize(values, spans, into, state, work, rest=rest)
        for span, _, place in as_is.walk():
            into.as_is[place].copy_(span.of(values))
            if rest:
                span.of(values).zero_()
        return packed

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        check_size(self, packed, self.nbytes(layout))
        spans, as_is = self.spans(layout), self.sent_as_is(layout)
        found = self._sections(packed, spans, as_is)
        decoded = _float32_for(out, work)
        self.restore(found, spans, decoded, work)
        for gap in gaps(layout):
            decoded[gap].zero_()
        _deliver(decoded, out)
        for span, _, place in as_is.walk():
            span.of(out).copy_(found.as_is[place])

    def _sections(self, packed: Tensor, spans: Spans, as_is: Spans) -> Sections:
        floats = (torch.float32, self.scales_per_group * spans.groups), (torch.float32, as_is.size)
        return Sections(*sections(packed, *floats, (torch.uint8, spans.nbytes(self.bits))))


def _float32_for(out: Tensor, work: Workspace) -> Tensor:
    """Memory to decode into: `out` itself if it can be."""
    if out.dtype == torch.float32:
        return out
    return work.take("quantizer.float32", out.numel(), torch.float32, out.device)


def _deliver(decoded: Tensor, out: Tensor) -> None:
    """As the layout's kind. What is rounded beyond the largest number of a smaller kind stays finite."""
    if decoded is out:
        return
    if out.dtype.itemsize < decoded.dtype.itemsize:
        largest = torch.finfo(out.dtype).max
        decoded.clamp_(-largest, largest)
    out.copy_(decoded)


def units_of(tops: Tensor, levels: int) -> None:
    """Replace the largest value of each group by its unit, of which it is `levels`; in place.

    No multiple of a unit is beyond the largest float32, however the division is rounded.
    """
    count = torch.full((), levels, dtype=torch.float32, device=tops.device)
    limit = torch.finfo(torch.float32).max / levels * (1 - 2.0**-20)
    tops.div_(count).clamp_(max=limit)
