"""Partial communication: a worker hears only its neighbours."""

from __future__ import annotations

from types import MappingProxyType

from fast.core import GRADIENT, WEIGHTS, Me, Strategy, Tag, fold_sum
from fast.parts import Rule, Topology


class MixNeighbours(Strategy):
    """x_i <- sum_j W_ij x_j - eta g_i(x_i): neighbours' weights travel while g_i is computed."""

    synchronous = True
    identity_alone = True
    tags = (Tag("mix", carries=WEIGHTS),)

    def __init__(self, *, topology: Topology) -> None:
        self.topology = topology

    async def begin(self, me: Me) -> None:
        me.send(me.neighbours, me.weights, tag="mix")

    async def step(self, me: Me) -> None:
        edges = me.edges
        got, _ = await me.gather("mix", edges)
        pull = me.scratch("pull").zero_()  # sum_j W_ij (x_j - x_i), at the old x_i
        for peer, letter in got.items():
            pull.add_(letter.tensor, alpha=edges[peer])
        pull.sub_(me.weights, alpha=sum(edges[peer] for peer in got))
        me.apply(me.gradient)
        me.weights.add_(pull)


class NeighbourGradients(Strategy):
    """Each worker sends its gradient to its neighbours without waiting and includes every one
    that has arrived since its last step, by a rule of the user's choice."""

    identity_alone = True
    tags = (Tag("gradient", carries=GRADIENT, fold=fold_sum),)
    knobs = MappingProxyType({"send": ("merged",)})

    def __init__(self, *, topology: Topology, rule: Rule, send: str) -> None:
        self.topology, self.rule, self.what = topology, rule, send

    async def step(self, me: Me) -> None:
        arrived = me.letters("gradient")
        if self.what == "own":
            me.send(me.neighbours, me.gradient, tag="gradient")
        merged = self.rule(me.gradient, me.samples, arrived)
        if self.what == "merged":
            me.send(me.neighbours, merged, tag="gradient")
        me.apply(merged)

    async def end(self, me: Me) -> None:
        """Gradients that arrived after the last step belong into the weights like all others."""
        arrived = me.letters("gradient")
        if arrived:
            me.apply(self.rule(me.gradient.zero_(), 0.0, arrived))
