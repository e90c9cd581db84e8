"""Rounds: what `me` asks its world for together with other workers, one at a time or several at once."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from fast.core.buckets import Bucket
from fast.core.letter import union
from fast.core.ticket import Ticket
from fast.core.world import Kind, Reduction, Round
from fast.errors import UsageError
from fast.parts.codecs.base import Codec
from fast.trace import Reduced

if TYPE_CHECKING:
    from fast.core.me import Me

LANES = 31
"""Rounds of one participant that may be under way at once, beside one that is waited for."""
ORDERS = ("canonical", "any")


@dataclass(frozen=True)
class How:
    """How a sum is made: the choices that a caller may leave to us."""

    codec: Codec | None = None
    algorithm: str = "auto"
    order: str = "canonical"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UsageError(
                f"order={self.order!r}: a sum is made in 'canonical' order, by ascending worker, or in 'any'"
            )


@final
class Rounds:
    """The rounds of one participant."""

    def __init__(self, me: Me) -> None:
        self._me = me
        self._lane = self._encoded = 0
        self._tickets: list[Ticket[Any]] = []
        self._guards: list[tuple[Tensor, int]] = []
        self.merged: Reduction | None = None
        """The mean of this step's gradient, from which `apply` knows who has one."""

    # Asking

    async def ask(
        self,
        tensor: Tensor,
        among: Iterable[int] | None,
        kind: Kind,
        how: How,
        *,
        weight: float = 1.0,
        read_only: bool = False,
        source: int = 0,
        bucket: Bucket | None = None,
    ) -> Reduction:
        """Take part in a round, and report it."""
        me = self._me
        group = me.world.start_view.workers if among is None else tuple(sorted(among))
        me.check_known(group)
        lane = self._next_lane()
        codec, coder = me.in_use(how.codec), None
        if codec is not None:
            # The n-th round of a turn that is encoded is the same tensor in every step: one channel.
            self._encoded += 1
            start = bucket.start if bucket is not None and bucket.part else None
            coder = me.coding.coder(f"round {self._encoded}", codec, tensor, start)
        own = tensor is me.gradient or bucket is not None
        reduction = await me.world.collective(
            Round(
                tensor=tensor,
                among=group,
                kind=kind,
                weight=float(weight),
                present=me.present_in(bucket) if own else None,
                read_only=read_only,
                algorithm=how.algorithm,
                any_order=how.order == "any",
                coder=coder,
                source=source,
                lane=lane,
                part=None if bucket is None else bucket.part,
            )
        )
        self._report(tensor, reduction)
        if own and bucket is None:
            self.merged = reduction
        if read_only:
            self._guards.append((reduction.tensor, reduction.tensor._version))
        return reduction

    def _next_lane(self) -> int:
        """0 for a round that is waited for; else the next one of this turn, the same on all members."""
        if not self._me.world.polled:
            return 0
        self._lane += 1
        if self._lane > LANES:
            raise UsageError(f"more than {LANES} rounds were started in one turn; await some of them first")
        return self._lane

    def _report(self, tensor: Tensor, reduction: Reduction) -> None:
        world = self._me.world
        if world.observed:
            size, nbytes = len(reduction.members), reduction.nbytes
            if nbytes is None:
                nbytes = 2 * (size - 1) * tensor.numel() * tensor.element_size() // size
            now = world.now()
            world.emit(Reduced(world.id, now, nbytes, reduction.members, reduction.took_ns))

    # Several at once

    def start(self, program: Coroutine[Any, Any, Any]) -> Ticket[Any]:
        ticket = Ticket(self._me.world, program)
        self._tickets.append(ticket)
        return ticket

    def poll(self) -> None:
        """Let everything that is under way go on as far as it can."""
        for ticket in self._tickets:
            ticket.poll()

    async def mean_gradient(self, weight: float, how: How) -> Tensor:
        """The mean of everybody's gradient, bucket by bucket, each under way as soon as it is ready."""
        buckets, tickets = [], []
        async for bucket in self._me.buckets():
            self.poll()
            if bucket.part is None:
                asked = self.ask(bucket.values, None, Kind.MEAN, how, weight=weight, read_only=True)
                return (await asked).tensor
            buckets.append(bucket)
            tickets.append(
                self.start(
                    self.ask(
                        bucket.values, None, Kind.MEAN, how, weight=weight, read_only=True, bucket=bucket
                    )
                )
            )
        return self._in_one_piece(buckets, [await ticket for ticket in tickets])

    def _in_one_piece(self, buckets: list[Bucket], reductions: list[Reduction]) -> Tensor:
        """The flat result that the buckets' results are slices of; put together where they aren't."""
        whole = reductions[0].whole
        if whole is None:
            whole = self._me.scratch("mean of the gradient")
            for bucket, reduction in zip(buckets, reductions, strict=True):
                whole[bucket.start : bucket.stop] = reduction.tensor
        present = reduce(union, (reduction.present for reduction in reductions))
        everything = self._me.replica.layout.everything
        self.merged = Reduction(whole, reductions[0].members, None if present == everything else present)
        return whole

    # Turns

    def open(self) -> None:
        self._lane, self._encoded, self.merged = 0, 0, None
        self._tickets.clear()

    def close(self) -> None:
        self.check_guards()
        unfinished = sum(not ticket.poll() for ticket in self._tickets)
        if unfinished:
            raise UsageError(
                f"{unfinished} rounds were started and not awaited in this turn. Await every ticket that "
                "me.start gives before the turn ends: nothing but me.state survives it."
            )

    def check_guards(self) -> None:
        """A read-only result that somebody wrote into has spoilt the other peers' results."""
        if any(tensor._version != version for tensor, version in self._guards):
            raise UsageError(
                f"{self._me.strategy!r} changed the result of mean(..., read_only=True) in place, which the "
                "other workers read too. Leave read_only out, and the result is yours to change."
            )

    def forget_guards(self) -> None:
        """A new round begins: the result of the one before may be overwritten by it."""
        self._guards.clear()
