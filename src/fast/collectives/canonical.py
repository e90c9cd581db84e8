"""The one arithmetic of a mean: by ascending worker within a group, then over groups, in a fixed order of operations.

The order of a sum is part of its result. Every world that promises equal bits uses this function
or does exactly the same. It has element-wise operations only, so cutting the tensors into slices
(a reduce-scatter) changes no bit either.

Without groups, with one group of all, and with one group for each worker the order is the same: plainly by
ascending worker. `parts_of` returns () for all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from fast.errors import UsageError
from fast.view import Groups, grouped

_HALF = (torch.float16, torch.bfloat16)
Array = numpy.ndarray[Any, numpy.dtype[Any]]


@dataclass(frozen=True)
class Scaling:
    """What each term is multiplied by before the sum, and what the sum is divided by; None for nothing."""

    factors: tuple[float, ...] | None = None
    divisor: float | None = None

    def of(self, part: Sequence[int]) -> Scaling:
        """For the sum of the terms at these places: it isn't divided yet."""
        return Scaling(None if self.factors is None else tuple(self.factors[place] for place in part))


Parts = tuple[tuple[int, ...], ...]
"""Places of the terms that are added up among each other first; () for the plain order."""


def parts_of(members: Sequence[int], groups: Groups) -> Parts:
    """In which parts the tensors of these ascending members are added.

    >>> parts_of((0, 1, 3), ((0, 3), (1, 2))), parts_of((0, 1), ((0, 3), (1, 2)))
    (((0, 2), (1,)), ())
    """
    found = grouped(members, groups)
    if len(found) in (1, len(members)):
        return ()
    places = {member: place for place, member in enumerate(members)}
    return tuple(tuple(places[member] for member in group) for group in found)


Rule = Callable[[Sequence[float]], Scaling]
"""From everybody's weights to the scaling of a sum."""


def mean_of(weights: Sequence[float]) -> Scaling:
    """Equal weights, or those that add up to 0: a plain sum, divided by the number of terms."""
    if len(set(weights)) == 1 or sum(weights) == 0:
        return Scaling(divisor=len(weights))
    return Scaling(tuple(weights), sum(weights))


def sum_of(weights: Sequence[float]) -> Scaling:
    """A sum has no weights."""
    return Scaling()


def wide(dtype: torch.dtype) -> torch.dtype:
    """In which numbers of this dtype are added."""
    return torch.float32 if dtype in _HALF else dtype


def canonical_mean(
    tensors: Sequence[Tensor], weights: Sequence[float], out: Tensor | None = None, parts: Parts = ()
) -> Tensor:
    """(sum_i w_i t_i) / (sum_i w_i), added from the first to the last. The inputs stay intact.

    Equal weights: ((t_0 + t_1) + ...) / P. Otherwise: ((t_0 w_0 + t_1 w_1) + ...) / sum(w), each
    product rounded before it is added. Weights that add up to 0 count as equal. 16-bit floats
    are added in float32 and cast back once. With `parts` each part is added up like that, and then the sums of
    the parts, from the first to the last: ((t_0 + t_1) + (t_2 + t_3)) + ... `out` may hold the result; it must
    not be one of the inputs.
    """
    _check_alike(tensors, weights)
    first = tensors[0]
    if first.is_meta:  # nothing to add: there are sizes only
        return first.new_empty(first.shape) if out is None else out
    if out is None:
        out = torch.empty_like(first, memory_format=torch.contiguous_format)
    add_up(tensors, weights, out, parts)
    return out


def add_up(tensors: Sequence[Tensor], weights: Sequence[float], out: Tensor, parts: Parts = ()) -> None:
    """The arithmetic of `canonical_mean`, without its checks: for slices, again and again."""
    add_scaled(tensors, mean_of(weights), out, parts)


def add_scaled(tensors: Sequence[Tensor], scaling: Scaling, out: Tensor, parts: Parts = ()) -> None:
    """The sum of these tensors, from the first to the last, into `out`, which must not be one of them."""
    if parts:
        add_each(_sums_of_parts(tensors, scaling, out, parts), Scaling(divisor=scaling.divisor), out)
        return
    exact = tensors[0].dtype == out.dtype == wide(out.dtype)
    if scaling.factors is not None or len(tensors) == 1 or not exact:
        add_each(tensors, scaling, out)
        return
    torch.add(tensors[0], tensors[1], out=out)
    for tensor in tensors[2:]:
        out.add_(tensor)
    if scaling.divisor is not None:
        out.div_(scaling.divisor)


def add_each(tensors: Iterable[Tensor], scaling: Scaling, out: Tensor) -> None:
    """`add_scaled` for terms that are made one after another, perhaps in the same memory."""
    total = out if out.dtype == wide(out.dtype) else torch.empty_like(out, dtype=torch.float32)
    for place, tensor in enumerate(tensors):
        term = tensor.to(total.dtype)
        if scaling.factors is not None:
            term = term * scaling.factors[place]
        if place == 0:
            total.copy_(term)
        else:
            total.add_(term)
    if scaling.divisor is not None:
        total.div_(scaling.divisor)
    if total is not out:
        out.copy_(total)


def _sums_of_parts(
    tensors: Sequence[Tensor], scaling: Scaling, out: Tensor, parts: Parts
) -> Iterator[Tensor]:
    """One after another, in the same memory: the divisor is for their sum."""
    total = torch.empty_like(out, dtype=wide(out.dtype))
    for part in parts:
        add_scaled([tensors[place] for place in part], scaling.of(part), total)
        yield total


class EqualMean:
    """`add_up` with equal weights, round after round on the same memory, bit for bit.

    It goes through numpy, whose calls cost a fraction of torch's, so that pieces may be small
    enough for the cache. By a power of two it multiplies instead of dividing: the exact result
    is the same number, so its rounding is too.
    """

    def __init__(self, pieces: Sequence[tuple[Sequence[Tensor], Tensor]]) -> None:
        self._pieces = [([each.numpy() for each in inputs], out.numpy()) for inputs, out in pieces]
        count, dtype = len(self._pieces[0][0]), self._pieces[0][1].dtype
        exact = count & (count - 1) == 0
        self._scale = numpy.multiply if exact else numpy.divide
        self._by: Array = numpy.array(1 / count if exact else count, dtype)

    @staticmethod
    def takes(dtype: torch.dtype) -> bool:
        """16-bit floats are added in a wider type."""
        return dtype not in _HALF

    def run(self) -> None:
        with numpy.errstate(all="ignore"):  # infinities travel, as in torch
            for inputs, out in self._pieces:
                numpy.add(inputs[0], inputs[1], out)
                for each in inputs[2:]:
                    numpy.add(out, each, out)
                self._scale(out, self._by, out)


def _check_alike(tensors: Sequence[Tensor], weights: Sequence[float]) -> None:
    if not tensors or len(tensors) != len(weights):
        raise UsageError(
            f"a mean of {len(tensors)} tensors with {len(weights)} weights; it needs one weight each"
        )
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise UsageError(
                f"a mean of {first.dtype} {tuple(first.shape)} and {tensor.dtype} {tuple(tensor.shape)}. "
                "All members of a round must give tensors of one shape and dtype."
            )
