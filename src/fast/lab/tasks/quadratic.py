"""Least squares with a known optimum: what a strategy does to a convex problem, without any data."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from fast.core import Task

Batch = tuple[Tensor, Tensor]
_SEED = 1_847
_SAMPLES, _FEATURES, _CLUSTERS = 4096, 32, 8


@final
class Quadratic(Task):
    """f(w) = 1/2 mean_i (x_i · w - y_i)², 32 numbers to find, from 4,096 samples.

    The score is the share of the way to the optimum: 1 - (f(w) - f*) / (f(0) - f*), at least 0.
    Training starts at w = 0, so the score starts at 0 whatever the seed.

    The samples come in eight clusters, and each cluster has an optimum of its own. So a worker that
    has only some of them pulls elsewhere: `labels()` are the clusters. The Hessian's eigenvalues
    lie between 0.04 and 3.4.

    f is what is minimized and also what is scored: there is nothing to generalize to. So
    `validation()` and `test()` are both the training samples. With batches of 128, what four workers do with
    `allreduce`, this rate reaches the target in 3 epochs, a fifth of all; three times the rate is
    still stable, and faster.
    """

    name = "quadratic"
    stackable = True
    about = "least squares with a known optimum; needs no data"
    target = 0.99
    batch_size = 32
    epochs: ClassVar[float] = 15.0
    rate: ClassVar[float] = 0.1

    def model(self) -> nn.Module:
        model = nn.Linear(_FEATURES, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        found: Tensor = model(x).squeeze(1)
        return (found - y).square().mean() / 2

    def train(self) -> Sequence[int]:
        return range(_SAMPLES)

    def labels(self) -> Sequence[int]:
        clusters: list[int] = (torch.arange(_SAMPLES) % _CLUSTERS).tolist()
        return clusters

    def batch(self, indices: Sequence[int]) -> Batch:
        problem, rows = _problem(), torch.tensor(indices)
        return problem.x[rows], problem.y[rows]

    def validation(self) -> Batch:
        return self.test()

    def test(self) -> Batch:
        return _problem().x, _problem().y

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Batch) -> float:
        """The share of the way from f(0) to f*; 0 for whatever is worse than the start."""
        x, y = (part.double() for part in batch)
        best, start = _half_square(x @ self.optimum() - y), _half_square(y)
        reached = _half_square(model(batch[0]).squeeze(1).double() - y)
        return max(0.0, 1 - (reached - best) / (start - best))

    def optimum(self) -> Tensor:
        """w*, in double precision."""
        return _problem().optimum


def _half_square(residual: Tensor) -> float:
    return float(residual.square().mean() / 2)


@dataclass(frozen=True)
class _Problem:
    x: Tensor
    y: Tensor
    optimum: Tensor


@functools.cache
def _problem() -> _Problem:
    """Samples of a fixed seed, and where f is smallest: the solution of (X'X) w = X'y."""
    generator = np.random.default_rng(_SEED)
    cluster = np.arange(_SAMPLES) % _CLUSTERS
    scales = np.geomspace(0.2, 1.6, _FEATURES)
    centres = generator.standard_normal((_CLUSTERS, _FEATURES)) * scales / 2
    features = generator.standard_normal((_SAMPLES, _FEATURES)) * scales + centres[cluster]
    common = generator.standard_normal(_FEATURES)
    own = common + generator.standard_normal((_CLUSTERS, _FEATURES)) / 4
    noise = generator.standard_normal(_SAMPLES) / 2
    x = torch.tensor(features, dtype=torch.float32)
    y = torch.tensor((features * own[cluster]).sum(1) + noise, dtype=torch.float32)
    wide, targets = x.double(), y.double()
    return _Problem(x, y, torch.linalg.solve(wide.T @ wide, wide.T @ targets))
