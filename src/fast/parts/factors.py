"""Sufficient factors: the activations and errors of a linear layer in the place of its gradient.

For y = x W^T + b with activations x (rows x inputs) and errors delta (rows x outputs)

    dL/dW = delta^T x        dL/db = the sum of delta's rows

so rows * (inputs + outputs) values say as much as the inputs * outputs of the gradient. For a small
batch and a large layer they are fewer (Chilimbi et al., Project Adam, OSDI 2014; Xie et al.,
Sufficient Factor Broadcasting, UAI 2016). Whoever gets them rebuilds the gradient.

Which matrices may travel like that follows from the layout alone, so all workers have the same list
of places. In each step a worker offers factors for some of them, and its letter says for which.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.view import Layout

_NONE = -1
"""In a letter's table: no factors for this place."""
_TABLE_BYTES = 4
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Place:
    """A matrix in a flat gradient, and the bias that is rebuilt with it: the numbers of their segments."""

    weight: int
    bias: int | None
    outputs: int
    inputs: int

    def values(self, rows: int) -> int:
        """How many numbers the factors of so many rows are."""
        return rows * (self.inputs + self.outputs)

    def pays(self, rows: int, workers: int = 2) -> bool:
        """Whether factors are less to send than the gradient.

        A worker sends its factors to all others, (P - 1) rows (inputs + outputs), where of a mean it
        sends 2 (P - 1) / P inputs * outputs. For two, as for one letter to a server, that is the
        plain rule rows (inputs + outputs) < inputs * outputs.
        """
        return workers * self.values(rows) < 2 * self.inputs * self.outputs


def places(layout: Layout, workers: int = 2) -> tuple[Place, ...]:
    """Where factors can pay at all, by shape and name: `fc.weight`, a matrix, with `fc.bias` if there is one."""
    numbers = {segment.name: number for number, segment in enumerate(layout.segments)}
    found = []
    for number, segment in enumerate(layout.segments):
        if len(segment.shape) == 2 and segment.name.endswith("weight"):
            outputs, inputs = segment.shape
            bias = numbers.get(f"{segment.name.removesuffix('weight')}bias")
            if bias is not None and layout.segments[bias].shape != (outputs,):
                bias = None
            found.append(Place(number, bias, outputs, inputs))
    return tuple(place for place in found if place.pays(1, workers))


@dataclass(frozen=True, eq=False)
class Factors:
    """One layer's activations and errors, a row for each time that it was applied."""

    place: Place
    inputs: Tensor
    errors: Tensor

    @property
    def rows(self) -> int:
        return self.inputs.shape[0]

    @property
    def nbytes(self) -> int:
        return self.place.values(self.rows) * self.inputs.element_size()

    def add_to(self, flat: Tensor, layout: Layout, weight: float = 1.0) -> None:
        """gradient += weight * delta^T x, and likewise the bias, inside a flat gradient."""
        layout.segments[self.place.weight].of(flat).addmm_(self.errors.t(), self.inputs, alpha=weight)
        if self.place.bias is not None:
            layout.segments[self.place.bias].of(flat).add_(self.errors.sum(0), alpha=weight)


def rebuild(terms: Sequence[tuple[float, Factors]], layout: Layout, flat: Tensor) -> None:
    """Write sum_i w_i delta_i^T x_i into its place in a flat gradient, whatever was there, and the bias.

    All rows are put together, in the order given, and multiplied once: the gradient of one large
    batch, which is written once and not once per term. The rows are copied to memory of their
    own, because a product's bits may depend on where its operands lie; like this everybody who is
    given the same terms gets the same bits. 16-bit numbers are multiplied in float32 and cast back.
    """
    if flat.is_meta:  # sizes only
        return
    place = terms[0][1].place
    wide = torch.float32 if flat.dtype in _HALF else flat.dtype
    inputs = torch.cat([each.inputs.to(wide) for _, each in terms])
    errors = torch.cat([each.errors.to(wide) * weight for weight, each in terms])
    into = layout.segments[place.weight].of(flat)
    if wide == flat.dtype:
        torch.mm(errors.t(), inputs, out=into)
    else:
        into.copy_(errors.t() @ inputs)
    if place.bias is not None:
        layout.segments[place.bias].of(flat).copy_(errors.sum(0))
    _clear_padding(place, layout, flat)


