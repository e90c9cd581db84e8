"""A server that owns the weights, from lock-step to unbounded delay."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from fast.core import GRADIENT, WEIGHTS, Me, Strategy, Tag
from fast.parts.codecs import Codec


@dataclass
class Clocks:
    """The server's books: how many pushes each worker has made, how large, and who waits to read."""

    pushed: dict[int, int] = field(default_factory=dict)
    samples: dict[int, float] = field(default_factory=dict)
    reading: dict[int, int] = field(default_factory=dict)


class StaleSynchronous(Strategy):
    """A worker pushes its gradient of clock c and reads for clock c + 1; the read is answered
    once every other worker's updates up to clock c - bound are in it."""

    knobs = MappingProxyType({"bound": (1, 8)})

    def __init__(self, *, bound: float, codec: Codec | None = None, bucket_bytes: int | None = None) -> None:
        self.bound, self.bucket_bytes = bound, bucket_bytes
        self.synchronous = bound == 0
        self.identity_alone = codec is None or not codec.has_momentum
        self.tags = (Tag("push", carries=GRADIENT, codec=codec), Tag("read", carries=WEIGHTS))

    def servers(self, workers: int) -> int:
        return 1

    def state(self, me: Me) -> Clocks | None:
        return Clocks(dict.fromkeys(me.workers, 0)) if me.is_server else None

    async def step(self, me: Me) -> None:
        (server,) = me.servers
        await me.stream(server, tag="push", rates=me.rates)
        me.weights.copy_((await me.receive("read", server)).tensor)

    async def serve(self, me: Me) -> None:
        await (self._serve_together(me) if self.bound == 0 else self._serve_each(me))

    async def _serve_together(self, me: Me) -> None:
        """Bound 0: all pushes of one clock become one mean, in worker order."""
        pushes, _ = await me.gather("push", me.world.start_view.workers)
        if pushes:
            letters = list(pushes.values())
            total = sum(letter.weight for letter in letters)
            equal = all(letter.weight == letters[0].weight for letter in letters)
            mean = letters[0].tensor * (1.0 if equal else letters[0].weight)
            for letter in letters[1:]:
                mean.add_(letter.tensor if equal else letter.tensor * letter.weight)
            me.apply(mean.div_(len(letters) if equal else total), of=letters, rates=letters[0].note["rates"])
            me.send(pushes, me.weights, tag="read")

    async def _serve_each(self, me: Me) -> None:
        """Bound > 0: each push is applied on arrival, scaled by its share of the samples."""
        books: Clocks = me.state
        for push in await me.news("push"):
            books.samples[push.sender] = push.weight
            seen = sum(books.samples.values()) / len(books.samples) * len(me.workers)
            me.apply(push.tensor * (push.weight / (seen or 1.0)), of=[push], rates=push.note["rates"])
            books.pushed[push.sender] += 1
            books.reading[push.sender] = books.pushed[push.sender]
        slowest = min((books.pushed[worker] for worker in me.workers), default=inf)
        ready = [worker for worker, clock in books.reading.items() if clock - slowest <= self.bound]
        me.send(ready, me.weights, tag="read")
        for worker in ready:
            del books.reading[worker]
