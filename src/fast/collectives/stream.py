"""Streams: sparse tensors as ascending indices and their values, and partial sums of them.

A partial sum is a stream as long as that takes fewer bytes than all values would, and a plain flat
tensor from then on: when nnz > d v / (v + i), with v and i the bytes of a value and of an index.

C. Renggli et al., SparCML: high-performance sparse communication for machine learning (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fast.collectives.mail import check_like
from fast.errors import WireError


@final
@dataclass(frozen=True)
class Stream:
    """The values of a flat tensor of `size` elements that aren't 0."""

    indices: Tensor
    """Ascending, each at most once."""
    values: Tensor
    size: int

    @staticmethod
    def of(dense: Tensor) -> Stream:
        """All that isn't 0 in a flat tensor; NaN is not 0."""
        indices = dense.nonzero().view(-1)
        return Stream(indices.to(index_dtype(dense.numel())), dense[indices], dense.numel())

    def __len__(self) -> int:
        return self.indices.numel()

    def scaled(self, dtype: torch.dtype, factor: float | None) -> Stream:
        """In another dtype, and multiplied."""
        values = self.values.to(dtype)
        return Stream(self.indices, values if factor is None else values * factor, self.size)

    def part(self, cut: slice) -> Stream:
        """Of a slice, with indices that count from its beginning."""
        edges = self.indices.new_tensor([cut.start, cut.stop])
        first, last = torch.searchsorted(self.indices, edges).tolist()
        return Stream(self.indices[first:last] - cut.start, self.values[first:last], cut.stop - cut.start)


Partial = Stream | Tensor
"""A sum so far: a stream, or a flat tensor."""


def index_dtype(size: int) -> torch.dtype:
    return torch.int32 if size < 1 << 31 else torch.int64


def dense_limit(size: int, value_bytes: int, index_bytes: int) -> float:
    """A stream of more values than this takes more bytes than all values of the flat tensor."""
    return size * value_bytes / (value_bytes + index_bytes)


def shorter(stream: Stream) -> Partial:
    """The stream, or all its values where they take fewer bytes."""
    limit = dense_limit(stream.size, stream.values.element_size(), index_dtype(stream.size).itemsize)
    if len(stream) <= limit:
        return stream
    dense = torch.zeros(stream.size, dtype=stream.values.dtype, device=stream.values.device)
    add_into(dense, stream)
    return dense


def added(low: Partial, high: Partial) -> Partial:
    """The sum, in memory of its own; `low` comes first in each addition. The inputs stay intact."""
    match low, high:
        case Stream(), Stream():
            return shorter(_merged(low, high))
        case Tensor(), _:
            total = low.clone()
            add_into(total, high)
            return total
        case _, Tensor():
            total = torch.zeros_like(high)
            add_into(total, low)
            return total.add_(high)
    raise AssertionError(f"a sum of {type(low)} and {type(high)}")


def add_into(total: Tensor, partial: Partial) -> None:
    """total += partial."""
    if isinstance(partial, Tensor):
        total.add_(partial)
    else:
        total.index_add_(0, partial.indices, partial.values)


def _merged(low: Stream, high: Stream) -> Stream:
    """Both in one, in order: how many indices of the other come before one gives its place in all."""
    a, b = low.indices, high.indices
    if not len(low) or not len(high):
        return high if len(high) else low
    before = torch.searchsorted(a, b)
    shared = a[before.clamp(max=len(a) - 1)] == b
    fresh = b[~shared]
    a_places = torch.arange(len(a), device=a.device) + torch.searchsorted(fresh, a)
    b_places = torch.empty_like(before)
    b_places[shared] = a_places[before[shared]]
    b_places[~shared] = torch.arange(len(fresh), device=a.device) + before[~shared]
    indices = a.new_empty(len(a) + len(fresh))
    indices[a_places], indices[b_places] = a, b
    values = low.values.new_zeros(len(indices))
    values[a_places] = low.values
    values[b_places] += high.values
    return Stream(indices, values, low.size)


def to_letter(partial: Partial) -> Tensor:
    """What travels: the values themselves, or bytes: whichever of indices and values are wider first."""
    if isinstance(partial, Tensor):
        return partial
    sections = sorted((partial.values, partial.indices), key=lambda each: -each.element_size())
    return torch.cat([each.contiguous().view(torch.uint8) for each in sections])


def from_letter(letter: Tensor, like: Tensor, peer: int) -> Partial:
    """Back, for a sum of the size and dtype of `like`; WireError where it can't be right."""
    if letter.dtype != torch.uint8:
        return check_like(letter, like, peer)
    number, size = index_dtype(like.numel()), like.numel()
    count, rest = divmod(letter.numel(), number.itemsize + like.element_size())
    if rest:
        raise WireError(f"peer {peer} sent {letter.numel()} bytes, which are no whole number of values")
    values_first = like.element_size() >= number.itemsize
    cut = count * (like.element_size() if values_first else number.itemsize)
    head, tail = letter[:cut], letter[cut:]
    values, indices = (head, tail) if values_first else (tail, head)
    return _checked(Stream(indices.view(number), values.view(like.dtype), size), peer)


def _checked(stream: Stream, peer: int) -> Stream:
    at = stream.indices
    if len(stream) and (at[0] < 0 or at[-1] >= stream.size or not bool((at[1:] > at[:-1]).all())):
        raise WireError(
            f"peer {peer} sent indices that are not ascending or not within {stream.size} values; refused"
        )
    return stream
