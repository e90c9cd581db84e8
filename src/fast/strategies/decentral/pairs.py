"""Averages in pairs: one side of a graph with two sides asks, the other one answers, and nobody ever waits.

    begin   who asks sends its weights x_a to one neighbour on the other side, if no request of its own is open
    step    on x_a:      delta = (x_a - x_p) / 2;   x_p <- x_p + delta;   answer delta
            on delta:    x_a <- x_a - delta
            then the own step, with the gradient at the weights that this step began with

After an exchange a worker may forget or correct what its optimizer remembers. Averaged it isn't: a delta is of a moment
that has passed, and less by one of then Adam's sum of squares could come out below 0.

What one adds the other subtracts, so the sum of all weights stays what it is, less each delta that is still on
its way. With delta = (x_a - x_p) / 2 of the moment of asking, who asked ends at the mean of the two plus what
it has learned since.

Nobody waits, so no circle of workers can: the two sides are only about who asks. After departures a graph may
have an edge inside a side (a ring of 4 becomes one of 3); such an edge is not used, and the others still join all.

A delta that is sent in the very moment in which its receiver takes its last step still arrives, and `end` includes it.
Only a worker that is told to stop may leave without one: then who answered has moved and who asked has not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from fast.core import WEIGHTS, Me, Strategy, Tag
from fast.errors import UsageError
from fast.parts import Bipartite, Topology
from fast.strategies.decentral.moments import Moments, Past


@dataclass
class Pairing:
    """Whose answer is awaited; and by how many deltas more this worker has moved as the one who was asked than as
    the one who asked. Over all workers and answers on their way that is 0: each delta counts once on each side."""

    partner: int | None = None
    balance: int = 0
    past: Past | None = None


class PairAverage(Strategy):
    """Lian et al.'s asynchronous decentralised SGD, in turns."""

    topology: Topology
    identity_alone = True
    conserves = "balance"
    tags = (Tag("ask", carries=WEIGHTS), Tag("answer"))

    def __init__(self, *, topology: Topology, moments: Moments) -> None:
        self.topology, self.moments = topology, moments

    def check(self, workers: int) -> None:
        super().check(workers)
        found = sides(self.topology, workers).inside
        if found is not None:
            raise UsageError(
                f"{self!r} needs a graph with two sides, one that asks and one that answers. In the "
                f"{self.topology.describe(workers)}, places {found[0]} and {found[1]} are linked and would be on the "
                "same side. Take bipartite(), a hypercube, a tree, or a ring of an even number of workers."
            )

    def state(self, me: Me) -> Pairing:
        return Pairing(past=self.moments.start(me))

    async def begin(self, me: Me) -> None:
        pairing: Pairing = me.state
        if pairing.partner not in me.view.everybody:  # it never answers, or has done so before it left
            pairing.partner = None
        partners = self._partners(me) if pairing.partner is None else ()
        if partners:
            pairing.partner = me.pick_peer(partners)
            me.send(pairing.partner, me.weights, tag="ask")

    async def step(self, me: Me) -> None:
        met = self._take_answers(me) + self._answer(me)
        if met:
            self.moments.adjust(me, me.state.past)
        me.apply(me.gradient)
        self.moments.moved(me, me.state.past)

    async def end(self, me: Me) -> None:
        """Who was asked has moved already where an answer has come. Requests without an answer count for nobody."""
        self._take_answers(me)

    def _partners(self, me: Me) -> Sequence[int]:
        """Whom this worker may ask: its neighbours on the other side, or nobody if its own side answers."""
        found = sides(self.topology, len(me.workers))
        if found.answers[me.index]:
            return ()
        if found.inside is None:
            return me.neighbours
        return [peer for peer in me.neighbours if found.answers[me.view.index(peer)]]

    def _answer(self, me: Me) -> int:
        """Whoever has asked, on whatever side it was then, and say how many did. Who has left can't move any more, so
        neither does who was asked."""
        everybody = len(me.workers) == len(me.all_workers)
        delta = me.scratch("delta")
        letters = me.letters("ask", None if everybody else me.workers)
        for letter in letters:
            torch.sub(letter.tensor, me.weights, out=delta).mul_(0.5)
            me.weights.add_(delta)
            me.send(letter.sender, delta, tag="answer", balance=-1)
            me.state.balance += 1
        return len(letters)

    def _take_answers(self, me: Me) -> int:
        """Take in those that have come, and say how many."""
        pairing: Pairing = me.state
        letters = me.letters("answer")
        for letter in letters:
            me.weights.sub_(letter.tensor)
            pairing.balance += letter.note["balance"]
            if letter.sender == pairing.partner:
                pairing.partner = None
        return len(letters)


@dataclass(frozen=True)
class Sides:
    """By place, whether it answers; and an edge inside one of the sides, if there is any."""

    answers: tuple[bool, ...]
    inside: tuple[int, int] | None


@lru_cache(maxsize=64)
def sides(topology: Topology, size: int) -> Sides:
    """Colour the places in the order of their distance from the first one, and let the larger side ask."""
    if isinstance(topology, Bipartite):  # it has too many edges to look at each of them
        return Sides(tuple(place % 2 == 1 for place in range(size)), None)
    colour: dict[int, bool] = {}
    for first in range(size):
        waiting = deque(() if first in colour else (first,))
        colour.setdefault(first, False)
        while waiting:
            place = waiting.popleft()
            fresh = [other for other in topology.links(place, size, 0) if other not in colour]
            colour.update(dict.fromkeys(fresh, not colour[place]))
            waiting.extend(fresh)
    flip = 2 * sum(colour.values()) > size
    edges = ((place, other) for place in range(size) for other in topology.links(place, size, 0))
    inside = next((edge for edge in edges if colour[edge[0]] == colour[edge[1]]), None)
    return Sides(tuple(colour[place] is not flip for place in range(size)), inside)
