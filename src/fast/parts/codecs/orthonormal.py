"""Rows of a matrix, made orthonormal one after the other (Gram and Schmidt), whatever is in them."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor

from fast.parts.kernels.hashing import keys_of, uniform_of

FRESH_SEED = 20190531
"""The same for everybody: workers must begin with the same rows."""
DEPENDENT = 16.0
"""A row of which less than this times the rounding error is left depends on those before it."""


def orthonormalise(rows: Tensor, fresh: Callable[[], Tensor] | None = None) -> None:
    """In place. A row that depends on those before it becomes 0, and one that isn't finite NaN; with
    `fresh`, either is replaced by the row at the same place of what that gives."""
    for number, row in enumerate(rows):
        if not _join(rows[:number], row) and fresh is not None:
            row.copy_(fresh()[number])
            _join(rows[:number], row)


def _join(before: Tensor, row: Tensor) -> bool:
    """Whether something of this row is left beside the ones before, which are orthonormal."""
    largest = float(torch.linalg.vector_norm(row, torch.inf))
    if not isfinite(largest):
        row.fill_(torch.nan)
        return False
    if largest == 0:
        return False
    row.div_(largest)  # squares of very small or very large numbers don't fit
    length = float(torch.linalg.vector_norm(row))
    for _ in range(2):  # once leaves rounding errors that count when little is left
        row.addmv_(before.T, before @ row, alpha=-1)
    left = float(torch.linalg.vector_norm(row))
    if not left > DEPENDENT * torch.finfo(row.dtype).eps * length:
        row.zero_()
        return False
    row.div_(left)
    return True


def fresh_rows(count: int, width: int, number: int, kind: torch.dtype, device: torch.device) -> Tensor:
    """For matrix `number` of a layout: uniform in [-1, 1), the same everywhere and every time."""
    places = torch.arange(count * width, device=device)
    uniform = uniform_of(places, keys_of(FRESH_SEED, number)).to(kind)
    return uniform.mul_(2).sub_(1).view(count, width)
