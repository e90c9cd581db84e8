"""Strategies with one mistake each, of the kinds that people make. The fuzzer must find all of them.

They train well as long as nothing goes wrong, or look as if they did: no test of convergence finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Strategy, Tag
from fast.errors import Deadlock, PeerLost, Violation
from fast.parts import Ring, mean
from fast.strategies.central.bounded import Books, StaleSynchronous
from fast.strategies.central.cached import CachedReads
from fast.strategies.central.clocks import Clocks
from fast.strategies.central.valued import Readers, ValueBounded
from fast.strategies.decentral.gossip import PushGossip
from fast.strategies.decentral.moments import Moments
from fast.strategies.decentral.neighbours import MixNeighbours, NeighbourGradients


class ForgetsToHalve(PushGossip):
    """The share that is sent stays with the sender too."""

    def __init__(self, *, p: float = 0.3) -> None:
        super().__init__(p=p)

    async def step(self, me: Me) -> None:
        self._include(me)
        me.apply(me.gradient)
        if me.random() < self.p and me.peers:
            me.send(me.pick_peer(), me.weights, tag="gossip", share=me.state.share / 2)


class WaitsForTheDead(MixNeighbours):
    """`receive` where a neighbour may be gone, instead of `gather`."""

    def __init__(self) -> None:
        super().__init__(topology=Ring(), moments=Moments())

    async def step(self, me: Me) -> None:
        pull = me.scratch("pull").zero_()
        for peer, weight in me.edges.items():
            letter = await me.receive("mix", peer)
            pull.add_(letter.tensor - me.weights, alpha=weight)
        me.apply(me.gradient)
        me.weights.add_(pull)


class CountsTwice(NeighbourGradients):
    """What was merged before a slow part of the step is merged again after it."""

    def __init__(self) -> None:
        super().__init__(topology=Ring(), rule=mean, send="own")

    async def step(self, me: Me) -> None:
        arrived = me.letters("gradient")
        await me.stream(me.audience, tag="gradient")
        me.apply(self.rule(me.gradient, me.samples, arrived), of=arrived)
        if me.steps % 5 == 4:
            me.apply(self.rule(me.gradient.zero_(), 0.0, arrived) if arrived else me.gradient, of=arrived)


class RunsPastItsBound(StaleSynchronous):
    """The server lets workers go a step too early: it compares with < where it must be the clock before."""

    def __init__(self, *, bound: float = 1) -> None:
        super().__init__(bound=bound)

    async def serve(self, me: Me) -> None:
        books: Clocks = me.state.clocks
        for push in await me.news("push"):
            me.apply(push.tensor / len(me.workers), of=[push], rates=push.note["rates"])
            books.pushed[push.sender] += 1
            books.reading[push.sender] = books.pushed[push.sender]
        slowest = min((books.pushed[worker] for worker in me.workers), default=inf)
        ready = [worker for worker, clock in books.reading.items() if clock - 2 <= slowest + self.bound]
        me.send(ready, me.weights, tag="read")
        for worker in ready:
            del books.reading[worker]


@dataclass
class Kept:
    letters: list[Letter] = field(default_factory=list)


class KeepsLetters(Strategy):
    """A letter is kept across turns and merged in the next one, when its memory is somebody else's."""

    topology = Ring()
    tags = (Tag("weights", carries=WEIGHTS),)

    def state(self, me: Me) -> Kept:
        return Kept()

    async def step(self, me: Me) -> None:
        for letter in me.state.letters:
            me.weights.lerp_(letter.tensor, 0.2)
        me.state.letters = me.letters("weights")
        me.apply(me.gradient)
        me.send(me.neighbours, me.weights, tag="weights")


class CountsTheDeparted(Strategy):
    """The server waits for as many pushes as there were workers at the start."""

    tags = (Tag("push", carries=GRADIENT), Tag("read", carries=WEIGHTS))

    def servers(self, workers: int) -> int:
        return 1

    async def step(self, me: Me) -> None:
        (server,) = me.servers
        me.send(server, me.gradient, tag="push")
        me.weights.copy_((await me.receive("read", server)).tensor)

    async def serve(self, me: Me) -> None:
        pushes: list[Letter] = []
        while len(pushes) < len(me.all_workers) and (me.workers or pushes):
            pushes += await me.news("push")
        if pushes:
            me.apply(sum(push.tensor for push in pushes) / len(pushes), of=pushes)
            me.send([push.sender for push in pushes], me.weights, tag="read")


