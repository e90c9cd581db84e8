"""Local steps, and now and then one step of an outer optimizer, the same on all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fast.core import Me, Strategy
from fast.parts import Rule, mean
from fast.parts.outer import Outer
from fast.strategies.decentral.moments import Moments, Past
from fast.strategies.merging import merged_of_all


@dataclass
class Slow:
    """What the outer optimizer works on: equal on all workers who are still in."""

    anchor: Tensor
    """The common weights, as they were after the last exchange."""
    memory: Tensor
    """What the outer optimizer remembers."""
    rates: list[float]
    """The learning rates at the last exchange, one per parameter group."""
    past: Past | None
    samples: int = 0
    """How many this worker has seen since."""


class OuterSteps(Strategy):
    """Local steps from the common weights w to w_i; every `interval` steps  w <- outer(w, mean_i (w - w_i)),
    weighted by the samples in between, and all go on from there. Another `rule` than the mean may merge what they
    changed; as long as too few take part for it, everybody goes on with its own weights."""

    synchronous = True

    def __init__(
        self,
        *,
        interval: int,
        outer: Outer,
        moments: Moments,
        knobs: Mapping[str, tuple[object, ...]],
        rule: Rule = mean,
    ) -> None:
        self.interval, self.outer, self.moments, self.knobs = interval, outer, moments, knobs
        self.rule = rule
        self.survives_death = rule is mean  # else what everybody changed goes over letters

    def state(self, me: Me) -> Slow:
        anchor = me.weights.clone()
        return Slow(anchor, torch.zeros_like(anchor), me.rates, self.moments.start(me))

    async def step(self, me: Me) -> None:
        slow: Slow = me.state
        me.apply(me.gradient)
        self.moments.moved(me, slow.past)
        slow.samples += me.samples
        if (me.steps + 1) % self.interval:
            return
        common = partial(merged_of_all, me, self.rule, weight=slow.samples)
        change = await common(me.scratch("change").copy_(slow.anchor).sub_(me.weights))
        if self.outer.follows_rates:
            follow_rates(me, slow)
        if change is None:
            return
        self.outer.step(slow.anchor, change, slow.memory)
        me.weights.copy_(slow.anchor)
        await self.moments.settle(me, slow.past, common)
        slow.samples = 0


def follow_rates(me: Me, slow: Slow) -> None:
    """A memory that is multiplied by the learning rate changes when that does. After a rate of 0, at which
    nothing is known of it, it begins anew."""
    now = me.rates
    factors = [new / old if old else 0.0 for new, old in zip(now, slow.rates, strict=True)]
    slow.rates = now
    if len(set(factors)) == 1:
        slow.memory.mul_(factors[0])
    else:
        _scale_groups(me, slow.memory, factors)


def _scale_groups(me: Me, flat: Tensor, factors: Sequence[float]) -> None:
    """Multiply the segments of each parameter group by its own factor."""
    for names, factor in zip(me.groups(), factors, strict=True):
        for name in names:
            flat[me.layout.places[name]].mul_(factor)
