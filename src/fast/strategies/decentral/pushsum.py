"""Push-sum: a worker parts what it has among itself and those who hear it. So one-way links will do.

    z_i = x_i / w_i is the model, w_i a mass that is 1 at first;   x_i <- x_i - eta g_i(z_i)
    x_j <- sum_i p_ji x_i;   w_j <- sum_i p_ji w_i;   sum_j p_ji = 1

Whatever is given away is no longer had, so the sums of all x and of all w stay what they are, letters on their
way included, on any graph and also where it changes. Where some hear more than they tell, x alone tends to more
than the mean; w grows by the same factor, and x / w tends to the mean. Moments u_i that are averaged go with the
weights: w_i u_i is parted as x_i is, so u_j becomes the mean of what came, by mass.

**When somebody leaves**, its mass stays with it, and so does what was sent to it before its departure was
known. Three things follow.
 - Nobody waits for it: in lock-step, who hears it finds that it is gone in the first round without its letter.
 - Who tells it need not hear it, and would go on giving half of itself away. So the news travels in the notes of
   the letters, and whoever knows keeps that share. All know within a period or two; but if all who hear it leave
   as it does, nobody can tell, and who tells it goes on until the view changes.
 - The rest then have less mass than there are workers, and would take steps that are too large: z moves by
   eta g / w. So with the new view (in lock-step all have it at the same step) they agree on the mean of their masses,
   and that is what a step weighs from then on: x_i <- x_i - unit eta g_i. Masses themselves are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from fast.core import WEIGHTS, Me, Strategy, Tag
from fast.errors import UsageError
from fast.parts import Topology
from fast.strategies.decentral.moments import KEEP, Moments, Past
from fast.view import View

NEWS = 256
"""Of so many departures one letter tells; of more than these in turn. A header has room for them."""
CAPACITY = 4096
"""One-way links hold nobody back but in a circle: at a slow receiver letters of many rounds may wait."""


@dataclass
class Held:
    """What one worker has of the whole."""

    view: int
    """The number of the view in which `unit` was agreed on."""
    past: Past | None = None
    mass: float = 1.0
    unit: float = 1.0
    """What a step weighs: the mean mass of those who are there."""
    under_way: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    """Of each round that is still to be taken in: what was given away, and whose letters are awaited."""
    gone: list[int] = field(default_factory=list)
    """Who is known to have left and still is in the view."""


class PushSum(Strategy):
    """Assran et al.'s stochastic gradient push. Without `overlap` what is sent in a step is awaited in it; with
    an overlap of n it is sent at the end of a step and taken in by the n-th step after that."""

    topology: Topology
    synchronous = True
    identity_alone = True
    conserves = "mass"
    tags = (Tag("share", carries=WEIGHTS, capacity=CAPACITY),)

    def __init__(self, *, topology: Topology, overlap: int, moments: Moments = KEEP) -> None:
        self.topology, self.moments = topology if overlap < 2 else Slowed(topology, overlap), moments
        self.overlap, self.late = overlap, max(0, overlap - 1)

    def check(self, workers: int) -> None:
        super().check(workers)
        if self.topology.directed and not is_joined(self.topology, workers):
            raise UsageError(
                f"{self!r} on {self.topology.describe(workers)}: some workers never hear of others, not even "
                "through their neighbours, so their weights would be lost. Add links until every worker "
                "can reach every other."
            )

    def state(self, me: Me) -> Held:
        return Held(me.view.number, self.moments.start(me, travel=True))

    async def begin(self, me: Me) -> None:
        if me.view.number != me.state.view:
            await self._weigh(me)
        if self.overlap:
            x = me.scratch("x").copy_(me.weights).mul_(me.state.mass)
            self._part(me, self.moments.packed(me, x, me.state.mass))

    async def step(self, me: Me) -> None:
        held: Held = me.state
        x = me.scratch("x").copy_(me.weights)
        me.apply(me.gradient)  # on z: what it changed is what the optimizer would have changed in x
        self.moments.moved(me, held.past)
        x.mul_(held.mass - held.unit).add_(me.weights, alpha=held.unit)
        x = self.moments.packed(me, x, held.mass)
        if not self.overlap:
            self._part(me, x)
        exchanged = len(held.under_way) >= self.overlap
        if exchanged:
            await self._take_in(me, x)
        me.weights.copy_(self.moments.unpacked(me, x.div_(held.mass)))
        if exchanged:
            self.moments.adjust(me, held.past)

    def _part(self, me: Me, x: Tensor) -> None:
        """Give those who hear me their shares of x and of the mass, and keep the rest. That changes no z."""
        held: Held = me.state
        audience = {peer: share for peer, share in me.audience.items() if peer not in held.gone}
        news: dict[str, Any] = {"gone": some_of(held.gone, me.steps)} if held.gone else {}
        for share in sorted(set(audience.values())):
            peers = [peer for peer, theirs in audience.items() if theirs == share]
            part = torch.mul(x, share, out=me.scratch("part") if x.shape == me.weights.shape else None)
            me.send(peers, part, tag="share", mass=share * held.mass, **news)
        given = sum(audience.values())
        held.under_way.append((given * held.mass, me.neighbours))
        held.mass -= given * held.mass
        x.mul_(1.0 - given)

    async def _take_in(self, me: Me, x: Tensor) -> None:
        """Add what came in the oldest round that is still under way; and hear who has left."""
        held: Held = me.state
        got, missing = await me.gather("share", held.under_way.pop(0)[1])
        gone = {*held.gone, *missing}
        for letter in got.values():
            x.add_(letter.tensor)
            held.mass += letter.note["mass"]
            gone.update(letter.note.get("gone", ()))
        held.gone = sorted(gone & me.view.everybody) if gone else []

    async def _weigh(self, me: Me) -> None:
        """With a new view: agree on the mean mass of those who are in it, with what they have under way."""
        held: Held = me.state
        own = held.mass + sum(given for given, _ in held.under_way)
        held.unit = float(await me.mean(torch.tensor([own], dtype=torch.float64)))
        held.view = me.view.number
        held.gone = [peer for peer in held.gone if peer in me.view.everybody]


def some_of(gone: list[int], step: int) -> list[int]:
    """As many as a letter tells; of more, others in the next step."""
    first = step * NEWS % len(gone)
    return (gone[first:] + gone[:first])[:NEWS]


@final
class Slowed(Topology):
    """The links of another topology, over which news takes `by` times as many rounds: where letters are taken in
    that much later, workers are that much further apart, and must know longer of a departure before they act on it."""

    def __init__(self, topology: Topology, by: int) -> None:
        self.topology, self.by = topology, by

    @property
    def directed(self) -> bool:
        return self.topology.directed

    @property
    def changing(self) -> bool:
        return self.topology.changing

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return self.topology.links(index, size, round_)

    def told(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return self.topology.told(index, size, round_)

    def neighbours(self, index: int, view: View, round_: int) -> Mapping[int, float]:
        return self.topology.neighbours(index, view, round_)

    def audience(self, index: int, view: View, round_: int) -> Mapping[int, float]:
        return self.topology.audience(index, view, round_)

    def period(self, size: int) -> int:
        return self.by * self.topology.period(size)

    def check(self, size: int) -> None:
        self.topology.check(size)

    def describe(self, size: int) -> str:
        return self.topology.describe(size)

    def __repr__(self) -> str:
        return repr(self.topology)


def is_joined(topology: Topology, size: int) -> bool:
    """Whether in the rounds of a period everybody hears of everybody."""
    rounds = range(topology.period(size))
    heard = [{other for at in rounds for other in topology.links(place, size, at)} for place in range(size)]
    told: list[set[int]] = [set() for _ in range(size)]
    for place, others in enumerate(heard):
        for other in others:
            told[other].add(place)
    return all(_reached(ways) == size for ways in (heard, told))


def _reached(ways: list[set[int]]) -> int:
    """How many places can be reached from the first one."""
    seen, waiting = {0}, [0]
    while waiting:
        fresh = ways[waiting.pop()] - seen
        seen |= fresh
        waiting += fresh
    return len(seen)