class ForgetsLeavers(StaleSynchronous):
    """The server strikes whoever left out of its books, and stumbles over its last push."""

    def __init__(self, *, bound: float = 2) -> None:
        super().__init__(bound=bound)

    async def serve(self, me: Me) -> None:
        books: Clocks = me.state.clocks
        pushes = await me.news("push")
        for gone in set(books.pushed) - set(me.workers):
            del books.pushed[gone]
        for push in pushes:
            me.apply(push.tensor / max(1, len(me.workers)), of=[push], rates=push.note["rates"])
            books.pushed[push.sender] += 1
            books.reading[push.sender] = books.pushed[push.sender]
        slowest = min(books.pushed.values(), default=inf)
        ready = [worker for worker, clock in books.reading.items() if clock - slowest <= self.bound]
        me.send(ready, me.weights, tag="read")
        for worker in ready:
            del books.reading[worker]


class WaitsForLeavers(StaleSynchronous):
    """The server never strikes anybody out: who has left is the slowest for ever."""

    def __init__(self, *, bound: float = 2) -> None:
        super().__init__(bound=bound)

    async def serve(self, me: Me) -> None:
        books: Books = me.state
        pushes = await me.news("push")
        for push in pushes:
            share = books.take(push, push.steps[0] + 1 - self.bound)
            me.apply(push.tensor * share, of=[push], rates=push.note["rates"])
        ready = books.clocks.ready(push.sender for push in pushes)
        me.send(ready, me.weights, tag="read")


class CountsOnePushTooMany(CachedReads):
    """The server says that one clock more is in its weights than there is, so workers read too early."""

    def __init__(self, *, bound: int = 2) -> None:
        super().__init__(bound=bound, eager=True)

    def _tell(self, me: Me, readers: list[int]) -> None:
        clocks: Clocks = me.state.clocks
        for worker in readers:
            me.send(worker, me.weights, "read", clock=clocks.slowest + 1, own=clocks.pushed[worker])


class LooksBeforeItLeaps(ValueBounded):
    """The server compares its weights before it applies a push, and not those that come of it."""

    def __init__(self, *, limit: float = 0.02) -> None:
        super().__init__(limit=limit)

    def _try(self, me: Me, push: Letter, gradient: Tensor) -> bool:
        readers: Readers = me.state
        return readers.furthest(me.weights) < self.limit


class LosesTheRest(NeighbourGradients):
    """Only the first gradient that has arrived is merged; the others were read, and are gone."""

    def __init__(self) -> None:
        super().__init__(topology=Ring(), rule=mean, send="own")

    async def step(self, me: Me) -> None:
        arrived = me.letters("gradient")[:1]
        await me.stream(me.audience, tag="gradient")
        me.apply(self.rule(me.gradient, me.samples, arrived), of=arrived)


def fold_to_one(older: Letter, newer: Letter) -> Letter:
    return replace(newer, note={"share": newer.note["share"]}, steps=older.steps + newer.steps)


class FoldsAway(PushGossip):
    """Two letters that wait become the newer one, without the share of the older."""

    tags = (Tag("gossip", carries=WEIGHTS, fold=fold_to_one),)

    def __init__(self, *, p: float = 0.5) -> None:
        super().__init__(p=p)


class MeansOfViews(Strategy):
    """A round among those whom each worker believes to be there, without going in lock-step."""

    async def step(self, me: Me) -> None:
        me.apply(me.gradient)
        if me.steps % 3 == 2:
            me.weights.copy_(await me.mean(me.weights, among=me.workers))


BROKEN: dict[type[Strategy], tuple[type[Exception], str]] = {
    ForgetsToHalve: (Violation, "neither appear nor disappear"),
    WaitsForTheDead: (PeerLost, "still waits for its letter 'mix'"),
    CountsTwice: (Violation, "once more than it was sent"),
    RunsPastItsBound: (Violation, "a read must hold everybody's updates up to the strategy's bound"),
    KeepsLetters: (Violation, "hold NaN or infinity"),
    CountsTheDeparted: (Deadlock, "waits for letter 'push'"),
    ForgetsLeavers: (KeyError, ""),
    WaitsForLeavers: (Deadlock, "waits for letter 'read'"),
    CountsOnePushTooMany: (Violation, "a read must hold everybody's updates up to the strategy's bound"),
    LooksBeforeItLeaps: (Violation, "must stay within the strategy's reach"),
    LosesTheRest: (Violation, "never merged the update 'gradient'"),
    FoldsAway: (Violation, "neither appear nor disappear"),
    MeansOfViews: (Deadlock, "waits for the mean"),
}
"""Each with what is found, and words that are said about it."""
