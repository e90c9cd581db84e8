"""Matrices as products of thin ones, by a power iteration (PowerSGD: Vogels et al., 2019).

A gradient M of n × m becomes P Qᵀ with r columns each: P = M Q with the Q of the time before,
orthonormalised, then Q = Mᵀ P. That is P Pᵀ M, and with the same M again and again P turns towards
its r largest singular vectors. The two factors are linear in M, so workers can average them instead
of their matrices: the result is that of their mean matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, final

import torch
from torch import Tensor

from fast.parts.codecs.arguments import check_integer
from fast.parts.codecs.base import Codec, State, Workspace, as_float32, check_size
from fast.parts.codecs.orthonormal import fresh_rows, orthonormalise
from fast.view import Layout, Segment

Mean = Callable[[Tensor], Awaitable[Tensor]]
"""Averages a flat tensor over the workers; the result is valid until the next call."""
MOST_COLUMNS = 1 << 20


class InRounds(ABC):
    """What a codec offers that averages over workers in rounds of its own, without decoding between."""

    @abstractmethod
    def round_sizes(self, layout: Layout) -> Sequence[int]:
        """How many values are averaged in each round."""

    @abstractmethod
    async def mean_rounds(
        self, values: Tensor, layout: Layout, state: State, work: Workspace, mean: Mean, out: Tensor
    ) -> None:
        """Write into `out` what decodes to the mean of everybody's values."""

    @abstractmethod
    async def mean_rounds_rest(
        self, values: Tensor, layout: Layout, state: State, work: Workspace, mean: Mean, out: Tensor
    ) -> None:
        """The same, and leave in `values` what is to be remembered: values − out where it is inexact."""


@final
@dataclass(frozen=True, repr=False)
class Factored(Codec, InRounds):
    """Two factors of `r` columns in the place of each matrix. A tensor of more dimensions is a matrix
    with one row per output unit. What has one dimension, or would not become smaller, travels whole.

    itemsize · r (n + m) bytes per matrix. What is kept from call to call is Q; everybody begins
    with the same. A matrix with NaN or infinity arrives as NaN.
    """

    r: int
    name: ClassVar[str] = "low_rank"
    rounds = True

    def __post_init__(self) -> None:
        check_integer(self.name, 1, MOST_COLUMNS, r=self.r)

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        flat = torch.empty(self._parts(layout).second, dtype=_kind(layout.dtype), device=device)
        for matrix in self._parts(layout).matrices:
            q = matrix.q(flat)
            q.copy_(self._fresh(matrix, q))
            orthonormalise(q)
        return State(seed, tensors={"q": flat})

    def _fresh(self, matrix: _Matrix, q: Tensor) -> Tensor:
        return fresh_rows(self.r, matrix.columns, matrix.number, q.dtype, q.device)

    def _parts(self, layout: Layout) -> _Parts:
        return _parts(layout, self.r)

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        parts = self._parts(layout)
        return (parts.first + parts.second) * layout.dtype.itemsize

    # At once

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        parts, wide = self._parts(layout), _widened(values, "low_rank.values", work)
        first = parts.projected(wide, state.tensors["q"], work)
        parts.orthonormalise(first)
        second = parts.answered(wide, first, work)
        self._keep(second, parts, state)
        packed = work.take("low_rank.packed", self.nbytes(layout), torch.uint8, values.device)
        numbers = packed.view(layout.dtype)
        numbers[: parts.first] = first
        numbers[parts.first :] = second
        return packed

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        check_size(self, packed, self.nbytes(layout))
        parts, numbers = self._parts(layout), _widened(packed.view(layout.dtype), "low_rank.numbers", work)
        parts.multiplied(numbers[: parts.first], numbers[parts.first :], out, work)

    def _keep(self, second: Tensor, parts: _Parts, state: State) -> None:
        """Q for the next time. Its columns may have any length, and only what they span matters; those
        that are 0 would stay 0 for ever, so they begin afresh."""
        state.tensors["q"].copy_(second)
        for matrix in parts.matrices:
            q = matrix.q(state.tensors["q"])
            orthonormalise(q, partial(self._fresh, matrix, q))

    # In rounds

    def round_sizes(self, layout: Layout) -> Sequence[int]:
        parts = self._parts(layout)
        return [size for size in (parts.first, parts.second) if size]

    async def mean_rounds(
        self, values: Tensor, layout: Layout, state: State, work: Workspace, mean: Mean, out: Tensor
    ) -> None:
        """Two rounds: dense parts and all P, then all Q. The result is that of the mean matrix."""
        parts, wide = self._parts(layout), _widened(values, "low_rank.values", work)
        first = parts.projected(wide, state.tensors["q"], work)
        await _average(first, layout, mean, work)
        parts.orthonormalise(first)
        second = parts.answered(wide, first, work)
        await _average(second, layout, mean, work)
        self._keep(second, parts, state)
        parts.multiplied(first, second, out, work)

    async def mean_rounds_rest(
        self, values: Tensor, layout: Layout, state: State, work: Workspace, mean: Mean, out: Tensor
    ) -> None:
        """What is dense was said in full: nothing of it is to be remembered."""
        await self.mean_rounds(values, layout, state, work, mean, out)
        values.sub_(out).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        for segment in self._parts(layout).dense:
            values[segment.start : segment.stop].zero_()


