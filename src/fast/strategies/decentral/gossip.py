"""Gossip: now and then a worker sends its weights to one other, chosen at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from fast.core import WEIGHTS, Letter, Me, Strategy, Tag


@dataclass
class Share:
    """How much of the whole this worker stands for. All shares, those in letters too, add up to 1."""

    share: float


def fold_shares(older: Letter, newer: Letter) -> Letter:
    """Two letters of one sender count like their weighted mean with both shares."""
    share = older.note["share"] + newer.note["share"]
    tensor = older.tensor.lerp(newer.tensor, newer.note["share"] / share)
    return replace(newer, tensor=tensor, steps=older.steps + newer.steps, note={"share": share}, private=True)


class PushGossip(Strategy):
    """Blot et al.: x_i <- (a_i x_i + a_j x_j) / (a_i + a_j) for every letter, then the own step;
    with probability p halve the share and send it with the weights to a random worker."""

    identity_alone = True
    conserves = "share"
    survives_loss = True
    admits = True
    tags = (Tag("gossip", carries=WEIGHTS, fold=fold_shares),)
    knobs = MappingProxyType({"p": (0.1, 0.5)})

    def __init__(self, *, p: float) -> None:
        self.p = p

    def state(self, me: Me) -> Share:
        """Who comes late has no share, so the first letter that it gets is all that it becomes."""
        return Share(0.0 if me.fresh else 1.0 / len(me.workers))

    async def step(self, me: Me) -> None:
        self._include(me)
        me.apply(me.gradient)
        if me.random() < self.p and len(me.workers) > 1 and me.state.share / 2 > 0:
            me.state.share /= 2
            me.send(me.pick_peer(), me.weights, tag="gossip", share=me.state.share)

    async def end(self, me: Me) -> None:
        self._include(me)

    def _include(self, me: Me) -> None:
        for letter in me.letters("gossip"):
            share = letter.note["share"]
            me.weights.lerp_(letter.tensor, share / (me.state.share + share))
            me.state.share += share
