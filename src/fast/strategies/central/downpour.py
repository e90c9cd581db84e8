"""Asynchronous training with servers: workers push what they have gathered, and fetch, each at its own pace."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Me, Tag
from fast.core.letter import union
from fast.parts.codecs import Codec
from fast.parts.staleness import AsIs, Correction, Memory
from fast.strategies.central.base import Central
from fast.strategies.central.correcting import answer, apply_corrected


@dataclass
class Gathered:
    """A worker's gradients since its last push: their sum, of how many samples, and which parameters have any."""

    total: Tensor
    count: int = 0
    samples: float = 0.0
    present: int | None = 0

    def take(self, gradient: Tensor, samples: int, present: int | None) -> None:
        self.total.add_(gradient)
        self.count, self.samples = self.count + 1, self.samples + samples
        self.present = union(self.present, present)

    def clear(self) -> None:
        self.total.zero_()
        self.count, self.samples, self.present = 0, 0.0, 0


@dataclass
class Open:
    """A server's state: what its correction remembers, and whether all workers train already."""

    memory: Memory
    open: bool = True


class Downpour(Central):
    """A worker gathers its gradients; every `push` steps it sends their sum, every `fetch` steps it reads
    the weights. In between it moves its copy with an optimizer of its own.

    A server applies each push as it comes, and answers a fetch after all that the same worker pushed
    before it. So of one worker at most ceil(fetch / push) + 1 letters ever wait at a server, however
    fast it is: it waits there for its fetch, and that is whom its wait is attributed to.

    `normalised` pushes the mean instead of the sum. `warm` lets worker 0 take so many steps alone before
    the others begin.
    """

    def __init__(
        self,
        *,
        fetch: int = 1,
        push: int = 1,
        normalised: bool = False,
        warm: int = 0,
        servers: int | str = 1,
        codec: Codec | None = None,
        correction: Correction | None = None,
    ) -> None:
        super().__init__(servers=servers)
        self.fetch, self.push, self.normalised, self.warm = fetch, push, normalised, warm
        self.correction = correction or AsIs()
        self.identity_alone = self.correction.identity_alone and not (codec and codec.has_momentum)
        self.admits = not warm
        self.tags = (
            Tag("push", carries=GRADIENT, codec=codec, capacity=ceil(fetch / push) + 1),
            Tag("read", carries=WEIGHTS),
        )

    def state(self, me: Me) -> Gathered | Open:
        if me.is_server:
            return Open(self.correction.begin(me.weights, me.workers), open=not self.warm)
        return Gathered(me.weights.new_zeros(me.weights.shape))

    async def begin(self, me: Me) -> None:
        if self.warm and me.steps == 0 and me.id != me.all_workers[0]:
            await me.pull("read", me.weights)

    async def step(self, me: Me) -> None:
        gathered: Gathered = me.state
        if me.samples:
            gathered.take(me.gradient, me.samples, me.present)
        fetches, pushes = self._is_due(me, self.fetch), self._is_due(me, self.push) and gathered.count > 0
        if not fetches and me.samples:
            me.apply(me.gradient)
        if pushes:
            sent = gathered.total / gathered.count if self.normalised else gathered.total
            present, samples = gathered.present, gathered.samples
            me.push(sent, "push", present=present, weight=samples, rates=me.rates, fetch=fetches)
            gathered.clear()
        elif fetches:
            me.request(me.servers, "push", fetch=True)
        if fetches:
            await me.pull("read", me.weights)

    def _is_due(self, me: Me, interval: int) -> bool:
        """Whether this step ends an interval. Alone, every step does: there is nobody to talk less with."""
        return me.alone or (me.steps + 1) % interval == 0

    async def serve(self, me: Me) -> None:
        state: Open = me.state
        pushes = await me.news("push")
        for push in pushes:
            apply_corrected(me, push, self.correction, state.memory)
        answer(me, [push.sender for push in pushes if push.note["fetch"]], self.correction, state.memory)
        first = me.all_workers[0]
        warmed = first not in me.workers or any(push.steps[0] + 1 >= self.warm for push in pushes)
        if not state.open and warmed:
            state.open = True
            answer(me, [worker for worker in me.workers if worker != first], self.correction, state.memory)
