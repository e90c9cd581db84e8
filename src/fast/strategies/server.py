"""A server that owns the weights, from lock-step to unbounded delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from fast.core import GRADIENT, WEIGHTS, Me, Strategy, Tag
from fast.parts.codecs import Codec
from fast.view import View


@dataclass
class Clocks:
    """The server's books: how many pushes each worker has made, how large, and who waits to read.

    What a push needs to know of all workers is kept up to date: looking through thousands of them
    for each push would take the server longer than the push.
    """

    pushed: dict[int, int] = field(default_factory=dict)
    samples: dict[int, float] = field(default_factory=dict)
    reading: dict[int, int] = field(default_factory=dict)
    view: int = 0
    """The number of the view that is attended to."""
    total: float = 0.0
    """Of the samples."""
    at: Counter[int] = field(default_factory=Counter)
    """How many workers have made so many pushes."""
    answered: float = -inf
    """The slowest worker's clock when all who read were last looked at."""

    @staticmethod
    def of(view: View) -> Clocks:
        """Nobody has pushed yet."""
        pushed = dict.fromkeys(view.workers, 0)
        return Clocks(pushed, view=view.number, at=Counter(pushed.values()))

    @property
    def slowest(self) -> float:
        return min(self.at, default=inf)

    def attend(self, view: View) -> None:
        """Forget who has left. Who came is as far as the slowest, until its first push says more."""
        if view.number == self.view:
            return
        here = set(view.workers)
        self.pushed = {worker: clock for worker, clock in self.pushed.items() if worker in here}
        self.reading = {worker: clock for worker, clock in self.reading.items() if worker in here}
        slowest = min(self.pushed.values(), default=0)
        for worker in view.workers:
            self.pushed.setdefault(worker, slowest)
        self.view, self.at = view.number, Counter(self.pushed.values())

    def take(self, worker: int, clock: int, samples: float) -> None:
        """A push: so many has this worker made now. Who is in the view no more holds nobody back."""
        self.total += samples - self.samples.get(worker, 0.0)
        self.samples[worker], self.reading[worker] = samples, clock
        if worker in self.pushed:
            before, self.pushed[worker] = self.pushed[worker], clock
            self.at[clock] += 1
            self.at[before] -= 1
            if not self.at[before]:
                del self.at[before]

    def ready(self, bound: float, pushed: Iterable[int]) -> list[int]:
        """Who may read: of all who wait to if the slowest has moved, else of those who pushed just now."""
        slowest, moved = self.slowest, self.slowest != self.answered
        self.answered = slowest
        asking = self.reading if moved else {worker: self.reading[worker] for worker in pushed}
        found = [worker for worker, clock in asking.items() if clock - slowest <= bound]
        for worker in found:
            del self.reading[worker]
        return found


class StaleSynchronous(Strategy):
    """A worker pushes its gradient of clock c and reads for clock c + 1; the read is answered
    once every other worker's updates up to clock c - bound are in it."""

    knobs = MappingProxyType({"bound": (1, 8)})

    def __init__(self, *, bound: float, codec: Codec | None = None, bucket_bytes: int | None = None) -> None:
        self.bound, self.bucket_bytes = bound, bucket_bytes
        self.lead = bound + 1
        self.synchronous = bound == 0
        self.identity_alone = codec is None or not codec.has_momentum
        self.admits = bound > 0 and bucket_bytes is None
        self.tags = (Tag("push", carries=GRADIENT, codec=codec), Tag("read", carries=WEIGHTS))

    def servers(self, workers: int) -> int:
        return 1

    def state(self, me: Me) -> Clocks | None:
        return Clocks.of(me.view) if me.is_server else None

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
        pushes = await me.news("push")
        books.attend(me.view)
        for push in pushes:
            books.take(push.sender, push.steps[0] + 1, push.weight)
            seen = books.total / len(books.samples) * len(me.workers)
            me.apply(push.tensor * (push.weight / (seen or 1.0)), of=[push], rates=push.note["rates"])
        ready = books.ready(self.bound, [push.sender for push in pushes])
        me.send(ready, me.weights, tag="read")
