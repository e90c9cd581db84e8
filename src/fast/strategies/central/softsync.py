"""A server that collects some gradients, wherever they come from, and then takes one step with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Tag
from fast.parts import Rule, mean
from fast.parts.codecs import Codec
from fast.parts.staleness import AsIs, Correction, Memory, Push
from fast.parts.voting import Vote
from fast.strategies.central.base import Central
from fast.strategies.central.correcting import answer, corrected
from fast.strategies.merging import voted

EVERYBODY = -1
"""In the place of one voter: a mean needs only the sum of all."""


@dataclass
class Sum:
    """Of gradients, each times its factor on the rate."""

    total: Tensor
    count: int = 1

    def add(self, right: Push) -> None:
        self.total.add_(right.gradient, alpha=right.rate)
        self.count += 1


@dataclass
class Collection:
    """Gradients on their way into one step."""

    memory: Memory
    sums: dict[int, Sum] = field(default_factory=dict)
    """One of all for a mean; for another rule one of each worker, however often it has pushed."""
    rate: float = 0.0
    """The sum of the factors."""
    pushes: list[Letter] = field(default_factory=list)
    """Whose they are; without their values, which are in the sums."""

    def take(self, push: Letter, right: Push, voter: int) -> None:
        if voter in self.sums:
            self.sums[voter].add(right)
        else:
            self.sums[voter] = Sum(right.gradient * right.rate)
        self.rate += right.rate
        self.pushes.append(replace(push, tensor=push.tensor.new_empty(0)))

    def step(self, me: Me, rule: Rule) -> None:
        """sum(alpha_l g_l) / c, as the mean of the rates times the mean of the gradients weighted by them,
        so that an optimizer that scales gradients itself gets the right rate too."""
        pushes, self.pushes = self.pushes, []
        rate, self.rate = self.rate, 0.0
        sums, self.sums = self.sums, {}
        factor = rate / len(pushes)
        votes = [
            Vote(each.total.div_((rate or 1.0) * (each.count / len(pushes))), voter)
            for voter, each in sorted(sums.items())
        ]
        update = votes[0].tensor if rule is mean else voted(me, rule, votes, of=pushes)
        if update is not None:
            me.apply(update, of=pushes, rates=[each * factor for each in pushes[-1].note["rates"]])


class SoftSync(Central):
    """n-softsync: the server takes a step when c = floor(P / n) gradients have come, whosever they are.

    Nobody waits for a step: each push is answered at once with the weights as they are, so a fast
    worker may have several gradients in one step. With n = 1 that is nearly synchronous, with n = P
    every gradient is a step of its own. Another `rule` than the mean gives each worker one vote, the mean of what it
    has pushed, and the step is taken when c workers have one.
    """

    def __init__(
        self,
        *,
        n: float,
        servers: int | str = 1,
        codec: Codec | None = None,
        correction: Correction | None = None,
        rule: Rule = mean,
    ) -> None:
        super().__init__(servers=servers)
        self.n, self.correction, self.rule = n, correction or AsIs(), rule
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
                right = corrected(me, push, self.correction, collection.memory)
                collection.take(push, right, EVERYBODY if self.rule is mean else push.sender)
            self._step_if_enough(me)
        self._step_if_enough(me)  # where somebody has left, fewer are enough
        answer(me, [push.sender for push in pushes], self.correction, collection.memory)

    def _step_if_enough(self, me: Me) -> None:
        collection: Collection = me.state
        collected = collection.pushes if self.rule is mean else collection.sums
        if len(collected) >= self.contributors(len(me.workers)) and collected:
            collection.step(me, self.rule)
