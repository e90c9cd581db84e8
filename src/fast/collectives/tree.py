"""Binomial trees: the first member is the root, and each hop doubles the number of those who have it.

The parent of place k is k without its lowest bit. On the way up the root receives ceil(log2 P)
letters, not P - 1, for any P. The sum is made once and handed down: the same bits for all.
"""

from __future__ import annotations

from torch import Tensor

from fast.collectives.mail import Mail


async def tree(mail: Mail, terms: Tensor, members: tuple[int, ...]) -> None:
    """Turn this member's terms into the sums over all members, in place: up to the first, and down."""
    at = members.index(mail.id)
    for child in reversed(_children(at, members)):
        terms.add_(await mail.receive(child, terms))
    if at:
        mail.send((members[at & (at - 1)],), terms)
    await hand_down(mail, terms, members)


async def hand_down(mail: Mail, values: Tensor, order: tuple[int, ...]) -> None:
    """Afterwards everybody has the values of the first in this order."""
    at = order.index(mail.id)
    if at:
        values.copy_(await mail.receive(order[at & (at - 1)], values))
    mail.send(_children(at, order), values)


def _children(at: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """Whom the one at this place hands down to: first who has the most to hand on."""
    reach = at & -at if at else 1 << (len(order) - 1).bit_length()
    steps = [reach >> bit for bit in range(1, reach.bit_length())]
    return tuple(order[at + step] for step in steps if at + step < len(order))
