"""Linear layers of many workers at once, in the order of factors that suits batched products on a CPU.

A linear layer is y = x W^T + b. Of one worker's the order of the factors hardly matters; of hundreds in one batched
product it does, and most of all backward: from (W x^T)^T the gradient of W comes out as g^T x, as it lies in the
flat tensor, while from x W^T it comes out transposed, several times as slowly where W is narrow. The numbers are the
same but for the last digits, which differ from one worker's product anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


@final
class StackedLinear(TorchFunctionMode):
    """While this is entered, linear layers of rows of samples are computed as (W x^T)^T + b."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and not kwargs and args[0].dim() == 2:
            return _linear(*args)
        return func(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = (weight @ x.mT).mT
    return product if bias is None else product + bias
