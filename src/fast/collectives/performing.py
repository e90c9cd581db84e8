"""Performing a round: any kind, by any algorithm, with or without a codec, over letters alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from fast.collectives.agreement import Company
from fast.collectives.canonical import mean_of, sum_of
from fast.collectives.compressed import Slices, compressed_mean
from fast.collectives.dense import Dense
from fast.collectives.mail import Entry, Mail
from fast.collectives.sharing import all_gather, broadcast, reduce_scatter
from fast.collectives.sparse import sparse_mean
from fast.collectives.sums import Choice, check_algorithm
from fast.core.world import Kind, Reduction, Round, World
from fast.errors import UsageError
from fast.parts.codecs.base import Coder, Workspace


async def perform(world: World, round_: Round) -> Reduction:
    """Take part in one round, over letters. Who does so again and again keeps a `Performer`."""
    return await Performer(world).perform(round_)


@final
class Performer:
    """Performs the rounds of one participant: one after another, or several at once in their lanes.

    It keeps memory, so that a round as large as one before allocates nothing: a result is valid until
    the next round in its lane. And it remembers who took part last. Nobody comes back, and all who
    took part know the same, so a group of which somebody has left starts among the rest.
    """

    def __init__(self, world: World) -> None:
        self._world, self._work = world, Workspace()
        self.remaining: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    async def perform(self, round_: Round) -> Reduction:
        """Take part in a round with those of its group who have not left."""
        _check(self._world, round_)
        if self._work.owns(round_.tensor):  # the result of a round before, which this one would write into
            round_ = replace(round_, tensor=round_.tensor.clone())
        key = (round_.tag, round_.among)
        mail = Mail(self._world, round_.tag, self._work, round_.groups)
        part = _Part(mail, round_, self.remaining.get(key, round_.among), self._world)
        company, tensor = await part.perform()
        if company.members != round_.among:
            self.remaining[key] = company.members
        return Reduction(
            tensor, company.members, company.present, nbytes=mail.nbytes, weights=company.weights
        )


@final
class _Part:
    """This member's part in one round."""

    def __init__(self, mail: Mail, round_: Round, among: tuple[int, ...], world: World) -> None:
        self._mail, self._round, self._among = mail, round_, among
        self._choice = Choice(world.link, round_.algorithm, round_.any_order)
        self._values = round_.tensor.detach().contiguous().view(-1)
        self._entry = Entry(_words(round_), round_.weight, round_.present)

    async def perform(self) -> tuple[Company, Tensor]:
        shape, rest = self._round.tensor.shape, (self._among, self._entry, self._choice)
        match self._round.kind:
            case Kind.MEAN if self._round.coder is not None:
                company, result = await self._encoded(self._round.coder)
            case Kind.MEAN | Kind.SUM:
                dense = self._dense()
                result = await dense.total(self._values, mean_of if self._round.kind is Kind.MEAN else sum_of)
                company = await dense.meet()
            case Kind.BROADCAST:
                company, result = await broadcast(self._mail, self._values, self._round.source, *rest)
            case Kind.REDUCE_SCATTER:
                return await reduce_scatter(self._mail, self._values, *rest)
            case Kind.ALL_GATHER:
                return await all_gather(self._mail, self._round.tensor.detach(), *rest)
        return company, result.view(shape)

    def _dense(self) -> Dense:
        return Dense(self._mail, self._among, self._entry, self._choice)

    async def _encoded(self, coder: Coder) -> tuple[Company, Tensor]:
        codec, mail, values = coder.codec, self._mail, self._values
        out = mail.memory("result", values.numel(), values.dtype, values.device)
        if codec.rounds:
            return await self._in_rounds(coder, out), out
        if codec.summable:
            return await self._summable(coder, out), out
        if codec.sparse:
            return await sparse_mean(mail, values, coder, self._among, self._entry, self._choice, out), out
        check_algorithm(self._choice.algorithm, ("direct",), f"{codec!r}, whose bytes can't be added")
        slices = Slices(coder, len(self._round.among))
        return await compressed_mean(mail, values, slices, self._among, self._entry, out), out

    async def _summable(self, coder: Coder, out: Tensor) -> Company:
        """Bytes that can be averaged as they are: the mean takes the place of one's own numbers in them."""
        dense, packed = self._dense(), coder.encode(self._values)
        summands = coder.codec.summands(packed, coder.layout)
        summands.copy_(await dense.total(summands, mean_of))
        coder.decode(packed, out)
        return await dense.meet()

    async def _in_rounds(self, coder: Coder, out: Tensor) -> Company:
        """A codec that needs several means, each made from the result of the one before."""
        dense = self._dense()

        async def mean(flat: Tensor) -> Tensor:
            return await dense.total(flat, mean_of)

        codec: Any = coder.codec
        if self._values.is_meta:
            for size in codec.round_sizes(coder.layout):
                await mean(self._values.new_empty(size, dtype=coder.layout.dtype))
        else:
            await codec.mean_rounds(self._values, coder.layout, coder.state, coder.work, mean, out)
        coder.state.steps += 1
        return await dense.meet()


def _words(round_: Round) -> str:
    """What this round is, so that members that mean different ones find out."""
    dtype = str(round_.tensor.dtype).removeprefix("torch.")
    encoded = ""
    if round_.coder is not None:
        codec, state = round_.coder.codec, round_.coder.state
        encoded = f" as {codec.name}"
        if codec.summable or codec.rounds:  # all must choose the same places, or have the same factors
            encoded += f" for the {state.steps}th time"
    return f"{round_.kind.value} of {round_.tensor.numel()} {dtype}{encoded}"


def _check(world: World, round_: Round) -> None:
    among, tensor, kind = round_.among, round_.tensor, round_.kind
    if world.id not in among or list(among) != sorted(set(among)):
        raise UsageError(
            f"participant {world.id} asks for a {kind.value} among {among}; it must be one of them, "
            "and they are named in ascending order"
        )
    if kind in (Kind.MEAN, Kind.REDUCE_SCATTER) and not tensor.is_floating_point():
        raise UsageError(f"a {kind.value} needs floating point numbers and got {tensor.dtype}; convert them")
    if kind is Kind.SUM and tensor.dtype == torch.bool:
        raise UsageError("a sum of truth values: convert them to integers, and it counts them")
    if round_.coder is not None:
        _check_coder(round_.coder, round_)


def _check_coder(coder: Coder, round_: Round) -> None:
    if round_.kind is not Kind.MEAN:
        raise UsageError(
            f"a {round_.kind.value} is made without a codec and got {coder.codec!r}; leave it out"
        )
    layout, tensor = coder.layout, round_.tensor
    if layout.size != tensor.numel() or layout.dtype != tensor.dtype:
        raise UsageError(
            f"{coder.codec!r} was set up for {layout.size} values of {layout.dtype} and is to encode "
            f"{tensor.numel()} of {tensor.dtype}"
        )
