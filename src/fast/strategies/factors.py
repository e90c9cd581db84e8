"""Sufficient factors: small batches and errors travel, and everybody rebuilds the large gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fast.core import GRADIENT, Me, Strategy, Tag
from fast.parts.factors import Factors, Place, pack, places, rebuild, remaining, unpack

Offers = Sequence[Factors | None]
"""One worker's, for each place."""


class FactorBroadcast(Strategy):
    """w <- optimizer(w, mean_i g_i) like `AllReduce`, but of linear layers (x_i, delta_i) travel, and
    everybody computes  mean_i g_i = sum_i share_i delta_i^T x_i  itself.

    A layer goes this way in a step if all workers have offered its factors in their letters of that
    step; all see the same letters, so they agree. The rest goes through a mean. Who has sent its
    letter also comes to the mean before it can leave, so both have the same members.
    """

    synchronous = True
    identity_alone = True
    replicas_agree = True
    uses_factors = True
    tags = (Tag("factors", carries=GRADIENT),)

    def state(self, me: Me) -> tuple[Place, ...]:
        """Where factors can pay: the same on all workers, as it follows from the model and their number."""
        return places(me.layout, len(me.workers))

    async def step(self, me: Me) -> None:
        if not me.state or not me.peers:
            me.apply(await self._mean(me, me.gradient))
            return
        own = me.factors(me.state)
        me.send(me.peers, pack(own, me.gradient.device), tag="factors")
        letters, _ = await me.gather("factors", me.peers)
        offers: dict[int, Offers] = {me.id: own}
        samples = {me.id: float(me.samples)}
        for peer, letter in letters.items():
            offers[peer] = unpack(letter.tensor, me.state, me.gradient.dtype, like=own)
            samples[peer] = letter.weight
        me.apply(await self._merged(me, offers, samples))

    async def _merged(self, me: Me, offers: Mapping[int, Offers], samples: Mapping[int, float]) -> Tensor:
        """The mean gradient, in order of the workers, so that it has the same bits on all of them."""
        layers = _agreed([offers[worker] for worker in sorted(offers)])
        if not layers:
            return await self._mean(me, me.gradient)
        merged, layout = me.scratch("merged"), me.layout
        rest = remaining(layout, [layer[0].place for layer in layers])
        if rest:
            mean = await self._mean(me, _cut(me, rest))
            for part, values in zip(rest, mean.split_with_sizes([_size(part) for part in rest]), strict=True):
                merged[part] = values
        total = sum(samples.values()) or 1.0
        shares = [samples[worker] / total for worker in sorted(offers)]
        for layer in layers:
            rebuild(list(zip(shares, layer, strict=True)), layout, merged)
        return merged

    async def _mean(self, me: Me, values: Tensor) -> Tensor:
        return await me.mean(values, weight=me.samples, read_only=True)


def _agreed(offers: Sequence[Offers]) -> list[list[Factors]]:
    """The layers that everybody has offered: each as all workers' factors."""
    layers = [[each for each in layer if each is not None] for layer in zip(*offers, strict=True)]
    return [layer for layer in layers if len(layer) == len(offers)]


def _cut(me: Me, parts: Sequence[slice]) -> Tensor:
    """These parts of the gradient in one tensor: read in place if it is one part, else put together."""
    if len(parts) == 1:
        return me.gradient[parts[0]]
    together = me.scratch("rest")[: sum(map(_size, parts))]
    return torch.cat([me.gradient[part] for part in parts], out=together)


def _size(part: slice) -> int:
    return int(part.stop - part.start)
