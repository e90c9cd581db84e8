"""Elastic averaging over a tree of workers, all of which train and none of which waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from fast.core import WEIGHTS, Letter, Me, Strategy, Tag
from fast.parts import Tree
from fast.parts.arguments import check_whole
from fast.strategies.decentral.moments import Moments, Past

REPLICA = "replica"

Interval = int | Sequence[int] | Callable[[int], int]
"""Steps between two letters: the same for all workers, by level (the root's first, the last one for all levels
below), or a function of the worker's place in the tree (the root's is 0)."""


def fold_pulls(older: Letter, newer: Letter) -> Letter:
    """Two letters of one sender pull as far as one after the other would: x <- x - a (x - y) with
    1 - a = (1 - a_1) (1 - a_2) and y in between, nearer to the newer one."""
    first, second = older.note["alpha"], newer.note["alpha"]
    alpha = first + second - first * second
    tensor = older.tensor.lerp(newer.tensor, second / alpha if alpha else 1.0)
    return replace(newer, tensor=tensor, steps=older.steps + newer.steps, note={"alpha": alpha}, private=True)


class ElasticTree(Strategy):
    """on x_j of the parent or a child:  x_i <- x_i - alpha (x_i - x_j);  then  x_i <- optimizer(x_i, g_i);
    every `up` steps send x_i to the parent, every `down` steps to all children.

    Each receipt counts by itself, so no two workers ever have to agree on a moment. What comes faster than it is
    read folds into one letter that pulls as far. Moments that are averaged travel behind the weights, and are pulled
    as far as these.
    """

    topology: Tree
    identity_alone = True
    survives_loss = True
    admits = True
    tags = (Tag(REPLICA, carries=WEIGHTS, fold=fold_pulls),)
    knobs = MappingProxyType({"up": (4, 25)})

    def __init__(
        self, *, branching: int, up: Interval, down: Interval, alpha: float, moments: Moments
    ) -> None:
        self.topology, self.moments = Tree(branching), moments
        self.up, self.down, self.alpha = up, down, alpha

    def check(self, workers: int) -> None:
        """What a function gives is known only where the places are."""
        super().check(workers)
        for name, interval in (("up", self.up), ("down", self.down)):
            for place in range(workers):
                steps = interval_at(place, interval, self.topology.arity)
                check_whole(repr(self), f"{name}({place})", steps, 1)

    def state(self, me: Me) -> Past | None:
        return self.moments.start(me, travel=True)

    async def step(self, me: Me) -> None:
        self._include(me)
        me.apply(me.gradient)
        self.moments.moved(me, me.state)
        if audience := self._audience(me):
            me.send(audience, self.moments.packed(me, me.weights), tag=REPLICA, alpha=self.alpha)

    async def end(self, me: Me) -> None:
        self._include(me)

    def _include(self, me: Me) -> None:
        letters = me.letters(REPLICA)
        if not letters:
            return
        own = self.moments.packed(me, me.weights)
        for letter in letters:
            own.lerp_(letter.tensor, letter.note["alpha"])
        me.weights.copy_(self.moments.unpacked(me, own))
        self.moments.adjust(me, me.state)

    def _audience(self, me: Me) -> list[int]:
        """Who gets this step's weights: the parent has a lower place than oneself, and so a lower id."""
        place, step = me.index, me.steps + 1
        up = step % interval_at(place, self.up, self.topology.arity) == 0
        down = step % interval_at(place, self.down, self.topology.arity) == 0
        return [peer for peer in me.neighbours if (up if peer < me.id else down)]


def level_of(place: int, branching: int) -> int:
    """How many steps up it is to the root.

    >>> [level_of(place, 2) for place in range(7)]
    [0, 1, 1, 2, 2, 2, 2]
    """
    level = 0
    while place:
        place, level = (place - 1) // branching, level + 1
    return level


def interval_at(place: int, interval: Interval, branching: int) -> int:
    """Of the worker at this place.

    >>> interval_at(4, [100, 30, 10], 2), interval_at(9, [100, 10], 2), interval_at(9, lambda place: place + 1, 2)
    (10, 10, 10)
    """
    if isinstance(interval, int):
        return interval
    if callable(interval):
        return interval(place)
    return interval[min(level_of(place, branching), len(interval) - 1)]
