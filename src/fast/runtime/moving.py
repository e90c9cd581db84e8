"""The moving average of a worker's weights over its own steps."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor


@final
class MovingAverage:
    """With decay d, after step t:  e_t  =  sum_s d^(t-s) x_s / sum_s d^(t-s),  s = 1 .. t.

    The weights before the first step have no part in it, so a short training isn't pulled back to where it
    began. Step by step that is e <- e + (1 - d) / (1 - d^t) (x_t - e). It is kept in 32 bits at least.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self._steps = decay, 0
        self._value: Tensor | None = None

    def keep_in(self, memory: Tensor) -> None:
        """From the first step on its value is here; what was here before has no part in it."""
        self._value = memory

    @torch.no_grad()
    def take(self, weights: Tensor) -> None:
        """After a step."""
        self._steps += 1
        if self._value is None:
            self._value = wide(weights).clone()
        else:
            share = (1.0 - self.decay) / (1.0 - self.decay**self._steps)
            self._value.lerp_(wide(weights), share)

    def of(self, weights: Tensor) -> Tensor:
        """Its value; before the first step the weights themselves."""
        return wide(weights) if self._value is None or not self._steps else self._value


def wide(weights: Tensor) -> Tensor:
    """Sixteen bits would swallow the small changes that it is made of."""
    return weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
