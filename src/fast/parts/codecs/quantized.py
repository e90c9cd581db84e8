"""Few values, and those with fewer bits: a sparse codec whose values go through a dense one."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.codecs.base import Codec, State, Workspace, check_size
from fast.parts.codecs.sparse import Pairs, Sparse, Stream, subtract
from fast.parts.codecs.transformations import Chain, Transformation
from fast.view import Layout


@final
@dataclass(frozen=True, repr=False)
class Quantized(Chain, Sparse):
    """The bytes are the places of the sparse codec, then those that the dense one makes of the values,
    which it sees as one tensor of one dimension."""

    codec: Pairs
    quantizer: Codec

    def __post_init__(self) -> None:
        _check(self.codec, self.quantizer)
        object.__setattr__(self, "unbiased", self.codec.unbiased and self.quantizer.unbiased)
        object.__setattr__(self, "summable", self.codec.summable and self.quantizer.summable)
        object.__setattr__(self, "non_finite", self.quantizer.non_finite)

    @property
    def parts(self) -> tuple[Transformation | Codec, ...]:
        return self.codec, self.quantizer

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        values = _values(self.codec.most(layout), layout)
        inner = [self.codec.begin(layout, seed, device), self.quantizer.begin(values, seed ^ 1, device)]
        return State(seed, inner=inner)

    # Bytes

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        count = self.codec.most(layout) if sent is None or self.codec.fixed else sent
        return self._place_bytes(count) + self.quantizer.nbytes(_values(count, layout))

    def sent(self, packed: Tensor, layout: Layout) -> int | None:
        """More values have more bytes, so their number follows from that of the bytes."""
        if self.codec.fixed:
            return None
        numbers = range(self.codec.most(layout) + 1)
        return bisect_left(numbers, packed.numel(), key=lambda count: self.nbytes(layout, count))

    def expected(self, layout: Layout, step: int) -> int:
        """As many values as the sparse codec is expected to send."""
        sparse = self.codec
        chosen = None if sparse.fixed else sparse.expected(layout, step) // sparse.nbytes(layout, 1)
        return self.nbytes(layout, chosen)

    def _place_bytes(self, count: int) -> int:
        kind, number = self.codec.section(count)
        return number * kind.itemsize

    def _packed(self, places: Tensor, values: Tensor, work: Workspace) -> Tensor:
        """Of places and of the bytes of the values."""
        first = places.view(torch.uint8)
        packed = work.take("chain.packed", first.numel() + values.numel(), torch.uint8, values.device)
        packed[: first.numel()] = first
        packed[first.numel() :] = values
        return packed

    # Both ends

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        places, chosen = self.codec.choose(values, layout, state.inner[0], work)
        few = _values(chosen.numel(), layout)
        packed = self.quantizer.encode(chosen, few, state.inner[1], work)
        _count_up(state)
        return self._packed(places, packed, work)

    def encode_rest(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        packed = self.encode(values, layout, state, work)
        subtract(values, *self.stream(packed, layout, work), work)
        return packed

    def stream(self, packed: Tensor, layout: Layout, work: Workspace | None = None) -> Stream:
        work, sent = work or Workspace(), self.sent(packed, layout)
        count = self.codec.most(layout) if sent is None else min(sent, self.codec.most(layout))
        check_size(self, packed, self.nbytes(layout, count))
        start, kind = self._place_bytes(count), self.codec.section(count)[0]
        indices = self.codec.indices(packed[:start].view(kind), count, layout, work)
        self.check_indices(indices, layout)
        aligned = work.take("chain.bytes", packed.numel() - start, torch.uint8, packed.device)
        values = work.take("chain.values", count, layout.dtype, packed.device)
        self.quantizer.decode(aligned.copy_(packed[start:]), _values(count, layout), values, work)
        return indices, values

    def summands(self, packed: Tensor, layout: Layout) -> Tensor:
        if not self.summable:
            return super().summands(packed, layout)
        check_size(self, packed, self.nbytes(layout))
        count = self.codec.most(layout)
        return self.quantizer.summands(packed[self._place_bytes(count) :], _values(count, layout))


def _values(count: int, layout: Layout) -> Layout:
    return Layout.single((count,), layout.dtype)


def _count_up(state: State) -> None:
    for inner in state.inner:
        inner.steps += 1


def _check(codec: Codec, quantizer: Codec) -> None:
    if not isinstance(codec, Pairs):
        raise UsageError(
            f"chain({codec!r}, {quantizer!r}): the first must send values with their places, as top_k, "
            "sampled_top_k and random_k do"
        )
    composed = isinstance(quantizer, Chain) or quantizer.remembers
    if composed or quantizer.sparse or quantizer.rounds:
        raise UsageError(
            f"chain({codec!r}, {quantizer!r}): the second must be a dense codec by itself, such as int8() or "
            "qsgd(). Put error_feedback around the chain and clip in front of it."
        )