@final
@dataclass(frozen=True)
class _Matrix:
    """One matrix of a layout, and where its factors are. Factors are kept as rows, each in one piece."""

    segment: Segment
    r: int
    number: int
    p_start: int
    q_start: int

    @property
    def rows(self) -> int:
        return self.segment.matrix[0]

    @property
    def columns(self) -> int:
        return self.segment.matrix[1]

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.segment.start : self.segment.stop].view(self.segment.matrix)

    def p(self, first: Tensor) -> Tensor:
        return first[self.p_start : self.p_start + self.r * self.rows].view(self.r, self.rows)

    def q(self, second: Tensor) -> Tensor:
        return second[self.q_start : self.q_start + self.r * self.columns].view(self.r, self.columns)


@final
@dataclass(frozen=True)
class _Parts:
    """What of a layout is dense and what is factored. Of two flat tensors, the `first` holds the dense
    values and all P, the `second` all Q."""

    dense: tuple[Segment, ...]
    matrices: tuple[_Matrix, ...]
    first: int
    second: int

    def projected(self, flat: Tensor, q: Tensor, work: Workspace) -> Tensor:
        """Dense values, and P = M Q."""
        first = work.take("low_rank.first", self.first, flat.dtype, flat.device)
        at = 0
        for segment in self.dense:
            first[at : at + segment.size] = flat[segment.start : segment.stop]
            at += segment.size
        for matrix in self.matrices:
            torch.mm(matrix.q(q), matrix.of(flat).T, out=matrix.p(first))
        return first

    def orthonormalise(self, first: Tensor) -> None:
        for matrix in self.matrices:
            orthonormalise(matrix.p(first))

    def answered(self, flat: Tensor, first: Tensor, work: Workspace) -> Tensor:
        """Q = Mᵀ P."""
        second = work.take("low_rank.second", self.second, flat.dtype, flat.device)
        for matrix in self.matrices:
            torch.mm(matrix.p(first), matrix.of(flat), out=matrix.q(second))
        return second

    def multiplied(self, first: Tensor, second: Tensor, out: Tensor, work: Workspace) -> None:
        """Dense values at their places, P Qᵀ at those of the matrices, 0 between."""
        wide = (
            out
            if out.dtype == first.dtype
            else work.take("low_rank.out", out.numel(), first.dtype, out.device)
        )
        wide.zero_()
        at = 0
        for segment in self.dense:
            wide[segment.start : segment.stop] = first[at : at + segment.size]
            at += segment.size
        for matrix in self.matrices:
            torch.mm(matrix.p(first).T, matrix.q(second), out=matrix.of(wide))
        if wide is not out:
            out.copy_(wide)


@lru_cache(maxsize=256)
def _parts(layout: Layout, r: int) -> _Parts:
    dense = tuple(segment for segment in layout.segments if not _shrinks(segment, r))
    first, second = sum(segment.size for segment in dense), 0
    matrices = []
    for number, segment in enumerate(layout.segments):
        if _shrinks(segment, r):
            matrices.append(_Matrix(segment, r, number, first, second))
            first += r * matrices[-1].rows
            second += r * matrices[-1].columns
    return _Parts(dense, tuple(matrices), first, second)


def _shrinks(segment: Segment, r: int) -> bool:
    rows, columns = segment.matrix
    return len(segment.shape) > 1 and r * (rows + columns) < rows * columns


def _kind(dtype: torch.dtype) -> torch.dtype:
    """What is computed in."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def _widened(values: Tensor, name: str, work: Workspace) -> Tensor:
    return values if _kind(values.dtype) == values.dtype else as_float32(values, work, name)


async def _average(numbers: Tensor, layout: Layout, mean: Mean, work: Workspace) -> None:
    """In place, over the workers, in the dtype of the layout."""
    if not numbers.numel():
        return
    sent = numbers
    if numbers.dtype != layout.dtype:
        sent = work.take("low_rank.sent", numbers.numel(), layout.dtype, numbers.device).copy_(numbers)
    numbers.copy_(await mean(sent))
