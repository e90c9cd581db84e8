"""An asynchronous server that rebuilds the gradients of linear layers from activations and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fast.core import GRADIENT, WEIGHTS, Letter, Me, Strategy, Tag
from fast.errors import WireError
from fast.parts.factors import Factors, Place, pack, places, rebuild, remaining, unpack
from fast.strategies.central.clocks import Shares

PUSH, READ = "push", "read"


@dataclass
class Books:
    """Where factors can pay, which follows from the model alone; and on the server, how large pushes are."""

    places: tuple[Place, ...]
    shares: Shares = field(default_factory=Shares)


class FactorPushes(Strategy):
    """push (x_i, delta_i) of linear layers where that is less, and the rest of g_i;
    server, on arrival:  g_i = delta_i^T x_i;  w <- optimizer(w, g_i / P).

    A push is one letter of bytes: the gradient's values that are left over, in their order, and then the
    factors with their table, from which the server sees what is left over.
    """

    uses_factors = True
    identity_alone = True
    admits = True
    tags = (Tag(PUSH, carries=GRADIENT), Tag(READ, carries=WEIGHTS))

    def servers(self, workers: int) -> int:
        return 1

    def state(self, me: Me) -> Books:
        return Books(places(me.layout))

    async def step(self, me: Me) -> None:
        (server,) = me.servers
        offers = me.factors(me.state.places, workers=2)
        rest = _rest(me.gradient, me, offers)
        packed = torch.cat([*rest, pack(offers, me.gradient.device)])
        me.send(server, packed, tag=PUSH, dense=sum(map(len, rest)), rates=me.rates)
        me.weights.copy_((await me.receive(READ, server)).tensor)

    async def serve(self, me: Me) -> None:
        books: Books = me.state
        for push in await me.news(PUSH):
            share = books.shares.take_in(me.view, push.sender, push.weight)
            if push.weight:
                me.apply(_rebuilt(me, push).mul_(share), of=[push], rates=push.note["rates"])
            me.send(push.sender, me.weights, tag=READ)


def _rebuilt(me: Me, push: Letter) -> Tensor:
    """The whole gradient of a push, in memory that can be used until the next one."""
    gradient, dense = me.scratch("rebuilt"), push.note["dense"]
    if push.tensor.is_meta:  # sizes only
        return gradient
    offers = unpack(push.tensor[dense:], me.state.places, gradient.dtype)
    parts = _rest(gradient, me, offers)
    if dense != sum(map(len, parts)):
        raise WireError(
            f"a push of worker {push.sender} has {dense} bytes beside its factors, which don't fit"
        )
    at = 0
    for part in parts:
        part.copy_(push.tensor[at : at + len(part)])
        at += len(part)
    for each in offers:
        if each is not None:
            rebuild([(1.0, each)], me.layout, gradient)
    return gradient


def _rest(gradient: Tensor, me: Me, offers: Sequence[Factors | None]) -> list[Tensor]:
    """What of a flat gradient goes as it is, as bytes."""
    chosen = [each.place for each in offers if each is not None]
    return [gradient[part].view(torch.uint8) for part in remaining(me.layout, chosen)]
