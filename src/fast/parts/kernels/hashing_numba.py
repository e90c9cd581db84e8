"""The hash of `hashing.py` in compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fast.parts.kernels.compiling import compiled
from fast.parts.kernels.hashing import FIRST, SECOND, UNIT, Keys

FIRST_32, SECOND_32 = np.uint32(FIRST), np.uint32(SECOND)
BITS_8, BITS_15, BITS_16 = np.uint32(8), np.uint32(15), np.uint32(16)
UNIT_32 = np.float32(UNIT)


def hashes(out: Tensor, keys: Keys, start: int = 0) -> None:
    _hashes(out.numpy(), np.uint32(keys[0]), np.uint32(keys[1]), start)


@compiled
def hash_of(place: np.uint32, first: np.uint32, second: np.uint32) -> np.uint32:
    """Every result is cast back: left alone, numba computes in 64 bits, half as many at a time."""
    x = np.uint32(place ^ first)
    x = np.uint32(np.uint32(x ^ np.uint32(x >> BITS_16)) * FIRST_32)
    x = np.uint32(np.uint32(x ^ np.uint32(x >> BITS_15)) ^ second)
    x = np.uint32(x * SECOND_32)
    return np.uint32(x ^ np.uint32(x >> BITS_16))


@compiled
def uniform_of(place: np.uint32, first: np.uint32, second: np.uint32) -> np.float32:
    """In [0, 1); signed, because the processor converts only signed numbers fast."""
    return np.float32(np.int32(hash_of(place, first, second) >> BITS_8)) * UNIT_32


@compiled
def _hashes(out: NDArray[np.int64], first: np.uint32, second: np.uint32, start: int) -> None:
    for i in range(len(out)):
        out[i] = hash_of(np.uint32(start + i), first, second)
