"""`fast.shard` and `fast.own`: which samples a worker trains on, every one accounted for.

`shard`: the global order is the same on all workers. A loader with a generator has the order that it
would have in one plain process (`orders.py`); any other one's comes from (seed, epoch). Of each global
P * b samples worker i takes the i-th slice of b. A short last step is divided as evenly as it
goes and weighted by its samples. If it has fewer samples than there are workers, the workers left
over see one of its samples again, with weight zero: they take part and add nothing. With `finish` a
pass is over for everybody as soon as that part of it has been trained on by all together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from fast.core.seeds import stream_seed
from fast.engine import Seat, current_seat
from fast.errors import UsageError
from fast.loop.passes import begin_pass, check_finish

_END = object()
Slice = tuple[list[int], int]
"""The indices that a worker sees in one step, and how many of them count."""


def shard(loader: Iterable[Any], *, finish: float = 1.0) -> Iterable[Any]:
    """This worker's part of the data, to iterate over once per epoch.

    A DataLoader is cut by samples: of each P b of its order (P workers with batches of b) worker i takes the
    i-th b. If the loader has a generator, its order is that of one process with this generator and batches of
    P b, epoch by epoch; worker 0's generator decides. If not, the order follows from the run's seed
    (`fast run --seed`) and the epoch. Any other iterable is cut by batches, of which worker i takes the i-th
    of each P. An order that it draws from torch's generator is the same on all workers; if it is
    drawn elsewhere, the script must seed it. With one worker it is all of the loader.

    With `finish=0.75` an epoch ends for every worker as soon as all of them together have trained on three
    quarters of it: nobody waits for the slowest, which leaves the rest of its part out. Whose own part is
    used up earlier just goes on with its next epoch. For asynchronous strategies only.
    """
    seat, finish = current_seat(), check_finish(finish)
    if seat.workers == 1 and not any(session.runtime for session in seat.sessions):
        return loader if seat.logbook is None else _OwnBatches(loader, seat)
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler):
        raise UsageError(
            "the loader has a DistributedSampler, which already divides the data. "
            "Drop the sampler, or use fast.own(loader)."
        )
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        sampler = loader.batch_sampler  # also the one that a loader makes of its batch_size
        if type(sampler) is BatchSampler:
            return _ShardedLoader(loader, sampler, seat, finish)
    return _ShardedBatches(loader, seat, finish)


def own(loader: Iterable[Any]) -> Iterable[Any]:
    """Data that stays with its worker. Sizes may differ: contributions are weighted by samples."""
    return _OwnBatches(loader, current_seat())


class _OwnBatches:
    def __init__(self, loader: Iterable[Any], seat: Seat) -> None:
        self._loader, self._seat = loader, seat

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            _count(self._seat, samples_in(batch), divided=False)
            yield batch


class _ShardedLoader:
    """A DataLoader cut by samples."""

    def __init__(self, loader: DataLoader[Any], sampler: BatchSampler, seat: Seat, finish: float) -> None:
        self._loader, self._sampler, self._seat, self._finish = loader, sampler, seat, finish

    def __len__(self) -> int:
        samples = len(self._sampler.sampler)  # type: ignore[arg-type]
        whole = self._seat.workers * self._sampler.batch_size
        return samples // whole if self._sampler.drop_last else ceil(samples / whole)

    def __iter__(self) -> Iterator[Any]:
        loader, sampler, seat = self._loader, self._sampler, self._seat
        epoch = next_epoch(seat, loader)
        order = global_order(loader, sampler.sampler, seat, epoch)
        slices = slices_of(order, seat.workers, seat.id, sampler.batch_size, drop_last=sampler.drop_last)
        options = _options(loader)
        # A DataLoader draws its workers' seed here, which must be another one on each worker of ours.
        seed = _seed(seat) if loader.generator is None else loader.generator.initial_seed()
        options["generator"] = torch.Generator().manual_seed(stream_seed(seed, "loader", seat.id, epoch))
        batches = DataLoader(loader.dataset, batch_sampler=_Fixed([s[0] for s in slices]), **options)
        whole = seat.workers * sampler.batch_size
        total = len(order) - (len(order) % whole if sampler.drop_last else 0)
        this = begin_pass(seat, loader.dataset, epoch, self._finish, lambda: total)
        rest = 0 if sampler.drop_last else len(order) % whole
        _remark(seat, loader.dataset, (len(loader), len(self)), rest, sampler.batch_size)
        for batch, (indices, counts) in zip(batches, slices, strict=True):
            if not this.goes_on():
                return
            _count(seat, counts, indices)
            yield batch
            this.add(counts)


class _ShardedBatches:
    """Anything else that gives batches: worker i takes the i-th of each P."""

    def __init__(self, loader: Iterable[Any], seat: Seat, finish: float) -> None:
        self._loader, self._seat, self._finish = loader, seat, finish

    def __len__(self) -> int:
        return ceil(self._batches() / self._seat.workers)

    def _batches(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        seat, epoch = self._seat, next_epoch(self._seat, self._loader)
        stream = _Stream(stream_seed(_seed(seat), "order", epoch))
        this = begin_pass(seat, _data_of(self._loader), epoch, self._finish, self._known_batches)
        group: list[Any] = []
        for batch in stream.through(self._loader):
            group.append(batch)
            if len(group) == seat.workers:
                if not this.goes_on():
                    return
                _count(seat, samples_in(group[seat.id]))
                yield group[seat.id]
                this.add(1)
                group = []
        if group and this.goes_on():
            counts = seat.id < len(group)
            batch = group[seat.id] if counts else group[-1]
            _count(seat, samples_in(batch) if counts else 0)
            yield batch
            this.add(int(counts))

    def _known_batches(self) -> int:
        if not isinstance(self._loader, Sized):
            raise UsageError(
                f"fast.shard(finish={self._finish:g}) needs to know how many batches an epoch has, and "
                f"{type(self._loader).__name__} doesn't say: give it a __len__."
            )
        return self._batches()


class _Fixed(Sampler[list[int]]):
    """Batches that were decided before."""

    def __init__(self, batches: Sequence[list[int]]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)


def slices_of(order: Sequence[int], workers: int, worker: int, size: int, *, drop_last: bool) -> list[Slice]:
    """What one worker sees of a global order, step by step."""
    steps: list[Slice] = []
    for start in range(0, len(order), workers * size):
        held = min(len(order) - start, workers * size)
        if drop_last and held < workers * size:
            break
        first, last = held * worker // workers, held * (worker + 1) // workers
        mine = list(order[start + first : start + last])
        steps.append((mine, len(mine)) if mine else (list(order[start : start + 1]), 0))
    return steps


def global_order(loader: DataLoader[Any], sampler: Iterable[int], seat: Seat, epoch: int) -> list[int]:
    """The sampler's order for this epoch, the same on every worker."""
    seed = stream_seed(_seed(seat), "order", epoch)
    generator = getattr(sampler, "generator", None)
    orders = next((session.orders for session in seat.sessions if session.orders is not None), None)
    if generator is None:
        with _Stream(seed):
            return list(sampler)
    if orders is None:  # nobody to agree with before `join`
        return _seeded_order(sampler, generator, seed)
    data: Sized = loader.dataset  # type: ignore[assignment]
    with orders.drawing(generator, data, len(data)), _Stream(seed):
        if generator is loader.generator and not (loader.persistent_workers and epoch):
            torch.empty((), dtype=torch.int64).random_(generator=generator)  # as a DataLoader does first
        return list(sampler)


