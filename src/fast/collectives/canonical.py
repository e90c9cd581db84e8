"""The one arithmetic of a mean: by ascending worker, in a fixed order of operations.

The order of a sum is part of its result. Every world that promises equal bits uses this function
or does exactly the same. It has element-wise operations only, so cutting the tensors into slices
(a reduce-scatter) changes no bit either.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fast.errors import UsageError

_HALF = (torch.float16, torch.bfloat16)


def canonical_mean(tensors: Sequence[Tensor], weights: Sequence[float], out: Tensor | None = None) -> Tensor:
    """(sum_i w_i t_i) / (sum_i w_i), added from the first to the last. The inputs stay intact.

    Equal weights: ((t_0 + t_1) + ...) / P. Otherwise: ((t_0 w_0 + t_1 w_1) + ...) / sum(w), each
    product rounded before it is added. Weights that add up to 0 count as equal. 16-bit floats
    are added in float32 and cast back once. `out` may hold the result; it must not be one of
    the inputs.
    """
    _check_alike(tensors, weights)
    first = tensors[0]
    wide = torch.float32 if first.dtype in _HALF else first.dtype
    total = sum(weights)
    if total == 0 or all(weight == weights[0] for weight in weights):
        accumulated = _start(first, wide, out)
        for tensor in tensors[1:]:
            accumulated.add_(tensor.to(wide))
        accumulated.div_(len(tensors))
    else:
        accumulated = _start(first, wide, out).mul_(weights[0])
        for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
            accumulated.add_(tensor.to(wide) * weight)
        accumulated.div_(total)
    if out is not None:
        return out if accumulated is out else out.copy_(accumulated)
    return accumulated.to(first.dtype)


def _start(first: Tensor, wide: torch.dtype, out: Tensor | None) -> Tensor:
    """A private copy of the first tensor to add to: in `out` if that is wide enough."""
    if out is not None and out.dtype == wide:
        return out.copy_(first)
    return first.to(wide, copy=True)


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
