"""What there is to know about a task without its data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fast.core import Task
from fast.lab import datasets
from fast.lab.datasets import State
from fast.lab.tasks.loading import TASKS, epochs_of, samples_of, target_of


@dataclass(frozen=True)
class Facts:
    """One row of a list of tasks."""

    name: str
    about: str
    parameters: int
    weights_bytes: int
    train_samples: int
    batch_size: int
    target: float
    epochs: float
    data: dict[str, State]
    """The data sets that it needs, and how they are found here."""

    @property
    def missing(self) -> list[str]:
        """What has to be fetched first."""
        return [name for name, state in self.data.items() if state in (State.MISSING, State.BROKEN)]


def facts_of(task: Task) -> Facts:
    """Sizes come from the model and from the catalogue; nothing has to be there."""
    with torch.device("meta"):  # shapes without memory
        parameters = list(task.model().parameters())
    return Facts(
        name=task.name,
        about=task.about,
        parameters=sum(each.numel() for each in parameters),
        weights_bytes=sum(each.numel() * each.element_size() for each in parameters),
        train_samples=samples_of(task),
        batch_size=task.batch_size,
        target=target_of(task),
        epochs=epochs_of(task),
        data={name: datasets.state_of(datasets.find(name)) for name in task.data()},
    )


def built_in() -> list[Facts]:
    """All built-in tasks, from small to large."""
    return [facts_of(task()) for task in TASKS.values()]
