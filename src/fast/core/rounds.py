"""Rounds: what `me` asks its world for together with other workers, one at a time or several at once."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from fast.core.buckets import Bucket
from fast.core.letter import union
from fast.core.ticket import Ticket
from fast.core.world import Kind, Reduction, Round
from fast.errors import UsageError
from fast.parts.codecs.base import Codec, Coder
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
                f"order={self.order!r}: a sum is made in 'canonical' order, by ascending worker within a host and then "
                "over hosts, or in 'any'"
            )


@final
class Rounds:
    """The rounds of one participant."""

    def __init__(self, me: Me) -> None:
        self._me = me
        self.used = False
        """Whether this turn has had any, or the result of an earlier one is still guarded; most turns have none."""
        self._tickets: list[Ticket[Any]] = []
        self._lanes = list(range(1, LANES + 1))
        """That are free, as a heap."""
        self._channels: Counter[object] = Counter()
        me.world.when_waiting(self._poll_others)
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
        channel: str = "",
    ) -> Reduction:
        """Take part in a round, and report it."""
        me, self.used = self._me, True
        if not isinstance(tensor, Tensor):
            raise UsageError(f"a {kind.value} of {tensor!r}; it takes tensors: torch.tensor({tensor!r})")
        group = me.world.start_view.workers if among is None else tuple(sorted(among))
        me.check_known(() if among is None else group)
        coder = self._coder(me.in_use(how.codec), tensor, group, bucket, channel)
        own = tensor is me.gradient or bucket is not None
        with _keeping(coder, weight):
            reduction = await me.world.collective(
                Round(
                    tensor=me.world.outgoing(tensor),
                    among=group,
                    kind=kind,
                    weight=float(weight),
                    present=me.present_in(bucket) if own else None,
                    read_only=read_only,
                    algorithm=how.algorithm,
                    any_order=how.order == "any",
                    coder=coder,
                    source=source,
                    lane=me.world.lane,
                    part=None if bucket is None else bucket.part,
                )
            )
        self._report(tensor, reduction)
        if own and bucket is None:
            self.merged = reduction
        if read_only and bucket is None:
            self._guard(reduction.tensor)
        return reduction

    def _coder(
        self, codec: Codec | None, tensor: Tensor, group: tuple[int, ...], bucket: Bucket | None, channel: str
    ) -> Coder | None:
        """One per channel. A round without a name is known by its turn, its members, its shape, and
        how many like it the turn has had before."""
        if codec is None:
            return None
        start = bucket.start if bucket is not None and bucket.part else None
        like = (self._me.turn, group, tuple(tensor.shape), tensor.dtype, start, repr(codec), channel)
        self._channels[like] += 1
        name = channel or f"{self._me.turn} {group} {self._channels[like]}"
        return self._me.coding.coder(f"round {name}", codec, tensor, start)

    def _guard(self, tensor: Tensor) -> None:
        self._guards.append((tensor, tensor._version))

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
        """In the lowest lane that is free: one is given back when its ticket has been awaited, which is at
        the same place of the program on all workers."""
        if not self._lanes:
            program.close()
            raise UsageError(f"more than {LANES} rounds are under way at once; await some of them first")
        self.used, lane = True, heapq.heappop(self._lanes)
        ticket = Ticket(self._me.world, program, lane, lambda: self._give_back(lane))
        self._tickets.append(ticket)
        return ticket

    def _give_back(self, lane: int) -> None:
        if lane not in self._lanes:
            heapq.heappush(self._lanes, lane)

    def poll(self) -> None:
        """Let everything that is under way go on as far as it can."""
        for ticket in self._tickets:
            ticket.poll()

    def _poll_others(self) -> None:
        """While one of them is waited for: somebody may need our part in another before it comes."""
        for ticket in self._tickets:
            if not ticket.waited_for:
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
        else:
            self._guard(whole)
        present = reduce(union, (reduction.present for reduction in reductions))
        everything = self._me.replica.layout.everything
        self.merged = Reduction(whole, reductions[0].members, None if present == everything else present)
        return whole

    # Turns

    def open(self) -> None:
        self.merged, self.used = None, bool(self._guards)
        self._channels.clear()
        if self._tickets:
            self._tickets.clear()
            self._lanes = list(range(1, LANES + 1))

    def close(self) -> None:
        if self._guards:
            self.check_guards()
        if self._tickets:
            self._check_tickets()

    def _check_tickets(self) -> None:
        for ticket in self._tickets:
            if ticket.poll():
                ticket.result()  # what nobody asked for must not fail unseen
        unfinished = sum(not ticket.done for ticket in self._tickets)
        if unfinished:
            raise UsageError(
                f"{unfinished} rounds were started and not awaited in this turn. Await every ticket that "
                "me.start gives before the turn ends: nothing but me.state survives it."
            )

    def check_guards(self) -> None:
        """A read-only result that somebody wrote into has spoilt the other peers' results."""
        if self._guards and any(tensor._version != version for tensor, version in self._guards):
            raise UsageError(
                f"{self._me.strategy!r} changed the result of mean(..., read_only=True) in place, which the "
                "other workers read too. Leave read_only out, and the result is yours to change."
            )

    def forget_guards(self) -> None:
        """A new round begins: the result of the one before may be overwritten by it."""
        self._guards.clear()


@contextmanager
def _keeping(coder: Coder | None, weight: float) -> Iterator[None]:
    """In a step that doesn't count, what a codec remembers would be sent with weight 0 and be lost."""
    if coder is None or weight != 0:
        yield
        return
    with coder.keeping():
        yield
