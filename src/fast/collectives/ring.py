"""The ring: everybody talks to its right-hand neighbour only, one slice at a time.

Slice k goes once around and gathers everybody's term; then the sums go around once more. 2 (P - 1)
letters and 2 (P - 1) / P of the tensor per member, whatever P is. The sum of a slice is made along
one path and then copied, so all members have the same bits.
"""

from __future__ import annotations

from torch import Tensor

from fast.collectives.cutting import cut_exactly
from fast.collectives.mail import Mail


async def ring(mail: Mail, terms: Tensor, members: tuple[int, ...]) -> None:
    """Turn this member's terms into the sums over all members, in place."""
    cuts = cut_exactly(len(members), terms.numel())
    await ring_scatter(mail, terms, members, cuts)
    await ring_gather(mail, terms, members, cuts)


async def ring_scatter(mail: Mail, terms: Tensor, members: tuple[int, ...], cuts: list[slice]) -> None:
    """Afterwards the k-th member has the sum of slice k; the other slices hold sums of some."""
    at, size, left, right = _place(mail, members)
    for step in range(1, size):
        mail.send((right,), terms[cuts[(at - step) % size]])
        sums = terms[cuts[(at - step - 1) % size]]
        sums.add_(await mail.receive(left, sums))


async def ring_gather(mail: Mail, values: Tensor, members: tuple[int, ...], cuts: list[slice]) -> None:
    """The k-th member has slice k; afterwards everybody has all of them."""
    at, size, left, right = _place(mail, members)
    for step in range(size - 1):
        mail.send((right,), values[cuts[(at - step) % size]])
        part = values[cuts[(at - step - 1) % size]]
        part.copy_(await mail.receive(left, part))


def _place(mail: Mail, members: tuple[int, ...]) -> tuple[int, int, int, int]:
    at, size = members.index(mail.id), len(members)
    return at, size, members[at - 1], members[(at + 1) % size]
