"""Direct reduce-scatter and all-gather: the canonical order on any transport.

Each member sends slice k of its tensor to member k; member k adds what it got in ascending order
and sends the mean of its slice to everybody. 2 (P - 1) / P of the tensor per member, like a ring,
but in two hops, and the order of the sum is ours.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fast.collectives.canonical import canonical_mean
from fast.core.letter import Letter, union
from fast.core.world import Need, Reduction, World
from fast.view import ALIGN_BYTES

_PIECE, _RESULT = "fast.piece", "fast.result"
MEAN_TAGS = (_PIECE, _RESULT)
"""The tags of letters that a mean consists of."""


async def direct_mean(
    world: World, tensor: Tensor, among: tuple[int, ...], weight: float, present: int | None
) -> Reduction:
    """The weighted mean over those of `among` who have not left.

    Somebody who leaves has sent either all its pieces of this round or none, so all others come
    to the same list of members; if it is shorter than they thought, they cut anew.
    """
    members, flat = among, tensor.reshape(-1)
    while True:
        cuts = _cuts(flat, len(members))
        others = tuple(peer for peer in members if peer != world.id)
        for peer in others:
            piece = flat[cuts[members.index(peer)]]
            world.send((peer,), _letter(world, _PIECE, piece, weight, present))
        await world.wait(_PIECE, others, Need.ALL)
        pieces = {peer: letter for peer in others if (letter := world.take_one(_PIECE, peer)) is not None}
        here = tuple(peer for peer in members if peer == world.id or peer in pieces)
        if here == members:
            break
        members = here
    return await _share_result(world, tensor, members, cuts, pieces, weight, present)


async def _share_result(
    world: World,
    tensor: Tensor,
    members: tuple[int, ...],
    cuts: list[slice],
    pieces: dict[int, Letter],
    weight: float,
    present: int | None,
) -> Reduction:
    others = tuple(pieces)
    own = tensor.reshape(-1)[cuts[members.index(world.id)]]
    inputs = [own if peer == world.id else pieces[peer].tensor for peer in members]
    weights = [weight if peer == world.id else pieces[peer].weight for peer in members]
    mine = canonical_mean(inputs, weights)
    world.send(others, _letter(world, _RESULT, mine, 1.0, None))
    await world.wait(_RESULT, others, Need.ALL)
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format).reshape(-1)
    result[cuts[members.index(world.id)]] = mine
    together = present
    for peer in others:
        letter = world.take_one(_RESULT, peer)
        assert letter is not None, "whoever sent its piece sends its result before it can leave"
        result[cuts[members.index(peer)]] = letter.tensor
        together = union(together, pieces[peer].present)
    return Reduction(result.view(tensor.shape), members, together)


def _letter(world: World, tag: str, values: Tensor, weight: float, present: int | None) -> Letter:
    return Letter(world.id, tag, values, steps=(0,), weight=weight, present=present)


def _cuts(flat: Tensor, count: int) -> list[slice]:
    """As equal as 64-byte boundaries allow; some are empty if there is little to cut."""
    unit = ALIGN_BYTES // flat.element_size()
    units = -(-flat.numel() // unit)
    edges = [min(units * k // count * unit, flat.numel()) for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]
