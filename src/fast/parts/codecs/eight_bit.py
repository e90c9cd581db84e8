"""A byte per number: whole multiples of a unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fast.parts.arguments import check_flag
from fast.parts.codecs.arguments import check_integer
from fast.parts.codecs.base import State, Workspace
from fast.parts.codecs.quantizer import MOST, Quantizer, Sections, units_of
from fast.parts.kernels.hashing import keys_of
from fast.parts.kernels.levels import Grid, decode_levels, encode_levels
from fast.parts.kernels.measuring import measure_largest
from fast.parts.kernels.spans import Spans, by_block
from fast.view import Layout

LEVELS = 127


class EightBit(Quantizer):
    """Each number as the nearest multiple of u = max|v| / 127 of its group: within u / 2 of itself.

    With `stochastic`, one of the two multiples around it, by chance and unbiased: within u.
    """

    stochastic: bool

    @property
    def bits(self) -> int:
        return 8

    def quantize(
        self, values: Tensor, spans: Spans, into: Sections, state: State, work: Workspace, *, rest: bool
    ) -> None:
        measure_largest(values, spans, into.scales)
        units_of(into.scales, LEVELS)
        keys = keys_of(state.seed, state.steps) if self.stochastic else None
        encode_levels(values, spans, into.scales, Grid(LEVELS, self.bits, keys), into.codes, rest)

    def restore(self, sent: Sections, spans: Spans, out: Tensor, work: Workspace) -> None:
        decode_levels(sent.codes, spans, sent.scales, self.bits, out)


@final
@dataclass(frozen=True, repr=False)
class Int8(EightBit):
    """A unit per segment. d bytes without padding, and 4 for each segment."""

    name: ClassVar[str] = "int8"
    stochastic: bool = False

    def __post_init__(self) -> None:
        check_flag(self.name, "stochastic", self.stochastic)
        object.__setattr__(self, "unbiased", self.stochastic)


@final
@dataclass(frozen=True, repr=False)
class BlockInt8(EightBit):
    """A unit per block of the flat tensor, so that one large number spoils only its neighbours.
    d + 4⌈d / block⌉ bytes; with 256 that is 1.6 % more than a byte per number."""

    name: ClassVar[str] = "block_int8"
    block: int = 256
    stochastic: bool = False

    def __post_init__(self) -> None:
        check_integer(self.name, 1, MOST, block=self.block)
        check_flag(self.name, "stochastic", self.stochastic)
        object.__setattr__(self, "unbiased", self.stochastic)

    def spans(self, layout: Layout) -> Spans:
        return by_block(layout, self.block)
