"""Elastic averaging: every worker trains by itself, tied to a common centre as if by a spring."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from fast.core import OTHER, WEIGHTS, Letter, Me, Strategy, Tag
from fast.errors import UsageError
from fast.strategies.decentral.moments import KEEP, Moments, Past

REPLICA, DELTA = "replica", "delta"
BETA = 0.9
"""How far the centre goes towards the mean of the workers when each of them has met it once."""


@dataclass
class Velocity:
    """A worker's own momentum."""

    v: Tensor


class Elastic(Strategy):
    """Every `tau` steps, with x_i as it was before the step:  delta = alpha (x_i - c);
    x_i <- optimizer(x_i, g_i) - delta;  c <- c + beta / P (x_i - c).

    The centre c is a server's weights, and nothing runs an optimizer there. A worker sends its x_i and gets
    delta back: on the server reading the centre and moving it are one thing, so that without gradients, and with
    beta = P alpha, the sum of all x_i, of c and of minus the deltas on their way never changes. A worker
    has one letter at the server at most, and waits there for its answer.

    `synchronous` lets the server wait for everybody, and then move by all of them at once.
    With `momentum`, v <- mu v - eta g_i(x_i + mu v);  x_i <- x_i + v - delta, and what a worker's model holds while
    it trains is x_i + mu v. Alone there is nobody to agree with: no centre, and no momentum of ours.
    Without it, `moments` says what becomes of the optimizer's when delta has moved the weights.
    """

    identity_alone = True
    servers_optimize = False
    knobs = MappingProxyType({"tau": (4, 25)})
    tags = (Tag(REPLICA, carries=WEIGHTS, capacity=2), Tag(DELTA, carries=OTHER, capacity=2))
    """One letter, and one of a life before."""

    def __init__(
        self,
        *,
        tau: int,
        alpha: float | None = None,
        beta: float | None = None,
        synchronous: bool = False,
        momentum: float = 0.0,
        moments: Moments = KEEP,
    ) -> None:
        self.tau, self.alpha, self.beta, self.momentum = tau, alpha, beta, momentum
        self.moments = moments
        self.synchronous, self.admits = synchronous, not synchronous

    def servers(self, workers: int) -> int:
        return int(workers > 1)

    def rates(self, workers: int) -> tuple[float, float]:
        """How far a worker goes at an exchange, and how far the centre does. So many were there at the start: a
        spring doesn't become stiffer when others leave."""
        alpha = (BETA if self.beta is None else self.beta) / workers if self.alpha is None else self.alpha
        return alpha, alpha if self.beta is None else self.beta / workers

    def check(self, workers: int) -> None:
        super().check(workers)
        alpha, centre = self.rates(workers)
        if self.synchronous and workers > 1 and alpha + workers * centre > 2:
            raise UsageError(
                f"{self!r} on {workers} workers can't come to rest: moved by all of them at once, the centre and the "
                f"workers pass each other and end further apart, since alpha + beta = {alpha + workers * centre:g} "
                f"is more than 2. Take an alpha up to {2 / (workers + 1):.3g}, or leave it out."
            )

    def state(self, me: Me) -> Velocity | Past | None:
        if me.is_server:
            return None
        if self.momentum and me.servers:
            return Velocity(me.weights.new_zeros(me.weights.shape))
        return self.moments.start(me)

    async def step(self, me: Me) -> None:
        meets = bool(me.servers) and (me.steps + 1) % self.tau == 0
        if meets:
            me.send(me.servers, self._position(me), tag=REPLICA)
        self._move(me)
        if meets:
            me.weights.sub_(await self._delta(me))
            if not isinstance(me.state, Velocity):
                self.moments.adjust(me, me.state)

    def _position(self, me: Me) -> Tensor:
        """x_i: with momentum the model is ahead of it."""
        if not isinstance(me.state, Velocity):
            return me.weights
        return me.scratch("position").copy_(me.weights).sub_(me.state.v, alpha=self.momentum)

    def _move(self, me: Me) -> None:
        """The local step. The optimizer's own, from x_i + mu v, is what the velocity grows by."""
        if not isinstance(me.state, Velocity):
            me.apply(me.gradient)
            self.moments.moved(me, me.state)
            return
        v, position, ahead = me.state.v, self._position(me), me.scratch("ahead").copy_(me.weights)
        me.apply(me.gradient)
        v.mul_(self.momentum).add_(ahead.neg_().add_(me.weights))
        me.weights.copy_(position).add_(v, alpha=1.0 + self.momentum)

    async def _delta(self, me: Me) -> Tensor:
        """The answer to this step's letter; who has come back may find one that its life before had asked for, at
        the same step perhaps, but in an earlier view."""
        while True:
            letter = await me.receive(DELTA, me.servers[0])
            if (letter.note["step"], letter.note["view"]) == (me.steps, me.view.number):
                return letter.tensor
            me.discard(letter, "it answers a worker that was gone meanwhile")

    async def serve(self, me: Me) -> None:
        if self.synchronous:
            replicas, _ = await me.gather(REPLICA, me.all_workers)
            self._meet(me, list(replicas.values()))
        else:
            for replica in await me.news(REPLICA):
                self._meet(me, [replica])

    def _meet(self, me: Me, replicas: list[Letter]) -> None:
        """All of these at once: what each gets is the difference to the centre as it was before."""
        alpha, centre = self.rates(len(me.all_workers))
        apart = [replica.tensor - me.weights for replica in replicas]
        me.version += bool(replicas)
        for replica, difference in zip(replicas, apart, strict=True):
            me.weights.add_(difference, alpha=centre)
            delta, asked = difference.mul_(alpha), replica.steps[0]
            me.send(replica.sender, delta, tag=DELTA, step=asked, view=replica.view)

    async def end(self, me: Me) -> None:
        """The model goes back to where the worker really is."""
        if isinstance(me.state, Velocity):
            me.weights.copy_(self._position(me))
