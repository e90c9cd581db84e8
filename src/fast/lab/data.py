"""The data of a run: the same samples in the same order in both worlds.

Without a split the order of an epoch comes from (seed, epoch) alone; `fast.shard` and `slices_of`
cut it for the workers by the same rule. With one, each worker has samples of its own and goes
through them in an order drawn from (seed, worker, epoch).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fast.core import Task
from fast.core.seeds import stream_seed
from fast.lab.splits import batches
from fast.loop import own, shard
from fast.loop.data import slices_of


@functools.lru_cache(maxsize=8)
def order_of(samples: int, seed: int, epoch: int) -> tuple[int, ...]:
    """All samples once, in the order of this epoch."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "order", epoch))
    return tuple(torch.randperm(samples, generator=generator).tolist())


# Real workers


Shares = list[list[int]] | None
"""The samples of each worker; None where all of them share all samples."""


def batches_of(task: Task, shares: Shares, worker: int, seed: int) -> Iterator[Any]:
    """A worker's batches without end, by way of the public `fast.shard` and `fast.own`."""
    if shares is None:
        epoch = shard(loader_of(task, seed))
        return itertools.chain.from_iterable(itertools.repeat(epoch))
    mine = batches(shares, worker, seed, task.batch_size)
    return iter(own(DataLoader(Samples(task), batch_sampler=_Given(mine), **_options())))


def loader_of(task: Task, seed: int) -> DataLoader[Any]:
    """A loader to be cut by `fast.shard`."""
    samples = Samples(task)
    return DataLoader(samples, batch_size=task.batch_size, sampler=Order(len(samples), seed), **_options())


def _options() -> dict[str, Any]:
    """A generator of its own, because a DataLoader without one draws from torch's global generator
    at the start of each epoch, and dropout would no longer depend on (seed, worker, step) alone."""
    return {"collate_fn": _as_it_is, "generator": torch.Generator()}


def _as_it_is(batch: Any) -> Any:
    return batch


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
class _Given(Sampler[list[int]]):
    """Batches that were decided before."""

    def __init__(self, batches: Iterable[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)


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


# Simulated workers


def simulated_batches(
    task: Task, shares: Shares, workers: int, worker: int, seed: int
) -> Iterator[tuple[Sequence[int], int]]:
    """What `batches_of` gives this worker: indices, and how many of them count."""
    if shares is not None:
        for chosen in batches(shares, worker, seed, task.batch_size):
            yield chosen, len(chosen)
    size = len(task.train())
    for epoch in itertools.count():
        yield from slices_of(order_of(size, seed, epoch), workers, worker, task.batch_size, drop_last=False)
