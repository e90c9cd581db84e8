"""The verbs of `me` that it takes several to perform: rounds, neighbours, and reading each other's memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from fast.core.letter import Letter
from fast.core.mail import Mail
from fast.core.rounds import How
from fast.core.ticket import Ticket
from fast.core.world import Kind
from fast.errors import UsageError
from fast.parts.codecs.base import Codec
from fast.trace import Included

Result = TypeVar("Result")


class Together(Mail):
    """The part of `Me` that is about all at once."""

    @property
    @abstractmethod
    def edges(self) -> Mapping[int, float]:
        """Whom I hear in this round, with the mixing weight of each."""

    @property
    @abstractmethod
    def audience(self) -> Mapping[int, float]:
        """Who hears me in this round, with the share of a push-sum that each gets; the rest is mine."""

    # Rounds

    async def mean(
        self,
        tensor: Tensor,
        among: Iterable[int] | None = None,
        *,
        weight: float = 1.0,
        read_only: bool = False,
        codec: Codec | None = None,
        channel: str = "",
        algorithm: str = "auto",
        order: str = "canonical",
    ) -> Tensor:
        """The mean over the workers who are still in; the input stays intact.

        The result is the caller's until its next `mean`. With `read_only=True` it may be memory
        that all of them read (one copy less): writing into it is refused. Everybody gets the same
        bits. The sum is made in canonical order, by ascending worker within a host and then over hosts;
        with `order="any"` faster algorithms may be chosen for many workers or slow links, or one is asked
        for by name. What a
        `codec` remembers belongs to the `channel`; without a name, to the n-th round of its kind in a
        turn, so name those that a turn leaves out now and then.
        """
        if not tensor.is_floating_point():
            raise UsageError(
                f"mean() needs floating point numbers and got {tensor.dtype}; convert them first"
            )
        self._next_round()
        how = How(codec, algorithm, order)
        asked = self._rounds.ask(
            tensor, among, Kind.MEAN, how, weight=weight, read_only=read_only, channel=channel
        )
        return (await asked).tensor

    async def mean_gradient(
        self,
        *,
        weight: float = 1.0,
        codec: Codec | None = None,
        algorithm: str = "auto",
        order: str = "canonical",
    ) -> Tensor:
        """The mean of everybody's gradient, to read: bucket by bucket while backward is still running."""
        self._next_round()
        return await self._rounds.mean_gradient(weight, How(codec, algorithm, order))

    async def all_reduce(
        self,
        tensor: Tensor,
        among: Iterable[int] | None = None,
        *,
        algorithm: str = "auto",
        order: str = "canonical",
    ) -> Tensor:
        """The sum over the workers who are still in, the same bits for all of them."""
        self._next_round()
        asked = self._rounds.ask(tensor, among, Kind.SUM, How(None, algorithm, order))
        return (await asked).tensor

    async def reduce_scatter(self, tensor: Tensor, among: Iterable[int] | None = None) -> Tensor:
        """My slice of the mean: as many slices as there are members, as equal as can be, in their order."""
        self._next_round()
        return (await self._rounds.ask(tensor, among, Kind.REDUCE_SCATTER, How())).tensor

    async def all_gather(self, tensor: Tensor, among: Iterable[int] | None = None) -> Tensor:
        """Everybody's tensor, in the order of the members: shape (members, *shape)."""
        self._next_round()
        return (await self._rounds.ask(tensor, among, Kind.ALL_GATHER, How())).tensor

    async def gather_all(self, tensor: Tensor, *, weight: float = 1.0) -> list[Letter]:
        """This tensor of everybody who is still in, with its weight, by ascending worker and the same for all of
        them; to read until the next round."""
        self._next_round()
        asked = self._rounds.ask(tensor, None, Kind.ALL_GATHER, How(), weight=weight)
        found, tag = await asked, f"fast.{self.world.lane}"
        return [
            Letter(who, tag, row, steps=(self.steps,), weight=counts)
            for who, row, counts in zip(found.members, found.tensor, found.weights, strict=True)
        ]

    async def broadcast(self, tensor: Tensor, source: int, among: Iterable[int] | None = None) -> Tensor:
        """The tensor of `source`; the others give one of the same shape and dtype, which stays as it is."""
        self._next_round()
        return (await self._rounds.ask(tensor, among, Kind.BROADCAST, How(), source=source)).tensor

    async def neighbour_mean(
        self, tensor: Tensor, *, codec: Codec | None = None, tag: str | None = None
    ) -> Tensor:
        """sum_j W_ij x_j over myself and those I hear, with the topology's mixing weights."""
        edges, tag = self.edges, tag or f"fast.neighbours.{self.world.lane}"
        self.send(self.audience, tensor, tag, codec=codec)
        got, _ = await self.gather(tag, edges)
        mixed = tensor * (1.0 - sum(edges[peer] for peer in got))
        for peer, letter in got.items():
            mixed.add_(letter.tensor, alpha=edges[peer])
        return mixed

    def start(self, program: Coroutine[Any, Any, Result]) -> Ticket[Result]:
        """Begin something that waits, and go on: `ticket = me.start(me.mean(x)); ...; await ticket`.

        It makes progress whenever a ticket is polled or awaited, or a bucket becomes ready. All
        workers start and await theirs in the same order. What was given to it must stay as it is
        until it has been awaited.
        """
        return self._rounds.start(program)

    def _next_round(self) -> None:
        self._rounds.check_guards()
        self._rounds.forget_guards()

    # One-sided

    def publish(self, name: str, tensor: Tensor) -> Tensor:
        """Let peers read this tensor whenever they like, without asking. Returns the memory that they
        read: what is written into it from now on is seen at once, in whatever state it is."""
        self._check_racy("publish")
        return self.world.publish(name, tensor)

    async def read(self, peer: int, name: str) -> Tensor:
        """What a peer has published, as it is in this moment; on one host without a copy. Also in end()."""
        self._check_racy("read")
        self._check_reachable(peer)
        found = await self.world.read(peer, name)
        if found is None:
            raise self._unpublished("reads", peer, name)
        return found

    async def amend(
        self, peer: int, name: str, before: Tensor, after: Tensor, *, atomic: bool = False
    ) -> None:
        """Change what a peer has published, without a lock: component by component as from `before` to `after`.

        Where they are equal nothing is touched. Where the memory still is `before` it becomes `after`;
        elsewhere others were there meanwhile, and the difference is added. What somebody else writes to a
        component at the same moment may be lost, unless `atomic`.
        """
        self._check_racy("amend")
        self._check_reachable(peer)
        if not await self.world.amend(peer, name, before, after, atomic=atomic):
            raise self._unpublished("amends", peer, name)

    def amended(self, name: str, staleness: int) -> None:
        """Report an update that was written into shared weights, after so many of others since they were read."""
        if self.world.observed:
            self.world.emit(Included(self.id, self.world.now(), self.id, name, staleness, self.steps))

    def _check_reachable(self, peer: int) -> None:
        """Memory answers also at the end, when nobody does any more."""
        if not self.ending:
            self.check_known((peer,))

    def _unpublished(self, does: str, peer: int, name: str) -> UsageError:
        return UsageError(
            f"participant {self.id} {does} {name!r} of peer {peer}, who hasn't published it. Publish in begin(), and "
            "tell the others with a letter that it is there: they may be faster."
        )

    def _check_racy(self, verb: str) -> None:
        if not self.strategy.racy:
            raise UsageError(
                f"{self.strategy!r} calls me.{verb}, which gives whatever is in a peer's memory at that moment. "
                "Set `racy = True` in the strategy if that is meant; otherwise send letters."
            )
