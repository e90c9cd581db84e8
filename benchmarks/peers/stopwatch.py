"""A task with a stop-watch of its own, which knows nothing of what FAST measures.

Every process writes the times of all its calls of `loss` to the folder `FAST_STOPWATCH`.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fast
from fast.lab import load_task


class Timed(fast.Task):
    """The built-in task that `FAST_STOPWATCH_TASK` names, watched."""

    name = "timed"

    def __init__(self) -> None:
        self._task = load_task(os.environ["FAST_STOPWATCH_TASK"])
        self.target, self.batch_size = self._task.target, self._task.batch_size  # type: ignore[misc]
        self.epochs = self._task.epochs  # type: ignore[misc]
        self._times: list[float] = []
        atexit.register(self._write)

    def _write(self) -> None:
        if self._times:
            path = Path(os.environ["FAST_STOPWATCH"]) / f"{os.getpid()}-{time.monotonic_ns()}.json"
            path.write_text(json.dumps(self._times))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._times.append(time.monotonic())
        return self._task.loss(model, batch)

    def model(self) -> nn.Module:
        return self._task.model()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self._task.optimizer(model)

    def train(self) -> Sequence[Any]:
        return self._task.train()

    def test(self) -> Any:
        return self._task.test()

    def batch(self, indices: Sequence[int]) -> Any:
        return self._task.batch(indices)

    def score(self, model: nn.Module, batch: Any) -> float:
        return self._task.score(model, batch)
