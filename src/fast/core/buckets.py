"""Buckets: the gradient in slices, in the order in which backward computes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from fast.errors import UsageError
from fast.view import Layout

BUCKET_LIMIT = 30
"""Of so many the exchange can be under way at once; more would only cost headers."""


@dataclass(frozen=True)
class Bucket:
    """A slice of the flat gradient, ready to be exchanged."""

    number: int
    values: Tensor
    start: int
    total: int
    segments: int
    """Which parameters are inside, one bit each."""

    @property
    def stop(self) -> int:
        return self.start + self.values.numel()

    @property
    def part(self) -> tuple[int, int, int] | None:
        """Its place in the flat tensor; None if it is all of it."""
        return None if self.values.numel() == self.total else (self.start, self.stop, self.total)


@dataclass(frozen=True)
class Cutting:
    """A slice of a flat tensor on its way to the server that owns it, or a piece of that slice."""

    values: Tensor
    start: int
    """Its place in the sender's flat tensor."""
    present: int | None
    """Which of the server's parameters have a gradient in it."""
    part: tuple[int, int, int] | None = None
    """(start, stop, total) of a piece in the server's flat tensor."""


def bucket_cuts(layout: Layout, bucket_bytes: int | None) -> list[tuple[slice, int]]:
    """Slices of whole parameters with their bits, from the last parameter to the first.

    Each has at least `bucket_bytes` (None for all in one); if that makes too many, they are larger.
    """
    if bucket_bytes is None or not layout.segments:
        return [(slice(0, layout.size), layout.everything)]
    least = max(bucket_bytes // layout.dtype.itemsize, -(-layout.size // BUCKET_LIMIT), 1)
    cuts, stop, bits = [], layout.size, 0
    for number in reversed(range(len(layout.segments))):
        bits |= 1 << number
        start = layout.segments[number].start
        if stop - start >= least or number == 0:
            cuts.append((slice(start, stop), bits))
            stop, bits = start, 0
    return cuts


def buckets_of(flat: Tensor, cuts: Iterable[tuple[slice, int]]) -> list[Bucket]:
    """These slices of a flat tensor."""
    return [
        Bucket(number, flat if cut == slice(0, flat.numel()) else flat[cut], cut.start, flat.numel(), bits)
        for number, (cut, bits) in enumerate(cuts)
    ]


def ready_shares(layout: Layout, cuts: Iterable[tuple[slice, int]], forward: float) -> list[float]:
    """When each bucket is ready, as a share of a step's computing: after the forward pass backward
    goes through the parameters from the last to the first, in proportion to their sizes."""
    total = max(1, layout.size)
    return [forward + (1 - forward) * (1 - cut.start / total) for cut, _ in cuts]


def ended_too_early(strategy: object) -> UsageError:
    """A step that didn't wait for its gradient would apply half of it."""
    return UsageError(
        f"{strategy!r} has bucket_bytes, and its step ended before all of the gradient was computed. Use "
        "me.buckets(), me.stream() or me.mean_gradient(), or leave bucket_bytes out."
    )
