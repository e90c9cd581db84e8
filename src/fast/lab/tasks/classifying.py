"""What the tasks about images have in common: which class is this?

They train with plain SGD, because it treats every way of talking alike: a gradient moves the weights by
the same amount, whoever applies it and whenever. Momentum wouldn't: on a server it runs P times as
often with gradients of 1/P, in local training each worker has its own, and a late gradient would be
multiplied like a fresh one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fast.core import Task

Batch = tuple[Tensor, Tensor]
"""Images, one per row, and their classes."""
SPLIT_SEED = 20_190_213
"""Of the permutations that divide data: they never depend on the seed of a run."""
_CHUNK = 1000
"""So many images are scored at once: what that allocates doesn't grow with the test data."""


@dataclass(frozen=True)
class Divided:
    """Data cut into three parts that have nothing in common. The training images stay where they
    are and are looked up by row, so that workers can share the memory of a mapped file."""

    images: Tensor
    labels: Tensor
    train: Tensor
    """The rows to train on."""
    validation: Batch
    test: Batch

    def batch(self, indices: Sequence[int]) -> Batch:
        rows = self.train[torch.tensor(indices)]
        return self.images[rows], self.labels[rows]


class Classification(Task):
    """Cross entropy to train, the share of right answers as the score."""

    rate: ClassVar[float]
    stackable = True

    @abstractmethod
    def divided(self) -> Divided: ...

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    def batch(self, indices: Sequence[int]) -> Batch:
        return self.divided().batch(indices)

    def labels(self) -> Sequence[int]:
        divided = self.divided()
        classes: list[int] = divided.labels[divided.train].tolist()
        return classes

    def validation(self) -> Batch:
        return self.divided().validation

    def test(self) -> Batch:
        return self.divided().test

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Batch) -> float:
        """The share of right answers."""
        images, labels = batch
        pieces = (slice(start, start + _CHUNK) for start in range(0, len(labels), _CHUNK))
        right = sum(int((model(images[piece]).argmax(1) == labels[piece]).sum()) for piece in pieces)
        return right / len(labels)


def permutation(samples: int) -> Tensor:
    """The same on every machine and in every run."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(SPLIT_SEED))