def _clear_padding(place: Place, layout: Layout, flat: Tensor) -> None:
    for number in (place.weight, place.bias):
        if number is not None:
            flat[layout.segments[number].stop : _room(layout, number).stop].zero_()


def remaining(layout: Layout, chosen: Collection[Place]) -> list[slice]:
    """What of a flat tensor these places leave over, as few slices as possible."""
    covered = {number for place in chosen for number in (place.weight, place.bias)}
    slices: list[slice] = []
    for number in range(len(layout.segments)):
        room = _room(layout, number)
        if number not in covered and room.stop > room.start:
            joins = bool(slices) and slices[-1].stop == room.start
            slices.append(slice(slices.pop().start if joins else room.start, room.stop))
    return slices


def _room(layout: Layout, number: int) -> slice:
    """A segment with the padding after it."""
    after = number + 1
    stop = layout.segments[after].start if after < len(layout.segments) else layout.size
    return slice(layout.segments[number].start, stop)


# A letter


def packed_bytes(offers: Sequence[Factors | None]) -> int:
    """The size of a letter: rows (inputs + outputs) values per layer, and 4 bytes for each place."""
    return sum(each.nbytes for each in offers if each is not None) + _TABLE_BYTES * len(offers)


def pack(offers: Sequence[Factors | None], device: torch.device | str = "cpu") -> Tensor:
    """One flat tensor of bytes: each layer's activations and errors, then a table of their rows.

    There is an offer or None for each place. Zero rows are an offer too: of a layer that had nothing
    to do in this step, and whose gradient is zero.
    """
    rows = [_NONE if each is None else each.rows for each in offers]
    tensors = [tensor for each in offers if each is not None for tensor in (each.inputs, each.errors)]
    table = torch.tensor(rows, dtype=torch.int32, device=device)
    return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in (*tensors, table)])


def unpack(
    packed: Tensor, places: Sequence[Place], dtype: torch.dtype, like: Sequence[Factors | None] = ()
) -> list[Factors | None]:
    """The offers in a letter, one for each place, as views into it where that is possible. A letter without
    values has no table; its offers are taken to be `like` the reader's own."""
    if packed.is_meta:
        return _offers_like(packed, like)
    end = packed.numel() - _TABLE_BYTES * len(places)
    if packed.dtype != torch.uint8 or packed.dim() != 1 or end < 0:
        raise WireError(
            f"factors of {len(places)} layers come as bytes with a table of {_TABLE_BYTES * len(places)}, "
            f"and got {packed.dtype} of shape {tuple(packed.shape)}"
        )
    table = packed[end:].clone().view(torch.int32).tolist()
    counts = [place.values(max(rows, 0)) for place, rows in zip(places, table, strict=True)]
    if any(rows < _NONE for rows in table) or sum(counts) * dtype.itemsize != end:
        raise WireError(f"factors of {table} rows don't fit into the {end} bytes that came with them")
    values = packed[:end]
    if values.storage_offset() % dtype.itemsize:
        values = values.clone()
    pieces = values.view(dtype).split_with_sizes(counts)
    return [_offer(*each) for each in zip(places, table, pieces, strict=True)]


def _offers_like(packed: Tensor, like: Sequence[Factors | None]) -> list[Factors | None]:
    if packed.numel() != packed_bytes(like):
        raise UsageError(
            f"factors of {packed.numel()} bytes came to a worker whose own are {packed_bytes(like)}. How many rows are "
            "inside is written in their values, and this run has sizes only: give all workers batches of one size."
        )
    return list(like)


def _offer(place: Place, rows: int, values: Tensor) -> Factors | None:
    if rows == _NONE:
        return None
    inputs, errors = values.split_with_sizes([rows * place.inputs, rows * place.outputs])
    return Factors(place, inputs.view(rows, place.inputs), errors.view(rows, place.outputs))