def _seeded_order(sampler: Iterable[int], generator: torch.Generator, seed: int) -> list[int]:
    """With the generator at this seed; afterwards it is where it was."""
    before = generator.get_state()
    try:
        generator.manual_seed(seed)
        with _Stream(seed):
            return list(sampler)
    finally:
        generator.set_state(before)


def next_epoch(seat: Seat, loader: object) -> int:
    """How often this loader's data has been gone through before; counts this time."""
    data = _data_of(loader)
    _, epoch = seat.epochs.get(id(data), (data, 0))
    seat.epochs[id(data)] = (data, epoch + 1)
    return epoch


def _data_of(loader: object) -> object:
    """What is known by its identity: a loader may be made anew for each epoch."""
    return loader.dataset if isinstance(loader, DataLoader) else loader


def samples_in(batch: Any) -> int:
    """The length of the first tensor (or list) in a batch."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict):
        return samples_in(next(iter(batch.values()))) if batch else 0
    if isinstance(batch, tuple | list):
        return samples_in(batch[0]) if batch else 0
    return len(batch) if hasattr(batch, "__len__") and not isinstance(batch, str) else 1


class _Stream:
    """Random numbers of its own: inside, torch's generator is this stream, outside it is untouched."""

    def __init__(self, seed: int) -> None:
        self._inside = torch.Generator().manual_seed(seed).get_state()
        self._outside = self._inside

    def __enter__(self) -> None:
        self._outside = torch.get_rng_state()
        torch.set_rng_state(self._inside)

    def __exit__(self, *_: object) -> None:
        self._inside = torch.get_rng_state()
        torch.set_rng_state(self._outside)

    def through(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Go through a loader; whatever it draws on the way, it draws from here."""
        with self:
            batches = iter(loader)
        while True:
            with self:
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch


def _count(seat: Seat, samples: int, indices: Sequence[int] | None = None, *, divided: bool = True) -> None:
    """For the next step. What is looked at without gradients (an evaluation) is not trained on."""
    if not torch.is_grad_enabled():
        return
    if seat.journal is not None and indices is not None:
        seat.journal.sampled(indices)
    for session in seat.sessions:
        session.count(samples, divided=divided)


def _remark(seat: Seat, data: object, lengths: tuple[int, int], rest: int, batch: int) -> None:
    """What there is to say when a pass of the training begins."""
    if torch.is_grad_enabled():
        for session in seat.sessions:
            if session.remarks is not None:
                session.remarks.pass_begins(data, lengths, rest, batch)


def _seed(seat: Seat) -> int:
    return seat.seed or 0


def _options(loader: DataLoader[Any]) -> dict[str, Any]:
    """How the user's loader loads, without what to load."""
    options: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
    }
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
    return options
