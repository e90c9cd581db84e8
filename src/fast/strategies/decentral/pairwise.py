"""An outer optimizer in pairs: every worker has slow weights of its own, and no round is among all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType

import torch
from torch import Tensor

from fast.core import WEIGHTS, Me, Strategy, Tag
from fast.core.seeds import stream_seed
from fast.parts.outer import Outer
from fast.strategies.decentral.moments import Moments, Past


@dataclass
class Apart:
    """A worker's own slow weights, and what its outer optimizer remembers."""

    slow: Tensor
    memory: Tensor
    past: Past | None


class PairSteps(Strategy):
    """Local steps from the slow weights phi_i to theta_i; every `interval` steps workers meet in pairs that a
    seed draws, and  phi_i <- outer(phi_i, phi_i - mean_pair(theta));  theta_i <- phi_i.

    phi_i - mean(theta) is made of two terms, the mean of what both have changed and what pulls their slow weights
    together: -(mean_pair(theta - phi) + mean_pair(phi) - phi_i). Either both of them travel, or their sum.
    """

    synchronous = True
    tags = (Tag("pair", carries=WEIGHTS), Tag("moments"))
    knobs = MappingProxyType({"interval": (5, 20)})

    def __init__(self, *, interval: int, outer: Outer, both: bool, moments: Moments) -> None:
        self.interval, self.outer, self.both, self.moments = interval, outer, both, moments

    def state(self, me: Me) -> Apart:
        return Apart(me.weights.clone(), torch.zeros_like(me.weights), self.moments.start(me))

    async def step(self, me: Me) -> None:
        apart: Apart = me.state
        me.apply(me.gradient)
        self.moments.moved(me, apart.past)
        if (me.steps + 1) % self.interval:
            return
        partner = self.partner(me)
        change = await self._change(me, apart.slow, partner)
        self.outer.step(apart.slow, change, apart.memory)
        me.weights.copy_(apart.slow)
        await self.moments.settle(me, apart.past, partial(pair_mean, me, partner))

    def partner(self, me: Me) -> int | None:
        """Whom this worker meets at the end of this step: the same pairs for all, without asking anybody.

        They are drawn among all workers of the run, not among those who are in the view: news of a
        departure don't reach everybody before the same round, and two who disagree about the pairs would wait for
        each other for ever. Whose partner has left stays alone in that round, as one does whose number is odd.
        """
        met = drawn_pairs(len(me.all_workers), me.seed, (me.steps + 1) // self.interval)
        partner = met[me.id]
        return partner if partner in me.view.everybody else None

    async def _change(self, me: Me, slow: Tensor, partner: int | None) -> Tensor:
        """phi_i - mean_pair(theta); of itself alone where there is nobody to meet."""
        change = me.scratch("change").copy_(slow).sub_(me.weights)
        if partner is None:
            return change
        me.send(partner, torch.stack((slow, -change)) if self.both else me.weights, tag="pair")
        got, _ = await me.gather("pair", (partner,))
        if partner in got:
            theirs = got[partner].tensor
            change.add_(slow).sub_(theirs[0] + theirs[1] if self.both else theirs).div_(2)
        return change


async def pair_mean(me: Me, partner: int | None, tensor: Tensor) -> Tensor | None:
    """Of this worker's and its partner's; None where there is nobody to meet."""
    if partner is None:
        return None
    me.send(partner, tensor, tag="moments")
    got, _ = await me.gather("moments", (partner,))
    return tensor.add(got[partner].tensor).div_(2) if partner in got else None


@lru_cache(maxsize=64)
def drawn_pairs(size: int, seed: int, round_: int) -> tuple[int | None, ...]:
    """By worker, its partner in this round; of an odd number one has none. In an order by random numbers the
    first two are a pair, the next two, and so on."""
    order = sorted(range(size), key=lambda worker: stream_seed(seed, "pairs", round_, worker))
    met: list[int | None] = [None] * size
    for a, b in zip(order[::2], order[1::2], strict=False):
        met[a], met[b] = b, a
    return tuple(met)
