"""A binomial tree to one server: sums of gradients go up, weights come down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Strategy, Tag
from fast.strategies.central.sums import opened, summed

UP, DOWN = "up", "down"


def children(place: int, size: int) -> list[int]:
    """Whose parent is this place: what is left of it when its lowest bit is cleared.

    >>> children(0, 7), children(4, 7), children(5, 7)
    ([1, 2, 4], [5, 6], [])
    """
    bits = [1 << power for power in range(size.bit_length())]
    return [place + bit for bit in bits if place + bit < size and (not place or bit < place & -place)]


@dataclass
class Branch:
    """One participant's part of the tree. Place 0 is the server's, place i + 1 that of worker i.

    Who has left is passed by: its children belong to its parent, in its place. Both ends of such a new
    edge learn of it in the same step, the first one that the leaver takes no part in.
    """

    place: int
    workers: int
    """As many as there were at the start: places don't change."""
    gone: list[int] = field(default_factory=list)
    """Those above and below who have left, in ascending order."""

    def lose(self, peers: Iterable[int]) -> None:
        self.gone = sorted({*self.gone, *peers})

    def _peer(self, place: int) -> int:
        """Workers have the ids from 0 on, and the server the one after them."""
        return place - 1 if place else self.workers

    @property
    def parent(self) -> int:
        place = self.place & (self.place - 1)
        while self._peer(place) in self.gone:
            place &= place - 1
        return self._peer(place)

    @property
    def children(self) -> list[int]:
        return list(self._below(self.place))

    def _below(self, place: int) -> Iterator[int]:
        for child in children(place, self.workers + 1):
            peer = self._peer(child)
            yield from self._below(child) if peer in self.gone else (peer,)


class BinomialTree(Strategy):
    """w <- optimizer(w, mean_i g_i) on a server that hears only ceil(log2(P + 1)) of P workers.

    S_i = g_i + S_c1 + S_c2 + ... over the children, in their order;  w <- optimizer(w, S / P). On the way down who
    has the most to hand on gets the weights first, so that the last one has them after as many letters as levels.
    """

    synchronous = True
    identity_alone = True
    replicas_agree = True
    survives_death = False
    lead = 1
    tags = (Tag(UP, carries=GRADIENT), Tag(DOWN, carries=WEIGHTS))

    def servers(self, workers: int) -> int:
        return 1

    def state(self, me: Me) -> Branch:
        return Branch(0 if me.is_server else me.id + 1, len(me.all_workers))

    async def step(self, me: Me) -> None:
        branch: Branch = me.state
        letters = await self._sums(me)
        own = Letter(me.id, UP, me.gradient, (me.steps,), weight=float(me.samples))
        total = summed([own, *map(opened, letters)])
        me.include(letters)
        weights = await self._passed_up(me, total)
        me.version = weights.version
        me.weights.copy_(weights.tensor)
        me.send(branch.children[::-1], me.weights, tag=DOWN)

    async def serve(self, me: Me) -> None:
        letters = await self._sums(me)
        if letters:
            total = summed(map(opened, letters))
            me.apply(total.tensor / total.count, of=letters, rates=letters[0].note["rates"])
            me.send(me.state.children[::-1], me.weights, tag=DOWN)

    async def _sums(self, me: Me) -> list[Letter]:
        """Those of the children; in the place of one who has left, those of its own children."""
        branch: Branch = me.state
        got: dict[int, Letter] = {}
        while missing := [child for child in branch.children if child not in got]:
            letters, gone = await me.gather(UP, missing)
            got |= letters
            branch.lose(gone)
        return [got[child] for child in branch.children]

    async def _passed_up(self, me: Me, total: Letter) -> Letter:
        """Send the sum to the parent and wait for the weights; if it has left, then to its parent."""
        branch: Branch = me.state
        while True:
            parent = branch.parent
            me.send(parent, total.tensor, tag=UP, updates=total.count, samples=total.weight, rates=me.rates)
            got, gone = await me.gather(DOWN, [parent])
            if got:
                return got[parent]
            branch.lose(gone)
