"""Tasks: the built-in ones, and those from a user's file."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fast.core import Task
from fast.errors import UsageError
from fast.loop.loading import load_name

Batch = tuple[Tensor, Tensor]
_SPLIT_SEED = 20_190_213
_TEST_IMAGES = 700


@final
class Digits(Task):
    """Handwritten digits, 8 x 8 pixels: scikit-learn's bundled 1,797 images, 700 of them for the test.

    Plain SGD, because it treats every way of talking alike: a gradient moves the weights by the
    same amount, whoever applies it and whenever. Momentum wouldn't: on a server it runs P times
    as often with gradients of 1/P, in local training each worker has its own, and a late gradient
    would be multiplied like a fresh one. With this rate and four workers `allreduce` reaches the
    target in about a fifth of the epochs, so that slower strategies have time to get there too.
    """

    name = "digits"
    target = 0.94
    batch_size = 32
    epochs: ClassVar[float] = 60.0
    rate: ClassVar[float] = 0.5

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    def train(self) -> Sequence[int]:
        return range(len(_digits()[0][1]))

    def test(self) -> Batch:
        return _digits()[1]

    def batch(self, indices: Sequence[int]) -> Batch:
        images, labels = _digits()[0]
        chosen = torch.tensor(indices)
        return images[chosen], labels[chosen]

    def score(self, model: nn.Module, batch: Batch) -> float:
        """The share of right answers."""
        images, labels = batch
        return int((model(images).argmax(1) == labels).sum()) / len(labels)


@functools.cache
def _digits() -> tuple[Batch, Batch]:
    """Training and test images with their labels, made once per process.

    The split is a fixed permutation: it never depends on the seed of a run. scikit-learn is
    imported here because it takes a second, which every other command would pay for.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    test, train = order[:_TEST_IMAGES], order[_TEST_IMAGES:]
    return (images[train], labels[train]), (images[test], labels[test])


TASKS: Mapping[str, type[Task]] = MappingProxyType({Digits.name: Digits})
"""The built-in tasks by name."""


def load_task(text: str) -> Task:
    """A built-in task by its name, or the Task `Name` of a `file.py:Name`."""
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(path, name)
    if text not in TASKS:
        near = get_close_matches(text, TASKS, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Built in: {', '.join(TASKS)}."
        raise UsageError(f"there is no task {text!r}. {hint} A task of your own is given as file.py:Name.")
    return TASKS[text]()


def _from_file(path: str, name: str) -> Task:
    if not name.isidentifier():
        raise UsageError(f"{path}:{name}: after the colon comes the name of a Task, as in {path}:MyTask")
    try:
        found: Any = load_name(path, name)
        task = found() if callable(found) else found
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path}:{name} can't be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise UsageError(f"{path}:{name} is {task!r}, and a task is a subclass of fast.Task")
    return task


def epochs_of(task: Task) -> float:
    """How long a task trains unless told otherwise."""
    return float(task.epochs)


def target_of(task: Task) -> float:
    """The score to reach unless told otherwise."""
    target = getattr(task, "target", None)
    if not isinstance(target, int | float):
        raise UsageError(
            f"{type(task).__name__} states no target. Give one: --target, or `target = 0.9` in it."
        )
    return float(target)
