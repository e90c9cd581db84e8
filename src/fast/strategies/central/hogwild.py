"""One weight tensor in memory that all workers of a host change without locks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fast.core import Me, Strategy, Tag

WEIGHTS, CLOCKS, THERE = "weights", "clocks", "there"


@dataclass
class Reading:
    """What a worker remembers of its last look at the shared memory."""

    others: int = 0
    """So many updates of the others had been made before."""


class LockFree(Strategy):
    """read w;  w' = optimizer(w, g(w));  for every component v with w'_v != w_v:  shared_v += w'_v - w_v.

    The memory lies in worker 0's part of what the host shares, beside the replicas: an optimizer that worked on
    it in place would also rewrite the components that it doesn't change, with what they were before. Beside the
    weights there is one counter for each worker, which only that worker writes; they measure the staleness.
    """

    racy = True
    one_host = True
    identity_alone = True
    survives_death = False
    tags = (Tag(THERE),)

    def __init__(self, *, atomic: bool) -> None:
        self.atomic = atomic

    def state(self, me: Me) -> Reading:
        return Reading()

    async def begin(self, me: Me) -> None:
        """Worker 0 makes the memory and tells the others, who begin with the same weights."""
        if me.steps == 0 and me.id == _owner(me):
            me.publish(WEIGHTS, me.weights.clone())
            me.publish(CLOCKS, _clock(me, 0))
            me.send(me.peers, torch.zeros(0), tag=THERE)

    async def step(self, me: Me) -> None:
        if me.steps == 0 and me.id != _owner(me):
            await me.receive(THERE, _owner(me))
        before = me.scratch("before").copy_(me.weights)
        me.apply(me.gradient)
        await me.amend(_owner(me), WEIGHTS, before, me.weights, atomic=self.atomic)
        me.amended(WEIGHTS, await self._others(me) - me.state.others)
        await me.amend(_owner(me), CLOCKS, _clock(me, me.steps), _clock(me, me.steps + 1))
        me.state.others = await self._others(me)
        me.weights.copy_(await me.read(_owner(me), WEIGHTS))

    async def end(self, me: Me) -> None:
        """Nobody writes any more: all take the same values."""
        me.weights.copy_(await me.read(_owner(me), WEIGHTS))

    async def _others(self, me: Me) -> int:
        """How many updates the others have made so far."""
        clocks = await me.read(_owner(me), CLOCKS)
        return int(clocks.sum() - clocks[me.id])


def _owner(me: Me) -> int:
    return me.all_workers[0]


def _clock(me: Me, updates: int) -> Tensor:
    """As if only this worker had made updates, so many."""
    clocks = torch.zeros(len(me.all_workers), dtype=torch.int64)
    clocks[me.id] = updates
    return clocks
