"""Which slice of a flat tensor is whose."""

from __future__ import annotations

from itertools import pairwise

from fast.view import ALIGN_BYTES


def cut_evenly(count: int, size: int, itemsize: int) -> list[slice]:
    """`count` slices of `size` elements, as equal as 64-byte boundaries allow; some may be empty.

    Slice k belongs to the k-th member. An optimizer that runs on such a slice alone gives the
    bits that it gives on the whole.

    >>> cut_evenly(2, 50, itemsize=4)
    [slice(0, 32, None), slice(32, 50, None)]
    """
    unit = ALIGN_BYTES // itemsize
    units = -(-size // unit)
    return _between([min(units * k // count * unit, size) for k in range(count + 1)])


def cut_exactly(count: int, size: int) -> list[slice]:
    """`count` slices whose lengths differ by one element at most."""
    return _between([size * k // count for k in range(count + 1)])


def _between(edges: list[int]) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(edges)]
