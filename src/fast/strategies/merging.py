"""What a strategy does with a rule: when there are enough updates for it, and when there are not."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fast.collectives.canonical import canonical_mean
from fast.core import Letter, Me
from fast.parts import Rule, mean
from fast.parts.merge import Arrived, enough


def merged(me: Me, rule: Rule, letters: Sequence[Letter]) -> Tensor | None:
    """What a rule makes of these updates, in this order: a server's pushes, or the gradients of everybody.

    None where they are fewer than the rule needs: nobody can tell then who is hostile, so nothing may be
    applied; they are reported as dropped. A mean is that of all rounds, bit for bit. A worker that has
    been alone from the start has nobody to distrust.
    """
    return voted(me, rule, letters, of=letters)


def voted(me: Me, rule: Rule, votes: Sequence[Arrived], *, of: Sequence[Letter]) -> Tensor | None:
    """The same for updates that were made of these letters."""
    first, *rest = votes
    if me.alone:
        return first.tensor
    if rule is mean:
        return canonical_mean([each.tensor for each in votes], [each.weight for each in votes])
    if enough(rule, first.weight, rest):
        return rule(first.tensor, first.weight, rest)
    discard(me, rule, of)
    return None


async def merged_of_all(me: Me, rule: Rule, tensor: Tensor, weight: float) -> Tensor | None:
    """One tensor of everybody's, the same bits for all, to read: their mean, or, where each is needed as it is, what a
    rule makes of them. None where they are too few for it."""
    if rule is mean:
        return await me.mean(tensor, weight=weight, read_only=True)
    return merged(me, rule, await me.gather_all(tensor, weight=weight))


def merged_with_own(me: Me, rule: Rule, arrived: Sequence[Letter], *, own: tuple[Tensor, float]) -> Tensor:
    """What a rule makes of this worker's own update, with its weight, and of those that arrived. Where they are fewer
    than the rule needs, the worker trusts nobody but itself, and what arrived is reported as dropped."""
    update, weight = own
    if me.alone:
        return update
    if enough(rule, weight, arrived):
        return rule(update, weight, arrived)
    discard(me, rule, arrived)
    return update


def discard(me: Me, rule: Rule, letters: Sequence[Letter]) -> None:
    """Throw away what is too little for the rule."""
    for letter in letters:
        me.discard(letter, f"too few updates for {rule!r}")
