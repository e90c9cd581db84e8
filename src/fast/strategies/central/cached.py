"""Servers that own the weights, and workers that go on with a copy of them as long as a bound allows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Tag, fold_newest
from fast.parts.codecs import Codec
from fast.strategies.central.base import Central
from fast.strategies.central.bounded import Books
from fast.strategies.central.clocks import Clocks


@dataclass
class Copy:
    """What a worker has of each server's weights, and its own moves that may not be in them yet."""

    holds: dict[int, int]
    """By server: everybody's updates of so many clocks are in what was read of it."""
    own: dict[int, int]
    """By server: so many of this worker's own pushes are."""
    moves: dict[int, Tensor] = field(default_factory=dict)
    """By clock: what its own optimizer made of its gradient. At most `bound` + 1 of them."""

    @property
    def oldest(self) -> int:
        return min(self.holds.values())

    def adopt(self, letter: Letter, weights: Tensor, shards: Mapping[int, slice]) -> None:
        """Put a server's weights in the place of the old ones, and the own moves that they lack on top."""
        place = shards[letter.sender]
        weights[place].copy_(letter.tensor)
        self.holds[letter.sender], self.own[letter.sender] = letter.note["clock"], letter.note["own"]
        for clock, move in self.moves.items():
            if clock >= self.own[letter.sender]:
                weights[place].add_(move[place])
        known = min(self.own.values())
        self.moves = {clock: move for clock, move in self.moves.items() if clock >= known}


class CachedReads(Central):
    """A worker goes on with the weights that it has, and its own moves on top of them, as long as they hold
    everybody's updates up to clock c - bound. When they don't, it waits for newer ones.

    Newer ones come when the worker asks for them, which it does when it must; or, `eager`, whenever the
    slowest worker's clock has advanced, without being asked. Those that wait unread fold into the newest.
    """

    knobs = MappingProxyType({"bound": (1, 8)})

    def __init__(
        self, *, bound: int, eager: bool, servers: int | str = 1, codec: Codec | None = None
    ) -> None:
        super().__init__(servers=servers)
        self.bound, self.eager = bound, eager
        self.lead, self.misses = bound + 1, bound
        self.identity_alone = codec is None or not codec.has_momentum
        self.tags = (
            Tag("push", carries=GRADIENT, codec=codec, capacity=max(64, bound + 2)),
            Tag("read", carries=WEIGHTS, fold=fold_newest),
        )

    def state(self, me: Me) -> Books | Copy:
        if me.is_server:
            return Books(Clocks.of(me.view))
        return Copy(dict.fromkeys(me.servers, me.steps), dict.fromkeys(me.servers, me.steps))

    async def step(self, me: Me) -> None:
        copy: Copy = me.state
        # Who is alone has nobody to be ahead of: it waits for its own push, and is training without FAST.
        needed = me.steps + 1 - (self.bound if me.peers else 0)
        asks = not self.eager and copy.oldest < needed
        me.push(me.gradient, "push", rates=me.rates, needs=needed if asks else None)
        if me.samples:
            self._move(me)
        for letter in me.letters("read"):
            copy.adopt(letter, me.weights, me.shards)
        for server in me.servers:
            while copy.holds[server] < needed:
                copy.adopt(await me.receive("read", server), me.weights, me.shards)

    def _move(self, me: Me) -> None:
        """What the worker itself makes of its gradient, until what the servers made of it has come back."""
        before = me.scratch("before").copy_(me.weights)
        me.apply(me.gradient / len(me.workers))
        me.state.moves[me.steps] = me.weights - before

    async def serve(self, me: Me) -> None:
        books: Books = me.state
        pushes = await me.news("push")
        books.attend(me.view, me.departed)
        for push in pushes:
            share = books.take(push, push.note["needs"])
            if push.weight:
                me.apply(push.tensor * share, of=[push], rates=push.note["rates"])
        if not self.eager:
            self._tell(me, books.clocks.ready(push.sender for push in pushes))
        elif books.clocks.moved():
            self._tell(me, me.workers)

    def _tell(self, me: Me, readers: Sequence[int]) -> None:
        """Send them the weights, and say what is in them; those of whom as much is in get one letter."""
        clocks: Clocks = me.state.clocks
        groups: dict[int, list[int]] = {}
        for worker in readers:
            groups.setdefault(clocks.pushed[worker], []).append(worker)
        for own, members in groups.items():
            me.send(members, me.weights, tag="read", clock=clocks.slowest, own=own)
