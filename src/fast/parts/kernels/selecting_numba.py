"""The kernels of `selecting.py` in compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fast.parts.kernels.compiling import compiled
from fast.parts.kernels.hashing import Keys
from fast.parts.kernels.hashing_numba import hash_of
from fast.parts.kernels.selecting import ROUNDS, SPREAD, bits_of, half_of, mask_of

Bits = NDArray[np.signedinteger[Any]]
Places = NDArray[np.int32]
DIGIT = 11
"""Bits of a key that are sorted at a time: their counts fit into the fastest memory."""


def kth(values: Tensor, k: int) -> tuple[int, int]:
    key, ties = _kth(bits_of(values).numpy(), mask_of(values.dtype), 8 * values.dtype.itemsize - 1, k)
    return int(key), int(ties)


@compiled
def _kth(bits: Bits, mask: int, width: int, k: int) -> tuple[np.int64, int]:
    """Digit by digit from the top: count those that agree in the digits before, walk down to the k-th."""
    counts = np.empty(1 << DIGIT, np.int64)
    prefix, left, shift = np.int64(0), k, width
    while shift > 0:
        above = shift
        shift = max(0, shift - DIGIT)
        digit = (np.int64(1) << (above - shift)) - 1
        counts[:] = 0
        for i in range(len(bits)):
            key = np.int64(bits[i]) & mask
            if key >> above == prefix:
                counts[(key >> shift) & digit] += 1
        at = digit
        while counts[at] < left:
            left -= counts[at]
            at -= 1
        prefix = (prefix << (above - shift)) | at
    return prefix, left


def select(values: Tensor, key: int, indices: Tensor, chosen: Tensor) -> int:
    return int(
        _select(bits_of(values).numpy(), mask_of(values.dtype), key, indices.numpy(), bits_of(chosen).numpy())
    )


@compiled
def _select(bits: Bits, mask: int, key: int, indices: Places, chosen: Bits) -> int:
    found, room = 0, len(indices)
    for i in range(len(bits)):
        if bits[i] & mask >= key:
            if found == room:
                return room + 1
            indices[found] = i
            chosen[found] = bits[i]
            found += 1
    return found


def select_exactly(values: Tensor, key: int, ties: int, indices: Tensor, chosen: Tensor) -> None:
    _select_exactly(
        bits_of(values).numpy(), mask_of(values.dtype), key, ties, indices.numpy(), bits_of(chosen).numpy()
    )


@compiled
def _select_exactly(bits: Bits, mask: int, key: int, ties: int, indices: Places, chosen: Bits) -> None:
    found = 0
    for i in range(len(bits)):
        own = bits[i] & mask
        if own >= key:
            if own == key:
                if ties == 0:
                    continue
                ties -= 1
            indices[found] = i
            chosen[found] = bits[i]
            found += 1


def sample(values: Tensor, out: Tensor) -> None:
    _sample(bits_of(values).numpy(), bits_of(out).numpy())


@compiled
def _sample(bits: Bits, out: Bits) -> None:
    stretch = len(bits) // len(out)
    for i in range(len(out)):
        out[i] = bits[i * stretch + (i * SPREAD) % stretch]


def gather(values: Tensor, indices: Tensor, out: Tensor) -> None:
    _gather(bits_of(values).numpy(), indices.numpy(), bits_of(out).numpy())


@compiled
def _gather(bits: Bits, indices: Places, out: Bits) -> None:
    for i in range(len(indices)):
        out[i] = bits[indices[i]]


def put(out: Tensor, indices: Tensor, values: Tensor) -> None:
    _put(bits_of(out).numpy(), indices.numpy(), bits_of(values).numpy())


@compiled
def _put(out: Bits, indices: Places, bits: Bits) -> None:
    for i in range(len(indices)):
        out[indices[i]] = bits[i]


def clear(out: Tensor, indices: Tensor) -> None:
    _clear(bits_of(out).numpy(), indices.numpy())


@compiled
def _clear(out: Bits, indices: Places) -> None:
    for i in range(len(indices)):
        out[indices[i]] = 0


def ascending(indices: Tensor, size: int) -> bool:
    return bool(_ascending(indices.numpy(), size))


@compiled
def _ascending(indices: Places, size: int) -> bool:
    before = -1
    for i in range(len(indices)):
        if indices[i] <= before or indices[i] >= size:
            return False
        before = indices[i]
    return True


def draw(out: Tensor, size: int, keys: Keys) -> None:
    places = out.numpy()
    _draw(places, size, half_of(size), np.uint32(keys[0]), np.uint32(keys[1]))
    places.sort()


@compiled
def _draw(out: Places, size: int, half: int, first: np.uint32, second: np.uint32) -> None:
    low = (1 << half) - 1
    for i in range(len(out)):
        place = i
        while True:
            left, right = place >> half, place & low
            for turn in range(ROUNDS):
                mixed = int(hash_of(np.uint32(right | (turn << 16)), first, second)) & low
                left, right = right, left ^ mixed
            place = (left << half) | right
            if place < size:
                break
        out[i] = place
