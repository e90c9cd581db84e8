"""Sums by halving in compiled loops; see `summing.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fast.parts.kernels.compiling import compiled
from fast.parts.kernels.summing import BLOCK

Floats = NDArray[np.float32]


@compiled
def halve(terms: Floats, count: int) -> np.float32:
    """The sum of the first `count` of these `BLOCK` numbers, which are overwritten."""
    width = 8
    while width < count:
        width *= 2
    if width > count:
        terms[count:width] = np.float32(0)
    while width > 8:
        width //= 2
        lower, upper = terms[:width], terms[width : 2 * width]
        for i in range(width):
            lower[i] += upper[i]
    even = (terms[0] + terms[4]) + (terms[2] + terms[6])
    odd = (terms[1] + terms[5]) + (terms[3] + terms[7])
    total: np.float32 = even + odd
    return total


@compiled
def halve_blocks(sums: Floats, count: int, terms: Floats) -> np.float32:
    """The sum of the first `count` of these sums of blocks; both arrays are overwritten."""
    while count > 1:
        blocks = (count + BLOCK - 1) // BLOCK
        for block in range(blocks):
            part = sums[block * BLOCK : min((block + 1) * BLOCK, count)]
            terms[: len(part)] = part
            sums[block] = halve(terms, len(part))
        count = blocks
    total: np.float32 = sums[0]
    return total
