"""Few levels per number, chosen by chance so that the expectation is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fast.errors import UsageError
from fast.parts.codecs.arguments import check_integer
from fast.parts.codecs.base import State, Workspace
from fast.parts.codecs.quantizer import MOST, Quantizer, Sections, units_of
from fast.parts.kernels.hashing import keys_of
from fast.parts.kernels.levels import Grid, decode_levels, encode_levels
from fast.parts.kernels.measuring import measure_norms
from fast.parts.kernels.spans import Spans, by_block
from fast.view import Layout


@final
@dataclass(frozen=True, repr=False)
class Qsgd(Quantizer):
    """Quantized SGD: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization
    and Encoding", NeurIPS 2017.

    In each bucket of the flat tensor, with n = ‖v‖₂, s levels and a = s|v| / n, a number becomes

        n/s · sign(v) · (⌊a⌋ + 1 with probability a − ⌊a⌋)

    whose variance is at most min(d/s², √d/s)·n² for a bucket of d. The paper sends levels in a code of
    variable length; ours have 2, 4 or 8 bits, the fewest that hold 2s + 1 symbols (s up to 1, 7, 127),
    so that the size is known beforehand. bits·d/8 + 4⌈d / bucket⌉ bytes.
    """

    name: ClassVar[str] = "qsgd"
    levels: int = 7
    bucket: int = 512

    def __post_init__(self) -> None:
        check_integer(self.name, 1, 127, levels=self.levels)
        check_integer(self.name, 8, MOST, bucket=self.bucket)
        if self.bucket % 8:
            raise UsageError(
                f"qsgd(bucket={self.bucket}): a multiple of 8 is needed, so that buckets fill bytes"
            )
        object.__setattr__(self, "unbiased", True)

    @property
    def bits(self) -> int:
        return next(bits for bits in (2, 4, 8) if 2 * self.levels + 1 <= 1 << bits)

    def spans(self, layout: Layout) -> Spans:
        return by_block(layout, self.bucket)

    def quantize(
        self, values: Tensor, spans: Spans, into: Sections, state: State, work: Workspace, *, rest: bool
    ) -> None:
        measure_norms(values, spans, into.scales)
        units_of(into.scales, self.levels)
        grid = Grid(self.levels, self.bits, keys_of(state.seed, state.steps))
        encode_levels(values, spans, into.scales, grid, into.codes, rest)

    def restore(self, sent: Sections, spans: Spans, out: Tensor, work: Workspace) -> None:
        decode_levels(sent.codes, spans, sent.scales, self.bits, out)
