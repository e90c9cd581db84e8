"""Task: a problem to train on, so that strategies can be compared and simulated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Task(ABC):
    """Data, a model, a loss and a score. `fast compare` and `fast simulate` run it."""

    name: ClassVar[str]
    about: ClassVar[str] = ""
    """One line, for lists of tasks."""
    target: ClassVar[float]
    """The score that `time to target` asks for, unless told otherwise."""
    batch_size: ClassVar[int] = 32
    """Samples per worker and step."""
    epochs: ClassVar[float] = 10.0
    """How long to train, over the data of all workers together, unless told otherwise."""
    stackable: ClassVar[bool] = False
    """Whether `batch(a + b)` is `batch(a)` followed by `batch(b)` along the first dimension of every
    tensor in it, and indices may be a numpy array: then many simulated workers' batches are one look-up."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model. Its weights come from torch's generator, which is seeded before."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss over the samples of a batch."""

    @abstractmethod
    def train(self) -> Sequence[Any]:
        """The training samples. `batch` turns some of them into what `loss` takes."""

    def labels(self) -> Sequence[int] | None:
        """The class of each training sample, for splits by class. Tasks without classes have none."""
        return None

    def data(self) -> Sequence[str]:
        """The names of FAST's own data sets that it reads (see `fast data`)."""
        return ()

    @abstractmethod
    def test(self) -> Any:
        """A batch that is never trained or tuned on."""

    def validation(self) -> Any:
        """A batch to tune on. Tasks without one have nothing to tune."""
        return None

    @abstractmethod
    def batch(self, indices: Sequence[int]) -> Any:
        """The training samples with these indices, as one batch."""

    @abstractmethod
    def score(self, model: nn.Module, batch: Any) -> float:
        """Between 0 and 1; higher is better."""
