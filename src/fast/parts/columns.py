"""Several updates, coordinate by coordinate: their order in each, and how far whole updates are apart.

All of it goes piece by piece, so that what is worked on stays in the cache and no second copy of all
updates is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

PIECE = 1 << 15
"""So many coordinates are worked on at once."""


def middle_mean(updates: Sequence[Tensor], drop: int) -> Tensor:
    """In each coordinate the mean of what is left without the `drop` smallest and `drop` largest values.

    The values are finite. 16-bit floats are added in float32.
    """
    merged = torch.empty_like(updates[0], memory_format=torch.contiguous_format)
    flat, out = [each.reshape(-1) for each in updates], merged.view(-1)
    wide = torch.promote_types(out.dtype, torch.float32)
    for piece in _pieces(out):
        kept = _ascending([each[piece].to(wide, copy=True) for each in flat])[drop : len(flat) - drop]
        total = kept[0]
        for each in kept[1:]:
            total.add_(each)
        out[piece] = total.div_(len(kept))
    return merged


def squared_distances(updates: Sequence[Tensor]) -> Tensor:
    """|u_i - u_j|^2 for each two of them, in float64; they are finite.

    The differences themselves are squared. From a matrix of products, |u_i|^2 + |u_j|^2 - 2 u_i u_j, little
    would be left of the distance between two long updates that hardly differ.
    """
    count, flat = len(updates), [each.reshape(-1) for each in updates]
    pairs = flat[0].new_zeros(count * (count - 1) // 2, dtype=torch.float64)
    for piece in _pieces(flat[0]):
        rows = torch.stack([each[piece] for each in flat]).double()
        pairs += torch.pdist(rows).square_()
    one, other = torch.triu_indices(count, count, 1, device=pairs.device)
    square = pairs.new_zeros(count, count)
    square[one, other] = pairs
    square[other, one] = pairs
    return square


def _pieces(flat: Tensor) -> Iterator[slice]:
    """Slices of a flat tensor; one that has only a size is in one piece."""
    size = flat.numel()
    width = max(1, size) if flat.is_meta else PIECE
    return (slice(start, start + width) for start in range(0, size, width))


def _ascending(rows: list[Tensor]) -> list[Tensor]:
    """The same values with each column sorted, in the memory of the rows.

    A few rows of many columns: comparing whole rows takes a tenth of the time of sorting every column
    for itself. What has only a size is sorted as it is.
    """
    if rows[0].is_meta:
        return rows
    spare = torch.empty_like(rows[0])
    for low, high in comparisons(len(rows)):
        torch.minimum(rows[low], rows[high], out=spare)
        torch.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]
    return rows


def comparisons(count: int) -> Iterator[tuple[int, int]]:
    """Pairs of places that sort any `count` values if, one pair after another, the smaller value goes to
    the first place: Batcher's merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2)."""
    widest = 1 << max(0, (count - 1).bit_length() - 1)
    part = widest if count > 1 else 0
    while part:
        jump, bit, step = widest, 0, part
        while True:
            yield from ((place, place + step) for place in range(count - step) if place & part == bit)
            if jump == part:
                break
            jump, bit, step = jump >> 1, part, jump - part
        part >>= 1
