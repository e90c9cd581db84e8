"""What a strategy does with a rule: when there are enough updates for it, and when there are not."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fast.collectives.canonical import canonical_mean
from fast.core import Letter, Me
from fast.parts import Rule, mean
from fast.parts.merge import enough


def merged(me: Me, rule: Rule, letters: Sequence[Letter]) -> Tensor | None:
    """What a rule makes of these updates, in this order: a server's pushes, or the gradients of everybody.

    None where they are fewer than the rule needs: nobody can tell then who is hostile, so nothing may be
    applied; they are reported as dropped. A mean is that of all rounds, bit for bit. A worker that has
    been alone from the start has nobody to distrust.
    """
    first, *rest = letters
    if _alone(me):
        return first.tensor
    if rule is mean:
        return canonical_mean([each.tensor for each in letters], [each.weight for each in letters])
    if enough(rule, first.weight, rest):
        return rule(first.tensor, first.weight, rest)
    discard(me, rule, letters)
    return None


def merged_with_own(me: Me, rule: Rule, arrived: Sequence[Letter]) -> Tensor:
    """What a rule makes of this worker's gradient and those that arrived. Where they are fewer than the
    rule needs, the worker trusts nobody but itself, and what arrived is reported as dropped."""
    if _alone(me):
        return me.gradient
    if enough(rule, me.samples, arrived):
        return rule(me.gradient, me.samples, arrived)
    discard(me, rule, arrived)
    return me.gradient


def discard(me: Me, rule: Rule, letters: Sequence[Letter]) -> None:
    """Throw away what is too little for the rule."""
    for letter in letters:
        me.discard(letter, f"too few updates for {rule!r}")


def _alone(me: Me) -> bool:
    return len(me.world.start_view.workers) == 1
