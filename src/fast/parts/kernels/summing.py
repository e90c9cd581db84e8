"""Sums by halving: an order of additions that vector units like and that everybody can repeat.

Numbers are padded with zeros to a power of two, and the upper half is added to the lower half until
one number is left. More than `BLOCK` of them are first summed block by block, and the sums of blocks
likewise. More zeros at the end change nothing. The error grows with the logarithm of the length.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

BLOCK = 1024


def halved(rows: Tensor) -> Tensor:
    """The sum of every row of a matrix."""
    count, width = rows.shape
    if width > BLOCK:
        return halved(_halve(_padded(rows, -(-width // BLOCK) * BLOCK).view(-1, BLOCK)).view(count, -1))
    return _halve(_padded(rows, power_of_two(width)))


def _halve(rows: Tensor) -> Tensor:
    while rows.shape[1] > 1:
        lower, upper = rows.chunk(2, dim=1)
        rows = lower + upper
    return rows[:, 0]


def power_of_two(count: int) -> int:
    """The smallest that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()


def _padded(rows: Tensor, width: int) -> Tensor:
    return functional.pad(rows, (0, width - rows.shape[1])) if width > rows.shape[1] else rows


def grouped(values: Tensor, width: int) -> Tensor:
    """As rows of `width` numbers, the last filled with zeros."""
    return functional.pad(values, (0, -values.numel() % width)).view(-1, width)


def ungrouped(groups: Tensor, size: int) -> Tensor:
    """The first `size` numbers of these rows, flat."""
    return groups.reshape(-1)[:size]
