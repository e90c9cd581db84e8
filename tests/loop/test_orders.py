"""A loader with a generator: P workers together see what one plain process sees with batches P times as large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, nn
from torch.optim import SGD
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fast
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from running import Runner, as_text, from_text, parameters_of, plainly

SIZE, EPOCHS = 3, 4
Loader = DataLoader[Any]


def numbers(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n))


def seeded(seed: int = 5) -> Generator:
    return Generator().manual_seed(seed)


# Loaders, by their batch size; a plain process takes P times as much


def shuffled(size: int, n: int = 23, **options: Any) -> Loader:
    return DataLoader(numbers(n), size, shuffle=True, generator=seeded(), **options)


def drop_last(size: int) -> Loader:
    return shuffled(size, drop_last=True)


def without_a_rest(size: int) -> Loader:
    return shuffled(size, n=24)


def with_replacement(size: int) -> Loader:
    data = numbers(23)
    sampler = RandomSampler(data, replacement=True, num_samples=41, generator=seeded())
    return DataLoader(data, size, sampler=sampler)


def weighted(size: int) -> Loader:
    generator = seeded()  # of the loader too, as many scripts give it to both
    sampler = WeightedRandomSampler([1.0, 5.0, 2.0, 0.5] * 5, 29, generator=generator)
    return DataLoader(numbers(20), size, sampler=sampler, generator=generator)


def subset(size: int) -> Loader:
    return DataLoader(numbers(40), size, sampler=SubsetRandomSampler(range(5, 30), generator=seeded()))


def in_order(size: int) -> Loader:
    data = numbers(23)
    return DataLoader(data, size, sampler=SequentialSampler(data), generator=seeded())


def after_other_draws(size: int) -> Loader:
    """The generator has divided the data before."""
    generator = seeded()
    train, _ = torch.utils.data.random_split(numbers(40), [27, 13], generator=generator)
    return DataLoader(train, size, shuffle=True, generator=generator)


KINDS = [shuffled, drop_last, without_a_rest, with_replacement, weighted, subset, in_order, after_other_draws]


def passes(loader: Any) -> Iterator[list[int]]:
    for batch, *_ in loader:
        yield batch.tolist()


def plain(make: Callable[[int], Loader], workers: int, epochs: int = EPOCHS) -> list[list[list[int]]]:
    """What one process sees, epoch by epoch and step by step."""
    loader = make(workers * SIZE)
    return [list(passes(loader)) for _ in range(epochs)]


def together(workers: int, body: Callable[[int], Any], strategy: str = "allreduce") -> list[Any]:
    """Call it on joined workers."""

    def joined(worker: int) -> Any:
        torch.manual_seed(worker)  # what each of them draws elsewhere has no say
        model = nn.Linear(1, 1)
        fast.join(model, SGD(model.parameters(), lr=0.1), strategy)
        found = body(worker)
        close_sessions(current_seat())
        return found

    return run_threads(workers, joined, serve)


def counted(loader: Any) -> list[list[int]]:
    """A pass of one worker, without the samples that only fill a step."""
    session = current_seat().sessions[0]
    return [
        batch[: session.take_samples()] if session.runtime else batch for batch in passes(fast.shard(loader))
    ]


def merged(per_worker: list[list[list[list[int]]]]) -> list[list[list[int]]]:
    """Epoch by epoch and step by step: the workers' slices one behind the other."""
    return [
        [[sample for part in parts for sample in part] for parts in zip(*epoch, strict=True)]
        for epoch in zip(*per_worker, strict=True)
    ]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_workers_together_see_what_one_process_sees(make, workers):
    def body(worker: int) -> Any:
        loader = make(SIZE)
        return [counted(loader) for _ in range(EPOCHS)]

    assert merged(together(workers, body)) == plain(make, workers)


@pytest.mark.parametrize("strategy", ["allreduce", "gossip"])
def test_worker_0_decides_where_generators_differ(strategy):
    def body(worker: int) -> Any:
        loader = shuffled(SIZE)
        loader.generator.manual_seed(5 + worker)
        return [counted(loader) for _ in range(EPOCHS)]

    assert merged(together(3, body, strategy)) == plain(shuffled, 3)


def test_draws_of_one_worker_in_between_change_nothing():
    """An evaluation on worker 0 alone, whose loader shares the generator."""

    def body(worker: int) -> Any:
        loader, found = shuffled(SIZE), []
        for _ in range(EPOCHS):
            found.append(counted(loader))
            if worker == 0:
                list(DataLoader(numbers(4), 2, shuffle=True, generator=loader.generator))
        return found

    assert merged(together(3, body)) == plain(shuffled, 3)


def test_other_data_that_one_worker_goes_through_first_change_nothing():
    def body(worker: int) -> Any:
        if worker == 0:
            list(fast.shard(shuffled(SIZE, n=9)))
        loader = shuffled(SIZE)
        return [counted(loader) for _ in range(EPOCHS)]

    assert merged(together(2, body)) == plain(shuffled, 2)


