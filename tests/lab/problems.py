"""Tasks that tests load from this file, as a user's own."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fast

Batch = tuple[Tensor, Tensor]


class Dropout(fast.Task):
    """Random numbers in every gradient, buffers in the model, and a short last step per epoch."""

    name = "dropout"
    target = 0.5
    batch_size = 16

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3)
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def train(self) -> Sequence[int]:
        return range(110)

    def test(self) -> Batch:
        return self._made(range(110, 210))

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._made(indices)

    def score(self, model: nn.Module, batch: Batch) -> float:
        return float((model(batch[0]).argmax(1) == batch[1]).float().mean())

    def _made(self, indices: Sequence[int]) -> Batch:
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(210, 6, generator=generator)
        return x[list(indices)], (x @ torch.randn(6, 3, generator=generator)).argmax(1)[list(indices)]


class Sealed(Dropout):
    """Has validation data too, and writes every look at its test data to the file `FAST_TEST_SEAL`."""

    name = "sealed"

    def validation(self) -> Batch:
        return self._made(range(150, 210))

    def test(self) -> Batch:
        with open(os.environ["FAST_TEST_SEAL"], "a") as seal:
            seal.write("test()\n")
        return self._made(range(110, 150))


class Unfinished(fast.Task):
    """Leaves everything out."""

    name = "unfinished"
    target = 0.5


not_a_task = 3
