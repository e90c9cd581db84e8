"""The one arithmetic of a mean: by ascending worker, in a fixed order of operations.

The order of a sum is part of its result. Every world that promises equal bits uses this function
or does exactly the same. It has element-wise operations only, so cutting the tensors into slices
(a reduce-scatter) changes no bit either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from fast.errors import UsageError

_HALF = (torch.float16, torch.bfloat16)
Array = numpy.ndarray[Any, numpy.dtype[Any]]


def canonical_mean(tensors: Sequence[Tensor], weights: Sequence[float], out: Tensor | None = None) -> Tensor:
    """(sum_i w_i t_i) / (sum_i w_i), added from the first to the last. The inputs stay intact.

    Equal weights: ((t_0 + t_1) + ...) / P. Otherwise: ((t_0 w_0 + t_1 w_1) + ...) / sum(w), each
    product rounded before it is added. Weights that add up to 0 count as equal. 16-bit floats
    are added in float32 and cast back once. `out` may hold the result; it must not be one of
    the inputs.
    """
    _check_alike(tensors, weights)
    first = tensors[0]
    if out is None:
        out = torch.empty_like(first, memory_format=torch.contiguous_format)
    add_up(tensors, weights, out)
    return out


def add_up(tensors: Sequence[Tensor], weights: Sequence[float], out: Tensor) -> None:
    """The arithmetic of `canonical_mean`, without its checks: for slices, again and again."""
    first = tensors[0]
    if first.dtype in _HALF:
        wide = torch.empty(first.shape, dtype=torch.float32)
        add_up([tensor.to(torch.float32) for tensor in tensors], weights, wide)
        out.copy_(wide)
    elif len(set(weights)) == 1 or sum(weights) == 0:
        if len(tensors) == 1:
            out.copy_(first)
        else:
            torch.add(first, tensors[1], out=out)
        for tensor in tensors[2:]:
            out.add_(tensor)
        out.div_(len(tensors))
    else:
        torch.mul(first, weights[0], out=out)
        for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
            out.add_(tensor * weight)
        out.div_(sum(weights))


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
