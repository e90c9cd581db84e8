"""A mean among workers of several hosts: in shared memory within a host, by letters between hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import final

from fast.collectives import cost
from fast.collectives.across import Parties, Share, alone, sum_across
from fast.collectives.canonical import mean_of, sum_of
from fast.collectives.mail import Mail
from fast.core.world import Kind, Reduction, Round, World
from fast.parts.codecs.base import Workspace
from fast.transport import Transport
from fast.transport.base import UnderWay
from fast.view import grouped

Await = Callable[[UnderWay], Awaitable[None]]
"""Waits as the program under way may."""


@final
class Across:
    """The means that one worker makes together with other hosts.

    Its memory is kept from round to round, and so is who took part last, as in `Performer`.
    """

    def __init__(self, world: World, transport: Transport) -> None:
        self._world, self._transport, self._work = world, transport, Workspace()
        self._remaining: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    def takes(self, round_: Round) -> bool:
        """Whether the groups of this round share memory and it is large enough. All members come to the same answer:
        they know the same groups, links and sizes."""
        groups, tensor = self._transport.groups, round_.tensor
        plain = round_.kind in (Kind.MEAN, Kind.SUM) and round_.algorithm == "auto" and round_.coder is None
        if not plain or not groups or groups != round_.groups or not tensor.is_floating_point():
            return False
        sizes = [len(part) for part in grouped(round_.among, groups)]
        if len(sizes) in (1, len(round_.among)):
            return False
        nbytes, link = tensor.numel() * tensor.element_size(), self._transport.link
        return cost.across(sizes, nbytes, link) < cost.in_pairs(sizes, nbytes, link)

    async def perform(self, round_: Round, wait: Await) -> Reduction:
        """Take part with those who have not left. The result may be memory that others of this host read."""
        if self._work.owns(round_.tensor):  # the result of a round before, which this one would write into
            round_ = replace(round_, tensor=round_.tensor.clone())
        key = (round_.tag, round_.among)
        among = grouped(self._remaining.get(key, round_.among), round_.groups)
        mail = Mail(self._world, round_.tag, self._work, round_.groups)
        rule = mean_of if round_.kind is Kind.MEAN else sum_of

        async def summed(share: Share) -> Parties:
            return await sum_across(mail, among, _words(round_), share, rule)

        local = next(group for group in among if self._world.id in group)
        if len(local) == 1:
            share = alone(round_.tensor, round_.weight, round_.present, mail)
            parties = await summed(share)
        else:
            sharing = self._transport.share(round_, local)
            await wait(sharing)
            share = sharing.share
            parties = await summed(share)
            await wait(sharing.close())
        members = parties.members
        if members != round_.among:
            self._remaining[key] = members
        return Reduction(
            share.output.view(round_.tensor.shape),
            members,
            parties.present,
            nbytes=mail.nbytes,
            whole=share.whole,
            weights=parties.weights,
        )


def _words(round_: Round) -> str:
    """What this round is, so that members that mean different ones find out."""
    dtype = str(round_.tensor.dtype).removeprefix("torch.")
    return f"{round_.kind.value} of {round_.tensor.numel()} {dtype} across groups"
