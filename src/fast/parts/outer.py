"""Outer optimizers: how common weights go on from what the workers' own steps have changed.

Between two exchanges worker i goes from the common weights w to w_i. Delta, the mean of w - w_i over those who
exchange, is then a gradient for w: one step against it with a rate of 1 leads to the mean of the w_i. An outer
optimizer takes that step with a rate and a memory of its own. All of them act on each value by itself, so cutting
the tensors into slices changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor


class Outer(Protocol):
    """What strategies with an outer optimizer are configured with."""

    @property
    def follows_rates(self) -> bool:
        """Whether its memory is multiplied by the inner learning rate, and so has to change with it."""

    def step(self, weights: Tensor, change: Tensor, memory: Tensor) -> None:
        """Move `weights`, from which the workers have gone away by -`change` in the mean. The memory is zero at
        first; both are changed in place."""


@dataclass(frozen=True)
class Nesterov:
    """b <- momentum b + Delta;  w <- w - rate (Delta + momentum b).

    Without momentum it is plain SGD, and then with a rate of 1 the mean of the workers' weights.
    """

    rate: float
    momentum: float
    follows_rates: ClassVar[bool] = False

    def step(self, weights: Tensor, change: Tensor, memory: Tensor) -> None:
        memory.mul_(self.momentum).add_(change)
        weights.sub_(change, alpha=self.rate).sub_(memory, alpha=self.rate * self.momentum)


@dataclass(frozen=True)
class SlowMomentum:
    """u <- beta u + Delta / gamma;  w <- w - alpha gamma u,  with gamma the inner learning rate.

    Its memory is v = gamma u, which needs no division: v <- beta v + Delta;  w <- w - alpha v. It is u that stays
    when gamma changes, so whoever changes gamma multiplies v by the same factor.
    """

    alpha: float
    beta: float
    follows_rates: ClassVar[bool] = True

    def step(self, weights: Tensor, change: Tensor, memory: Tensor) -> None:
        memory.mul_(self.beta).add_(change)
        weights.sub_(memory, alpha=self.alpha)


@dataclass(frozen=True)
class HeavyBall:
    """m <- momentum m + rate Delta;  w <- w - m."""

    rate: float
    momentum: float
    follows_rates: ClassVar[bool] = False

    def step(self, weights: Tensor, change: Tensor, memory: Tensor) -> None:
        memory.mul_(self.momentum).add_(change, alpha=self.rate)
        weights.sub_(memory)
