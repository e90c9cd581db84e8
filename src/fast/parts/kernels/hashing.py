"""Random numbers that are a function of seed, step and place: nothing is drawn, nothing remembered.

The counter of a place goes through two rounds of xor-shift and multiplication modulo 2^32, with a
key before each. The keys are made of seed and step, so other steps are not shifted copies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fast.parts.kernels.choosing import kernel

LOW = 0xFFFFFFFF
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
"""Odd multipliers whose rounds let every bit of the input change half the bits of the output."""
UNIT = 2.0**-24
"""A uniform number is the upper 24 bits of a hash times this: exact in float32, in [0, 1)."""

Keys = tuple[int, int]


def keys_of(seed: int, step: int) -> Keys:
    """Two keys of 32 bits."""
    mixed = _mix64(_mix64(seed) ^ step)
    return mixed >> 32, mixed & LOW


def _mix64(value: int) -> int:
    """Steele, Lea and Flood's SplitMix: neighbouring numbers get unrelated results."""
    full = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & full
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & full
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & full
    return value ^ (value >> 31)


@kernel
def hashes(out: Tensor, keys: Keys, start: int = 0) -> None:
    """Write the hashes of the places `start`, `start + 1`, ... into `out`, int64 in [0, 2^32)."""
    out.copy_(hash_of(torch.arange(start, start + out.numel(), device=out.device), keys))


def hash_of(places: Tensor, keys: Keys) -> Tensor:
    """Of these places, in torch operations on int64; what is above 32 bits is cut off."""
    x = (places & LOW) ^ keys[0]
    x = ((x ^ (x >> 16)) * FIRST) & LOW
    x = (x ^ (x >> 15)) ^ keys[1]
    x = (x * SECOND) & LOW
    return x ^ (x >> 16)


def uniform_of(places: Tensor, keys: Keys) -> Tensor:
    """Of these places, float32 in [0, 1)."""
    return (hash_of(places, keys) >> 8).to(torch.float32) * UNIT
