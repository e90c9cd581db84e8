"""Choosing few of many values, and putting them back.

Values are compared by their *keys*: the bits of a floating point number without its sign, read as
an integer. They are ordered like the absolute values, infinity is above all finite ones and NaN
above infinity. So one loop serves float64, float32, float16 and bfloat16, and moves them bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from fast.parts.kernels.choosing import kernel
from fast.parts.kernels.hashing import Keys, hash_of

WHOLE: Mapping[int, torch.dtype] = MappingProxyType({2: torch.int16, 4: torch.int32, 8: torch.int64})
"""The integers by their size in bytes."""
SPREAD = 40503
"""A prime by which samples are moved, so that they don't all fall into one column of a matrix."""
ROUNDS = 6
"""Of the permutation by which `draw` picks places."""


def bits_of(values: Tensor) -> Tensor:
    """The same memory as integers. An empty tensor may have strides with which torch makes no such view."""
    kind = WHOLE[values.dtype.itemsize]
    return values.view(kind) if values.numel() else values.new_empty(0, dtype=kind)


def mask_of(dtype: torch.dtype) -> int:
    """All bits but the sign."""
    return (1 << (8 * dtype.itemsize - 1)) - 1


def keys_of(values: Tensor) -> Tensor:
    """As integers that are ordered like the absolute values."""
    return bits_of(values) & mask_of(values.dtype)


def key_of(number: float, dtype: torch.dtype) -> int:
    """Of one number, rounded to this kind."""
    return int(keys_of(torch.tensor([number], dtype=torch.float64).to(dtype)))


def number_of(key: int, dtype: torch.dtype) -> float:
    """The number, without a sign, that has this key."""
    return float(torch.tensor([key], dtype=WHOLE[dtype.itemsize]).view(dtype))


@kernel
def kth(values: Tensor, k: int) -> tuple[int, int]:
    """The key of the `k`-th largest value, and how many that have this key are among the first `k`."""
    keys = keys_of(values)
    key = int(torch.sort(keys, descending=True).values[k - 1])
    return key, k - int((keys > key).sum())


@kernel
def select(values: Tensor, key: int, indices: Tensor, chosen: Tensor) -> int:
    """Write places and values of all that have at least this key, by ascending place; how many they are.

    One more than there is room for says that they are too many; then what was written means nothing.
    """
    places = (keys_of(values) >= key).nonzero().view(-1)
    found, room = places.numel(), indices.numel()
    if found > room:
        return room + 1
    indices[:found] = places
    chosen[:found] = values[places]
    return found


@kernel
def select_exactly(values: Tensor, key: int, ties: int, indices: Tensor, chosen: Tensor) -> None:
    """Places and values of all that are above this key, and of the first `ties` that have it."""
    keys = keys_of(values)
    level = keys == key
    places = ((keys > key) | (level & (level.cumsum(0) <= ties))).nonzero().view(-1)
    indices.copy_(places)
    chosen.copy_(values[places])


@kernel
def sample(values: Tensor, out: Tensor) -> None:
    """As many values as fit into `out`, one from each of as many equal stretches."""
    stretch = values.numel() // out.numel()
    number = torch.arange(out.numel(), device=values.device)
    out.copy_(values[number * stretch + (number * SPREAD) % stretch])


@kernel
def gather(values: Tensor, indices: Tensor, out: Tensor) -> None:
    """The values at these places."""
    out.copy_(values[indices.long()])


@kernel
def put(out: Tensor, indices: Tensor, values: Tensor) -> None:
    """Write these values at these places; all else stays."""
    out[indices.long()] = values


@kernel
def clear(out: Tensor, indices: Tensor) -> None:
    """Write 0 at these places; all else stays."""
    out[indices.long()] = 0


@kernel
def ascending(indices: Tensor, size: int) -> bool:
    """Whether each of these places is in [0, size) and above the one before."""
    if not indices.numel():
        return True
    return bool(indices[0] >= 0) and bool(indices[-1] < size) and bool((indices[1:] > indices[:-1]).all())


@kernel
def draw(out: Tensor, size: int, keys: Keys) -> None:
    """Fill `out` with different places in [0, size), ascending, every set of them as likely as any other.

    They are the first numbers after a permutation that the keys determine: rounds that exchange two
    halves of the bits, of which one is changed by a hash of the other, repeated while the result is
    out of range. So the work depends on how many are drawn and not on the size.
    """
    half = half_of(size)
    low = (1 << half) - 1
    places = _permuted(torch.arange(out.numel(), device=out.device), half, low, keys)
    while bool((places >= size).any()):
        places = torch.where(places >= size, _permuted(places, half, low, keys), places)
    out.copy_(places.sort().values)


def half_of(size: int) -> int:
    """Half of the bits that hold all places, rounded up. With fewer than 3 some pairs would be likelier."""
    return max(3, -(-(size - 1).bit_length() // 2))


def _permuted(places: Tensor, half: int, low: int, keys: Keys) -> Tensor:
    left, right = places >> half, places & low
    for turn in range(ROUNDS):
        left, right = right, left ^ (hash_of(right | (turn << 16), keys) & low)
    return (left << half) | right
