"""The data of a run: the same samples in the same order in both worlds.

The order of an epoch comes from (seed, epoch) alone; `fast.shard` and `slices_of` cut it for the
workers by the same rule.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fast.core import Task
from fast.core.seeds import stream_seed
from fast.loop.data import slices_of


@functools.lru_cache(maxsize=8)
def order_of(samples: int, seed: int, epoch: int) -> tuple[int, ...]:
    """All samples once, in the order of this epoch."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "order", epoch))
    return tuple(torch.randperm(samples, generator=generator).tolist())


@final
class Order(Sampler[int]):
    """Epoch after epoch, in the order of `order_of`."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed, self._epoch = samples, seed, 0

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return iter(order_of(self._samples, self._seed, epoch))


@final
class Samples(Dataset[Any]):
    """A task's training samples, fetched a whole batch at a time."""

    def __init__(self, task: Task) -> None:
        self._task, self._size = task, len(task.train())

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._task.batch([index])

    def __getitems__(self, indices: list[int]) -> Any:
        return self._task.batch(indices)


def loader_of(task: Task, seed: int) -> DataLoader[Any]:
    """A loader to be cut by `fast.shard`.

    It has a generator of its own, because a DataLoader without one draws from torch's global
    generator at the start of each epoch, and dropout would no longer depend on (seed, worker,
    step) alone.
    """
    samples = Samples(task)
    return DataLoader(
        samples,
        batch_size=task.batch_size,
        sampler=Order(len(samples), seed),
        collate_fn=_as_it_is,
        generator=torch.Generator(),
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def simulated_batches(
    task: Task, workers: int, worker: int, seed: int
) -> Iterator[tuple[Sequence[int], int]]:
    """What `fast.shard(loader_of(...))` gives this worker, without end: indices, and how many count."""
    size = len(task.train())
    for epoch in itertools.count():
        yield from slices_of(order_of(size, seed, epoch), workers, worker, task.batch_size, drop_last=False)
