"""Servers that own the weights, and workers that read them every step: from lock-step to unbounded delay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Tag
from fast.parts import Rule, mean
from fast.parts.codecs import Codec
from fast.parts.staleness import AsIs, Correction, Memory
from fast.strategies.central.base import Central
from fast.strategies.central.clocks import Clocks, Shares
from fast.strategies.central.correcting import answer, apply_corrected
from fast.strategies.merging import merged
from fast.view import View


@dataclass
class Books:
    """What a server knows of the workers."""

    clocks: Clocks
    shares: Shares = field(default_factory=Shares)
    memory: Memory = field(default_factory=Memory)
    """Of the staleness correction."""

    def attend(self, view: View, departures: Mapping[int, int]) -> None:
        """Who has left counts no more, once all that it pushed is here."""
        if view.number == self.clocks.view:
            return
        self.clocks.attend(view, departures)
        for worker in self.shares.samples.keys() - self.clocks.pushed.keys():
            self.shares.forget(worker)

    def take(self, push: Letter, needs: float | None) -> float:
        """A push has come: its share of a mean over all who train, who has left right after it among them.
        Its sender waits to read until the slowest has made `needs` pushes; None if it doesn't."""
        share = self.shares.take(push.sender, push.weight, len(self.clocks.pushed))
        self.clocks.take(push.sender, push.steps[0] + 1, needs)
        if push.sender not in self.clocks.pushed:
            self.shares.forget(push.sender)
        return share


class StaleSynchronous(Central):
    """A worker pushes its gradient of clock c and reads for clock c + 1; the read is answered
    once every other worker's updates up to clock c - bound are in it.

    Every shard keeps its own clocks. A worker goes on when all of them have answered, so what holds
    for one server's weights holds for each shard.
    """

    knobs = MappingProxyType({"bound": (1, 8)})

    def __init__(
        self,
        *,
        bound: float,
        servers: int | str = 1,
        codec: Codec | None = None,
        bucket_bytes: int | None = None,
        rule: Rule = mean,
        correction: Correction | None = None,
    ) -> None:
        super().__init__(servers=servers)
        self.bound, self.bucket_bytes, self.rule = bound, bucket_bytes, rule
        self.correction = correction or AsIs()
        self.lead, self.misses = bound + 1, bound
        self.synchronous = bound == 0
        self.identity_alone = self.correction.identity_alone and (codec is None or not codec.has_momentum)
        self.admits = bound > 0 and bucket_bytes is None
        self.tags = (Tag("push", carries=GRADIENT, codec=codec), Tag("read", carries=WEIGHTS))

    def contributors(self, workers: int) -> int:
        return workers if self.bound == 0 else 1

    def state(self, me: Me) -> Books | None:
        if not me.is_server:
            return None
        return Books(Clocks.of(me.view), memory=self.correction.begin(me.weights, me.workers))

    async def step(self, me: Me) -> None:
        await me.stream(me.servers, "push", rates=me.rates)
        await me.pull("read", me.weights)

    async def serve(self, me: Me) -> None:
        await (self._serve_together(me) if self.bound == 0 else self._serve_each(me))

    async def _serve_together(self, me: Me) -> None:
        """Bound 0: all pushes of one clock become one update, in worker order."""
        pushes, _ = await me.gather("push", me.all_workers)
        letters = list(pushes.values())
        update = merged(me, self.rule, letters) if letters else None
        if update is not None:
            me.apply(update, of=letters, rates=letters[0].note["rates"])
        me.send(pushes, me.weights, tag="read")

    async def _serve_each(self, me: Me) -> None:
        """Bound > 0: each push is applied on arrival, scaled by its share of the samples."""
        books: Books = me.state
        pushes = await me.news("push")
        books.attend(me.view, me.departed)
        for push in pushes:
            share = books.take(push, push.steps[0] + 1 - self.bound)
            apply_corrected(me, push, self.correction, books.memory, share)
        ready = books.clocks.ready(push.sender for push in pushes)
        answer(me, ready, self.correction, books.memory)
