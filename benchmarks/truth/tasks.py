"""The tasks: data is noise, because only time is looked at."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fast.core import Task

WIDTHS = {"64-64-10": (64, 64, 10), "1.9 M": (784, 1024, 1024, 10)}


class Noise(Task):
    """An MLP on random numbers."""

    name = "noise"
    target = 0.9
    batch_size = 32
    widths: tuple[int, ...]
    _samples = 2048

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(self._samples, self.widths[0], generator=generator)
        self._classes = torch.randint(10, (self._samples,), generator=generator)

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(self.widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def train(self) -> Sequence[int]:
        return range(self._samples)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices)
        return self._inputs[rows], self._classes[rows]

    def test(self) -> tuple[Tensor, Tensor]:
        return self.batch(range(self.batch_size))

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
        return float((model(batch[0]).argmax(1) == batch[1]).float().mean())


class Small(Noise):
    widths = WIDTHS["64-64-10"]


class Large(Noise):
    widths = WIDTHS["1.9 M"]


TASKS = {
    name: f"{Path(__file__).resolve()}:{kind.__name__}"
    for name, kind in (("64-64-10", Small), ("1.9 M", Large))
}
