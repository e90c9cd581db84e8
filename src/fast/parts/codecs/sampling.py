"""The largest of many values: exactly, or about as many as were asked for.

Both look at a sample first. It suggests a key which about so many values reach, and one pass over
all of them finds out. The exact search then only has to order the candidates; where the sample was
misleading, it orders everything.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from fast.parts.codecs.base import Workspace
from fast.parts.kernels.selecting import gather, key_of, kth, number_of, sample, select, select_exactly

SAMPLED_FROM = 1 << 15
"""Smaller tensors are searched as a whole."""
LEAST_SAMPLE = 1 << 12
TRIES = 10
FEWEST, MOST = 0.8, 1.3
"""How many times k may be found: below and above that, the key is moved by the same factors."""


def how_many(ratio: float, size: int) -> int:
    """The k of a ratio: rounded up, at least one, and none of nothing."""
    return min(size, max(1, ceil(ratio * size)))


def most_sampled(k: int) -> int:
    """How many `sampled` may find for this k."""
    return ceil(MOST * k)


def largest(values: Tensor, k: int, indices: Tensor, chosen: Tensor, work: Workspace) -> None:
    """Places and values of the `k` largest by absolute value, ascending by place; NaN is largest.
    Of equal ones those with the lowest places are taken."""
    if k == 0 or (_worth_sampling(values, 4 * k) and _among_candidates(values, k, indices, chosen, work)):
        return
    key, ties = kth(values, k)
    select_exactly(values, key, ties, indices, chosen)


def sampled(values: Tensor, k: int, indices: Tensor, chosen: Tensor, work: Workspace) -> int:
    """Places and values of about `k` of the largest, and how many they are: at most `most_sampled(k)`,
    for which there must be room, and no fewer than 0.8 k unless all others are 0."""
    room = most_sampled(k)
    found = (
        _by_moving(values, k, indices[:room], chosen[:room], work) if _worth_sampling(values, 2 * k) else None
    )
    if found is None:
        largest(values, k, indices[:k], chosen[:k], work)
        return k
    return found


def _by_moving(values: Tensor, k: int, indices: Tensor, chosen: Tensor, work: Workspace) -> int | None:
    """Move the key until it finds as many as it should. None if it never does: many values may be equal."""
    room, dtype = indices.numel(), values.dtype
    key, infinite = _guess(values, k, work), key_of(float("inf"), values.dtype)
    for _ in range(TRIES):
        if key >= infinite:
            break
        found = select(values, key, indices, chosen)
        if found <= room and (found >= FEWEST * k or key == 1):
            return found
        key = max(1, key_of(number_of(key, dtype) * (MOST if found > room else FEWEST), dtype))
    return None


def _worth_sampling(values: Tensor, k: int) -> bool:
    return values.numel() >= SAMPLED_FROM and k <= values.numel()


def _guess(values: Tensor, k: int, work: Workspace) -> int:
    """A key that about `k` values reach, if the sample is like the whole; never that of 0."""
    count = max(LEAST_SAMPLE, values.numel() // 100)
    few = work.take("sampling.sample", count, values.dtype, values.device)
    sample(values, few)
    return max(1, kth(few, max(1, round(k * count / values.numel())))[0])


def _among_candidates(values: Tensor, k: int, indices: Tensor, chosen: Tensor, work: Workspace) -> bool:
    """Take the k largest of some more that the sample suggests; False if those turn out to be too few."""
    room = 3 * k + LEAST_SAMPLE
    places = work.take("sampling.places", room, torch.int32, values.device)
    candidates = work.take("sampling.candidates", room, values.dtype, values.device)
    found = select(values, _guess(values, k + k // 2, work), places, candidates)
    if not k <= found <= room:
        return False
    key, ties = kth(candidates[:found], k)
    among = work.take("sampling.among", k, torch.int32, values.device)
    select_exactly(candidates[:found], key, ties, among, chosen)
    gather(places, among, indices)
    return True