def test_two_sets_of_data_that_look_alike():
    def body(worker: int) -> Any:
        one, other = shuffled(SIZE), shuffled(SIZE)
        other.generator.manual_seed(6 + worker)
        return [counted(loader) for _ in range(2) for loader in (one, other)]

    def plain_other(size: int) -> Loader:
        loader = shuffled(size)
        loader.generator.manual_seed(6)
        return loader

    found = merged(together(2, body))
    assert found[::2] == plain(shuffled, 2, 2) and found[1::2] == plain(plain_other, 2, 2)


@pytest.mark.parametrize("anew", [False, True], ids=["one loader", "a loader for each epoch"])
def test_a_generator_that_is_seeded_in_every_epoch(anew):
    def epochs(size: int, step: Callable[[Any], Any], worker: int = 0) -> Any:
        data, loader, found = numbers(23), None, []
        for epoch in (7, 8, 8, 7):
            if loader is None or anew:
                loader = DataLoader(data, size, shuffle=True, generator=Generator())
            loader.generator.manual_seed(epoch + 100 * worker)
            found.append(step(loader))
        return found

    found = merged(together(3, lambda worker: epochs(SIZE, counted, worker)))
    assert found == epochs(3 * SIZE, lambda loader: list(passes(loader)))
    assert found[1] == found[2] != found[0]


def test_a_pass_inside_a_snapshot_leaves_nothing_behind():
    def body(worker: int) -> Any:
        session, loader, found = current_seat().sessions[0], shuffled(SIZE), []
        for _ in range(EPOCHS):
            with session.orders.put_back():
                list(passes(fast.shard(loader)))
            found.append(counted(loader))
        return found

    assert merged(together(3, body)) == plain(shuffled, 3)


def test_a_snapshot_may_take_the_loader_that_is_trained_on():
    """With BatchNorm, so that the batches are really gone through."""

    def body(worker: int) -> Any:
        loader: Loader = DataLoader(images(), 4, shuffle=True, generator=seeded())
        model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()
        fast.join(model, SGD(model.parameters(), lr=0.1))
        found = []
        for epoch in range(3):
            found.append([x.tolist() for x, _ in fast.shard(loader)])
            if epoch == 1:
                fast.snapshot(model, batches=fast.shard(loader))
        close_sessions(current_seat())
        return found

    loader: Loader = DataLoader(images(), 8, shuffle=True, generator=seeded())
    assert merged(run_threads(2, body, serve)) == [[x.tolist() for x, _ in loader] for _ in range(3)]


def test_the_others_go_on_without_worker_0():
    """It leaves before it has gone through any data."""
    _, one, other = together(3, lambda worker: worker and counted(shuffled(SIZE)))
    expected = [step[SIZE:] for step in plain(shuffled, 3)[0]][:2]
    assert merged([[one], [other]])[0][:2] == expected


def test_before_join_the_seed_of_the_run_decides():
    def body(worker: int) -> Any:
        loader = shuffled(SIZE)
        loader.generator.manual_seed(worker)
        before = list(passes(fast.shard(loader)))
        assert torch.equal(loader.generator.get_state(), seeded(worker).get_state())
        return before

    found = merged([[each] for each in run_threads(2, body, serve)])[0]
    assert sorted(chain.from_iterable(found)) == list(range(23))


def test_worker_processes_of_a_loader_draw_apart():
    """Two workers that augment their samples alike would see less of the data."""

    def body(worker: int) -> Any:
        loader: Loader = DataLoader(Drawing(), SIZE, shuffle=True, num_workers=1, generator=seeded())
        return [batch.tolist() for batch in fast.shard(loader)]

    one, other = together(2, body)
    assert not set(chain.from_iterable(one)) & set(chain.from_iterable(other))


class Drawing(torch.utils.data.Dataset[float]):
    """Each sample is a random number."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return float(torch.rand(()))


# The same training


def images(n: int = 70) -> TensorDataset:
    x = torch.randn(n, 5, generator=seeded(1), dtype=torch.float64)
    return TensorDataset(x, (x.sum(1) > 0).long())


def train(size: int, **options: Any) -> torch.Tensor:
    """Three epochs of an ordinary script, in which the last step of each is short."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
    loader: Loader = DataLoader(images(), size, shuffle=True, generator=seeded(2), **options)
    fast.join(model, optimizer)
    for _ in range(3):
        for x, y in fast.shard(loader):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return parameters_of(fast.consolidate(model))


def trained_text(size: int) -> str:
    """On a real worker, whose processes load the data."""
    return as_text(train(size, num_workers=1))


@pytest.mark.real
@pytest.mark.parametrize("workers", [2, 3])
def test_allreduce_trains_what_one_process_trains(runner: Runner, workers: int) -> None:
    expected = plainly(lambda: train(4 * workers))
    found = [
        from_text(each, torch.float64) for each in runner.results("test_orders:trained_text", workers, size=4)
    ]
    for each in found:
        assert torch.equal(each, found[0])
        assert torch.allclose(each, expected, rtol=1e-10, atol=1e-12)
