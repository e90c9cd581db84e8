"""Partial communication: a worker hears only its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Strategy, Tag, fold_sum
from fast.parts import Rule, Topology, mean, sum_
from fast.parts.codecs import Codec
from fast.parts.merge import amended, check_rule, enough, memory_of
from fast.strategies.decentral.moments import Moments, Past
from fast.strategies.decentral.pushsum import CAPACITY
from fast.strategies.merging import discard, merged_with_own
from fast.view import View

MANY = 512
"""Links of more workers aren't all looked at before the start: it would take seconds. They are when they are used."""


def heard_at_least(topology: Topology, workers: int) -> int:
    """Of so many others everybody hears, in every round."""
    rounds = range(topology.period(workers))
    heard = (topology.in_degree(place, workers, at) for place in range(workers) for at in rounds)
    return min(heard, default=0)


class MixNeighbours(Strategy):
    """x_i <- sum_j W_ij x_j - eta g_i(x_i): neighbours' weights travel while g_i is computed.

    With another rule than the mean W has no say: x_i <- rule({x_i} and the x_j that i hears) - eta g_i(x_i).
    """

    topology: Topology
    synchronous = True
    identity_alone = True
    admits = True
    tags = (Tag("mix", carries=WEIGHTS, capacity=CAPACITY), Tag("moments"))

    def __init__(self, *, topology: Topology, moments: Moments, rule: Rule = mean) -> None:
        self.topology, self.moments, self.rule = topology, moments, rule

    def check(self, workers: int) -> None:
        """On one-way links not everybody may have mixing weights, and a rule may need more than a worker hears: that
        is said before anybody trains."""
        super().check(workers)
        if self.rule is not mean and workers > 1:
            check_rule(self.rule, 1 + heard_at_least(self.topology, workers))
        if self.topology.directed and workers <= MANY:
            view = View(0, tuple(range(workers)))
            for round_ in range(self.topology.period(workers)):
                for place in range(workers):
                    self.topology.neighbours(place, view, round_)

    def state(self, me: Me) -> Past | None:
        return self.moments.start(me)

    async def begin(self, me: Me) -> None:
        me.send(me.audience, me.weights, tag="mix")

    async def step(self, me: Me) -> None:
        edges = me.edges
        got, _ = await me.gather("mix", edges)
        pull = self._pull(me, edges, got)
        me.apply(me.gradient)
        me.weights.add_(pull)
        if not self.moments.stay:
            self.moments.moved(me, me.state)
            await self.moments.settle(me, me.state, partial(me.neighbour_mean, tag="moments"))

    def _pull(self, me: Me, edges: Mapping[int, float], got: Mapping[int, Letter]) -> Tensor:
        """How far the others move this worker: sum_j W_ij (x_j - x_i), or what a rule makes of them, minus x_i."""
        pull, heard = me.scratch("pull").zero_(), 0.0
        if self.rule is not mean:
            votes = [replace(letter, weight=1.0) for letter in got.values()]
            return pull.add_(merged_with_own(me, self.rule, votes, own=(me.weights, 1.0))).sub_(me.weights)
        for peer, letter in got.items():
            pull.add_(letter.tensor, alpha=edges[peer])
            heard += edges[peer]
        return pull.sub_(me.weights, alpha=heard)


class NeighbourGradients(Strategy):
    """Each worker sends its gradient to its neighbours without waiting and includes every one
    that has arrived since its last step, by a rule of the user's choice. Neighbours that have taken
    their last step receive it too, and include it in `end`."""

    topology: Topology
    identity_alone = True

    def __init__(
        self,
        *,
        topology: Topology,
        rule: Rule,
        send: str,
        codec: Codec | None = None,
        bucket_bytes: int | None = None,
    ) -> None:
        self.topology, self.rule, self.what, self.bucket_bytes = topology, rule, send, bucket_bytes
        self.tags = (Tag("gradient", carries=GRADIENT, fold=fold_sum, codec=codec),)
        self.admits = self.survives_loss = bucket_bytes is None  # what comes in pieces needs all of them
        if bucket_bytes is None and rule is not sum_:  # neither can be merged and passed on
            self.knobs = MappingProxyType({"send": ("own",) if send == "merged" else ("merged",)})

    def state(self, me: Me) -> Any:
        """What the rule remembers, if it remembers anything."""
        return memory_of(self.rule)

    def contributors(self, workers: int) -> int:
        """Its own gradient and those of whom it hears, which are nowhere fewer."""
        return 1 + heard_at_least(self.topology, workers)

    async def step(self, me: Me) -> None:
        arrived = me.letters("gradient")
        if self.what == "own":
            await me.stream(me.receivers, tag="gradient")
        merged = merged_with_own(me, self.rule, arrived, own=(me.gradient, me.samples))
        if self.what == "merged":
            me.send(me.receivers, merged, tag="gradient")
        me.apply(amended(self.rule, merged, me.samples, arrived, me.state))

    async def end(self, me: Me) -> None:
        """Gradients that arrived after the last step belong into the weights like all others."""
        arrived = me.letters("gradient")
        if arrived and enough(self.rule, 0.0, arrived):
            merged = self.rule(me.gradient.zero_(), 0.0, arrived)
            me.apply(amended(self.rule, merged, 0.0, arrived, me.state))
        else:
            discard(me, self.rule, arrived)


@dataclass
class Known:
    """The public copies: what everybody who hears a worker knows of it, the worker itself included."""

    own: Tensor
    of: dict[int, Tensor]
    past: Past | None


class CompressedGossip(Strategy):
    """Koloskova et al.: x_1/2 <- x_i - eta g_i; q_i = Q(x_1/2 - y_i), sent to the neighbours;
    y_j += q_j for oneself and each neighbour; x_i <- x_1/2 + gamma sum_j W_ij (y_j - y_i). Moments that are averaged
    travel as they are: nobody keeps a copy of them to which a difference could be sent."""

    synchronous = True
    identity_alone = True
    tags = (Tag("known", carries=WEIGHTS), Tag("moments"))

    def __init__(self, *, codec: Codec | None, gamma: float, topology: Topology, moments: Moments) -> None:
        self.codec, self.gamma, self.topology, self.moments = codec, gamma, topology, moments

    def state(self, me: Me) -> Known:
        copies = {peer: me.weights.clone() for peer in me.neighbours}
        return Known(me.weights.clone(), copies, self.moments.start(me))

    async def step(self, me: Me) -> None:
        known: Known = me.state
        edges = me.edges
        known.of = {peer: copy for peer, copy in known.of.items() if peer in edges}  # others' grow old
        await self._meet(me, [peer for peer in edges if peer not in known.of])
        me.apply(me.gradient)
        self.moments.moved(me, known.past)
        q = me.scratch("q")
        me.send(edges, me.weights - known.own, tag="choco", codec=self.codec, into=q)
        got, _ = await me.gather("choco", edges)
        known.own += q
        for peer, letter in got.items():
            known.of[peer] += letter.tensor
            me.weights.add_(known.of[peer] - known.own, alpha=self.gamma * edges[peer])
        await self.moments.settle(me, known.past, partial(me.neighbour_mean, tag="moments"))

    async def _meet(self, me: Me, new: list[int]) -> None:
        """Neighbours since a departure tell each other their public copies."""
        me.send(new, me.state.own, tag="known")
        got, _ = await me.gather("known", new)
        me.state.of.update({peer: letter.tensor.clone() for peer, letter in got.items()})
