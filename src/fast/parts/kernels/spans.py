"""Which numbers of a flat tensor are quantized together.

A span is a piece of the tensor, cut into groups of `width` numbers of which the last may be
shorter. Every group has its own scale. The codes of a span start at a whole byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fast.view import Layout


class Span(NamedTuple):
    """One piece. All of it counts elements."""

    start: int
    size: int
    width: int

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def groups(self) -> int:
        return -(-self.size // self.width)

    def of(self, flat: Tensor) -> Tensor:
        """This span's view into `flat`."""
        return flat[self.start : self.stop]


@final
class Spans:
    """Pieces of one flat tensor, in order, and what follows from them."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = tuple(spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    @cached_property
    def groups(self) -> int:
        return sum(span.groups for span in self)

    @cached_property
    def size(self) -> int:
        return sum(span.size for span in self)

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """For compiled loops: a row (start, size, width) per span."""
        return np.array(self._spans, dtype=np.int64).reshape(-1, 3)

    def walk(self, bits: int = 8) -> Iterator[tuple[Span, slice, slice]]:
        """Each span with its groups among all groups, and with its bytes among all codes of so many
        bits: with 8, its numbers when all spans are put one after another."""
        group = at = 0
        for span in self:
            groups, size = span.groups, -(-span.size * bits // 8)
            yield span, slice(group, group + groups), slice(at, at + size)
            group, at = group + groups, at + size

    def nbytes(self, bits: int) -> int:
        """Of the codes, at so many bits per number."""
        return sum(-(-span.size * bits // 8) for span in self)


@lru_cache(maxsize=256)
def by_segment(layout: Layout, smallest: int = 0) -> Spans:
    """A group per segment; those of fewer than `smallest` numbers are left out."""
    chosen = [each for each in layout.segments if each.size >= smallest]
    return Spans(Span(each.start, each.size, max(each.size, 1)) for each in chosen)


@lru_cache(maxsize=256)
def small_segments(layout: Layout, below: int) -> Spans:
    """The segments of fewer than `below` numbers."""
    chosen = [each for each in layout.segments if each.size < below]
    return Spans(Span(each.start, each.size, max(each.size, 1)) for each in chosen)


@lru_cache(maxsize=256)
def by_row(layout: Layout) -> Spans:
    """A group per row of every segment as a matrix."""
    return Spans(Span(each.start, each.size, max(each.matrix[1], 1)) for each in layout.segments)


@lru_cache(maxsize=256)
def by_block(layout: Layout, block: int) -> Spans:
    """A group per `block` numbers of the flat tensor, whatever segments they belong to."""
    return Spans([Span(0, layout.size, min(block, max(layout.size, 1)))])


@lru_cache(maxsize=256)
def gaps(layout: Layout) -> tuple[slice, ...]:
    """Where no segment is: the padding between a model's parameters."""
    ends = [0, *(each.stop for each in layout.segments)]
    starts = [*(each.start for each in layout.segments), layout.size]
    return tuple(slice(end, start) for end, start in zip(ends, starts, strict=True) if start > end)
