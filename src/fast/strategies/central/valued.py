"""A server that admits an update only if no worker computes on weights that are too different by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Tag
from fast.parts.codecs import Codec
from fast.strategies.central.base import Central
from fast.strategies.central.clocks import Shares
from fast.view import View


@dataclass
class Readers:
    """Who computes on what, and whose push waits: together at most one copy of the weights per worker."""

    reading: dict[int, Tensor] = field(default_factory=dict)
    """By worker: the weights that it computes on. Those who were sent the same share one copy."""
    held: list[Letter] = field(default_factory=list)
    """Pushes that are not admitted yet, in the order in which they came."""
    shares: Shares = field(default_factory=Shares)

    def attend(self, view: View) -> None:
        """Who has left computes on nothing any more."""
        self.reading = {who: weights for who, weights in self.reading.items() if who in view.workers}

    def take(self, push: Letter) -> None:
        """Its sender has done with what it read."""
        self.reading.pop(push.sender, None)
        self.held.append(push)

    def keep(self, pushes: Sequence[Letter]) -> None:
        """What is held of these must outlive the turn, and a letter's memory doesn't."""
        read = {id(push) for push in pushes}
        self.held = [
            replace(push, tensor=push.tensor.clone()) if id(push) in read else push for push in self.held
        ]

    def furthest(self, weights: Tensor) -> float:
        """How far these weights are from what somebody computes on, in the infinity norm."""
        copies = {id(copy): copy for copy in self.reading.values()}
        return max((float((weights - copy).abs().max()) for copy in copies.values()), default=-inf)


class ValueBounded(Central):
    """Pushes are admitted in the order in which they come, each as soon as the server's weights would
    stay nearer than `limit` to what any other worker computes on; until then its sender waits.

    A worker whose push waits computes on nothing. So when all of them wait, the next push is admitted
    however large it is, and with limit 0 they go in lock-step.
    """

    knobs = MappingProxyType({"limit": (0.01, 1.0)})

    def __init__(self, *, limit: float, codec: Codec | None = None) -> None:
        super().__init__(servers=1)
        self.limit = self.reach = limit
        self.identity_alone = codec is None or not codec.has_momentum
        self.tags = (Tag("push", carries=GRADIENT, codec=codec), Tag("read", carries=WEIGHTS))

    def state(self, me: Me) -> Readers | None:
        return Readers(self._copies(me, me.workers)) if me.is_server else None

    async def step(self, me: Me) -> None:
        me.push(me.gradient, "push", rates=me.rates)
        await me.pull("read", me.weights)

    async def serve(self, me: Me) -> None:
        readers: Readers = me.state
        pushes = await me.news("push")
        readers.attend(me.view)
        for push in pushes:
            readers.take(push)
        admitted = []
        while readers.held and self._admit(me, readers.held[0]):
            admitted.append(readers.held.pop(0).sender)
        readers.keep(pushes)
        ready = [worker for worker in admitted if worker in me.workers]
        readers.reading.update(self._copies(me, ready))
        me.send(ready, me.weights, tag="read")

    def _admit(self, me: Me, push: Letter) -> bool:
        """Apply this push, unless somebody would then compute on weights that are too different."""
        readers: Readers = me.state
        gradient = push.tensor * readers.shares.take_in(me.view, push.sender, push.weight)
        if not push.weight:
            return True
        if readers.reading and not self._try(me, push, gradient):
            return False
        me.apply(gradient, of=[push], rates=push.note["rates"])
        return True

    def _try(self, me: Me, push: Letter, gradient: Tensor) -> bool:
        """How far an optimizer moves the weights is known only when it has."""
        with me.dry_run(gradient, of=[push], rates=push.note["rates"]):
            furthest = me.state.furthest(me.weights.detach())
        return bool(furthest < self.limit)

    def _copies(self, me: Me, readers: Sequence[int]) -> dict[int, Tensor]:
        """What these workers compute on from now on. Where nothing is compared, nothing is kept: without
        a limit, or where tensors have sizes and no values."""
        if not readers or self.limit == inf or me.weights.is_meta:
            return {}
        return dict.fromkeys(readers, me.weights.detach().clone())
