"""Gossip: now and then a worker sends its weights to one other, chosen at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from fast.core import WEIGHTS, Letter, Me, Strategy, Tag
from fast.strategies.decentral.moments import KEEP, Moments, Past


@dataclass
class Share:
    """How much of the whole this worker stands for. All shares, those in letters too, add up to 1."""

    share: float
    past: Past | None = None


def fold_shares(older: Letter, newer: Letter) -> Letter:
    """Two letters of one sender count like their weighted mean with both shares."""
    share = older.note["share"] + newer.note["share"]
    tensor = older.tensor.lerp(newer.tensor, newer.note["share"] / share)
    return replace(newer, tensor=tensor, steps=older.steps + newer.steps, note={"share": share}, private=True)


class PushGossip(Strategy):
    """Blot et al.: x_i <- (a_i x_i + a_j x_j) / (a_i + a_j) for every letter, then the own step;
    with probability p halve the share and send it with the weights to a random worker. Moments that are averaged
    travel behind the weights, with the same share."""

    identity_alone = True
    conserves = "share"
    survives_loss = True
    admits = True
    tags = (Tag("gossip", carries=WEIGHTS, fold=fold_shares),)
    knobs = MappingProxyType({"p": (0.1, 0.5)})

    def __init__(self, *, p: float, moments: Moments = KEEP) -> None:
        self.p, self.moments = p, moments

    def state(self, me: Me) -> Share:
        """Who comes late has no share, so the first letter that it gets is all that it becomes."""
        share = 0.0 if me.fresh else 1.0 / len(me.workers)
        return Share(share, self.moments.start(me, travel=True))

    async def step(self, me: Me) -> None:
        self._include(me)
        me.apply(me.gradient)
        self.moments.moved(me, me.state.past)
        if me.random() < self.p and len(me.workers) > 1 and me.state.share / 2 > 0:
            me.state.share /= 2
            carried = self.moments.packed(me, me.weights)
            me.send(me.pick_peer(), carried, tag="gossip", share=me.state.share)

    async def end(self, me: Me) -> None:
        self._include(me)

    def _include(self, me: Me) -> None:
        letters = me.letters("gossip")
        if not letters:
            return
        own = self.moments.packed(me, me.weights)
        for letter in letters:
            share = letter.note["share"]
            own.lerp_(letter.tensor, share / (me.state.share + share))
            me.state.share += share
        me.weights.copy_(self.moments.unpacked(me, own))
        self.moments.adjust(me, me.state.past)
