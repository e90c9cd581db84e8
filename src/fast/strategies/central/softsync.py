"""A server that collects some gradients, wherever they come from, and then takes one step with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Tag
from fast.parts.codecs import Codec
from fast.parts.staleness import AsIs, Correction, Memory, Push
from fast.strategies.central.base import Central
from fast.strategies.central.correcting import answer, corrected


@dataclass
class Collection:
    """Gradients on their way into one step: their sum, each times its factor on the rate."""

    memory: Memory
    total: Tensor | None = None
    rate: float = 0.0
    """The sum of the factors."""
    pushes: list[Letter] = field(default_factory=list)
    """Whose they are; without their values, which are in the sum."""

    def take(self, push: Letter, right: Push) -> None:
        if self.total is None:
            self.total = right.gradient * right.rate
        else:
            self.total.add_(right.gradient, alpha=right.rate)
        self.rate += right.rate
        self.pushes.append(replace(push, tensor=push.tensor.new_empty(0)))

    def step(self, me: Me) -> None:
        """sum(alpha_l g_l) / c, as the mean of the rates times the mean of the gradients weighted by them,
        so that an optimizer that scales gradients itself gets the right rate too."""
        if self.total is None:
            return
        pushes, factor = self.pushes, self.rate / len(self.pushes)
        rates = [rate * factor for rate in pushes[-1].note["rates"]]
        me.apply(self.total.div_(self.rate or 1.0), of=pushes, rates=rates)
        self.total, self.rate, self.pushes = None, 0.0, []


class SoftSync(Central):
    """n-softsync: the server takes a step when c = floor(P / n) gradients have come, whosever they are.

    Nobody waits for a step: each push is answered at once with the weights as they are, so a fast
    worker may have several gradients in one step. With n = 1 that is nearly synchronous, with n = P
    every gradient is a step of its own.
    """

    def __init__(
        self,
        *,
        n: float,
        servers: int | str = 1,
        codec: Codec | None = None,
        correction: Correction | None = None,
    ) -> None:
        super().__init__(servers=servers)
        self.n, self.correction = n, correction or AsIs()
        self.identity_alone = self.correction.identity_alone and not (codec and codec.has_momentum)
        self.admits = True
        self.tags = (Tag("push", carries=GRADIENT, codec=codec), Tag("read", carries=WEIGHTS))

    def contributors(self, workers: int) -> int:
        """Of so many gradients one update is made."""
        return max(1, int(workers // self.n))

    def state(self, me: Me) -> Collection | None:
        return Collection(self.correction.begin(me.weights, me.workers)) if me.is_server else None

    async def step(self, me: Me) -> None:
        me.push(me.gradient, "push", rates=me.rates)
        await me.pull("read", me.weights)

    async def serve(self, me: Me) -> None:
        collection: Collection = me.state
        pushes = await me.news("push")
        for push in pushes:
            if push.weight:
                collection.take(push, corrected(me, push, self.correction, collection.memory))
            self._step_if_enough(me)
        self._step_if_enough(me)  # where somebody has left, fewer are enough
        answer(me, [push.sender for push in pushes], self.correction, collection.memory)

    def _step_if_enough(self, me: Me) -> None:
        collection: Collection = me.state
        if len(collection.pushes) >= self.contributors(len(me.workers)):
            collection.step(me)
