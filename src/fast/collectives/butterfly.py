"""Butterflies: in each hop everybody exchanges with the member whose place differs in one bit.

Recursive doubling exchanges all that one has: log2 P hops, each with the whole tensor. Rabenseifner's
algorithm exchanges halves, then halves of halves, until each member has the sum of one slice, and
gathers on the way back: 2 log2 P hops, 2 (P - 1) / P of the tensor.

Of a number of members that is no power of two, the surplus hands its terms to others first and gets
the sums at the end. Both partners add in the same order, the lower place first: the same bits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import torch
from torch import Tensor

from fast.collectives.cutting import cut_exactly
from fast.collectives.mail import Mail


async def doubling(mail: Mail, terms: Tensor, members: tuple[int, ...]) -> None:
    """Turn this member's terms into the sums over all members, in place: by recursive doubling."""

    async def inner(core: tuple[int, ...]) -> None:
        at = core.index(mail.id)
        for distance in distances(len(core)):
            mail.send((core[at ^ distance],), terms)
            _add(terms, await mail.receive(core[at ^ distance], terms), at & distance == 0)

    await _with_surplus(mail, terms, members, inner)


async def rabenseifner(mail: Mail, terms: Tensor, members: tuple[int, ...]) -> None:
    """The same by recursive halving, and doubling of what is gathered."""

    async def inner(core: tuple[int, ...]) -> None:
        cuts = cut_exactly(len(core), terms.numel())
        await _halve(mail, terms, core, cuts)
        await _gather(mail, terms, core, cuts)

    await _with_surplus(mail, terms, members, inner)


async def _halve(mail: Mail, terms: Tensor, core: tuple[int, ...], cuts: list[slice]) -> None:
    """Of 2 d slices that both partners have summed so far, each keeps the d that it is itself among."""
    at = core.index(mail.id)
    for distance in reversed(distances(len(core))):
        partner = at ^ distance
        mail.send((core[partner],), _block(terms, cuts, partner, distance))
        kept = _block(terms, cuts, at, distance)
        _add(kept, await mail.receive(core[partner], kept), at < partner)


async def _gather(mail: Mail, sums: Tensor, core: tuple[int, ...], cuts: list[slice]) -> None:
    at = core.index(mail.id)
    for distance in distances(len(core)):
        partner = at ^ distance
        mail.send((core[partner],), _block(sums, cuts, at, distance))
        theirs = _block(sums, cuts, partner, distance)
        theirs.copy_(await mail.receive(core[partner], theirs))


def _block(values: Tensor, cuts: list[slice], at: int, count: int) -> Tensor:
    """The aligned block of `count` slices in which slice `at` lies."""
    first = at - at % count
    return values[cuts[first].start : cuts[first + count - 1].stop]


async def _with_surplus(
    mail: Mail, terms: Tensor, members: tuple[int, ...], inner: Callable[[tuple[int, ...]], Awaitable[None]]
) -> None:
    core, partner = core_of(members, mail.id)
    if mail.id not in core:
        assert partner is not None, "the surplus has a partner in the core"
        mail.send((partner,), terms)
        terms.copy_(await mail.receive(partner, terms))
        return
    if partner is not None:
        terms.add_(await mail.receive(partner, terms))
    await inner(core)
    if partner is not None:
        mail.send((partner,), terms)


def core_of(members: tuple[int, ...], me: int) -> tuple[tuple[int, ...], int | None]:
    """The first members whose number is a power of two; and who I share a place with, if anybody."""
    size, at = 1 << (len(members).bit_length() - 1), members.index(me)
    other = at - size if at >= size else at + size
    return members[:size], members[other] if other < len(members) else None


def distances(size: int) -> list[int]:
    """1, 2, 4 ... below a power of two."""
    return [1 << bit for bit in range(size.bit_length() - 1)]


def _add(mine: Tensor, theirs: Tensor, mine_first: bool) -> None:
    """Which NaN a sum of two of them gives depends on the order."""
    torch.add(*((mine, theirs) if mine_first else (theirs, mine)), out=mine)
