"""Which samples a worker trains on: every one accounted for, whoever asks."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loop_bodies import Counting
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    TensorDataset,
)

import fast
from fast.engine import Seat, seated
from fast.errors import UsageError
from fast.loop.data import samples_in, slices_of
from fast.loop.session import Session

SIZES = {"n": st.integers(0, 60), "workers": st.integers(1, 6), "size": st.integers(1, 7)}


def seat_of(worker: int, workers: int, seed: int = 0) -> Seat:
    """A seat with a joined session that only counts; nothing is connected."""
    session = Session(nn.Linear(1, 1), None, object())
    return Seat(worker, workers, lambda: None, lambda *_: None, print, seed, sessions=[session])


def epochs(make_loader, workers: int, count: int = 1, seed: int = 0):
    """Per worker, epoch and step: the batch as a list, and the samples that count for the step."""
    everybody = []
    for worker in range(workers):
        seat = seat_of(worker, workers, seed)
        with seated(seat):
            sharded = fast.shard(make_loader())
            everybody.append(
                [
                    [(batch[0].tolist(), seat.sessions[0].take_samples()) for batch in sharded]
                    for _ in range(count)
                ]
            )
    return everybody


def numbers(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n))


# The slices


@given(**SIZES, drop_last=st.booleans())
def test_a_pass_is_a_partition_in_steps_that_all_workers_share(n, workers, size, drop_last):
    order = [7 * k + 1 for k in range(n)]
    parts = [slices_of(order, workers, w, size, drop_last=drop_last) for w in range(workers)]
    whole = workers * size
    steps = n // whole if drop_last else -(-n // whole)
    assert [len(part) for part in parts] == [steps] * workers
    counted = []
    for step in range(steps):
        group = [part[step] for part in parts]
        assert all(seen and 0 <= counts <= len(seen) <= size for seen, counts in group)
        assert all(counts in (0, len(seen)) for seen, counts in group)
        taken = [index for seen, counts in group for index in seen[:counts]]
        assert taken == order[step * whole : (step + 1) * whole], "worker i takes the i-th slice"
        assert max(c for _, c in group) - min(c for _, c in group) <= 1
        counted += taken
    assert counted == (order[: steps * whole] if drop_last else order)


# fast.shard on a DataLoader


@given(**SIZES, drop_last=st.booleans(), seed=st.integers(0, 3))
def test_shard_divides_a_shuffled_loader_and_weights_every_step(n, workers, size, drop_last, seed):
    if n == 0:
        return  # torch's own sampler refuses an empty data set

    def loader():
        return DataLoader(numbers(n), size, shuffle=True, drop_last=drop_last)

    if workers == 1:
        return
    per_worker = epochs(loader, workers, 2, seed)
    orders = []
    for epoch in range(2):
        parts = [worker[epoch] for worker in per_worker]
        assert len({len(part) for part in parts}) == 1
        order = [i for step in zip(*parts, strict=True) for seen, c in step for i in seen[:c]]
        expected = n - n % (workers * size) if drop_last else n
        assert len(order) == len(set(order)) == expected
        orders.append(order)
    if len(orders[0]) > 12:
        assert orders[0] != orders[1], "the second epoch has the order of the first"
        assert orders[0] != sorted(orders[0]), "nothing was shuffled"


def test_the_order_depends_on_seed_and_epoch_only():
    def loader():
        torch.manual_seed(int(torch.randint(1000, ())))  # whatever the script did before
        return DataLoader(numbers(40), 5, shuffle=True)

    def order(seed):
        return [
            [i for step in zip(*(w[epoch] for w in found), strict=True) for seen, c in step for i in seen[:c]]
            for found in [epochs(loader, 2, 3, seed)]
            for epoch in range(3)
        ]

    assert order(1) == order(1) != order(2)
    assert len({tuple(epoch) for epoch in order(1)}) == 3


def test_shard_leaves_the_global_generator_alone():
    seat = seat_of(1, 3)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    with seated(seat):
        for _ in fast.shard(DataLoader(numbers(9), 2, shuffle=True)):
            pass
        for _ in fast.shard([[1], [2], [3]]):
            pass
    assert torch.equal(torch.rand(3), expected)


def test_an_own_generator_of_the_loader_gives_every_worker_the_same_order():
    def loader():
        generator = torch.Generator()
        generator.seed()  # another one on each worker
        return DataLoader(numbers(30), 5, shuffle=True, generator=generator)

    per_worker = epochs(loader, 3)
    seen = [i for worker in per_worker for batch, _ in worker[0] for i in batch]
    assert sorted(seen) == list(range(30))


def test_two_loaders_count_their_epochs_apart():
    with seated(seat_of(0, 2)):
        one, other = (DataLoader(numbers(20), 2, shuffle=True) for _ in range(2))
        first = [batch[0].tolist() for batch in fast.shard(one)]
        assert [batch[0].tolist() for batch in fast.shard(other)] == first
        assert [batch[0].tolist() for batch in fast.shard(one)] != first


def test_a_plain_batch_sampler_is_cut_by_samples_too():
    def loader():
        return DataLoader(numbers(20), batch_sampler=BatchSampler(RandomSampler(range(20)), 3, True))

    per_worker = epochs(loader, 2)
    assert [[len(seen) for seen, _ in worker[0]] for worker in per_worker] == [[3, 3, 3]] * 2
    seen = [i for worker in per_worker for batch, _ in worker[0] for i in batch]
    assert len(set(seen)) == 18
    assert seen[:9] != sorted(seen[:9]), "the sampler's order was lost"
    with seated(seat_of(0, 2)):
        assert len(fast.shard(loader())) == 3


def test_length_is_the_number_of_steps():
    for n, drop_last in [(20, False), (20, True), (24, False), (24, True), (2, False)]:
        with seated(seat_of(2, 3)):
            sharded = fast.shard(DataLoader(numbers(n), 4, drop_last=drop_last))
            assert len(sharded) == len(list(sharded)) == (n // 12 if drop_last else -(-n // 12))


def test_alone_the_loader_is_given_back_untouched():
    loader = DataLoader(numbers(5), 2)
    with seated(Seat(0, 1, lambda: None, lambda *_: None, print)):
        assert fast.shard(loader) is loader


def test_a_loader_that_divides_itself_is_refused():
    data = numbers(8)
    loader = DataLoader(data, 2, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    with seated(seat_of(0, 2)), pytest.raises(UsageError, match=r"DistributedSampler.*fast\.own"):
        fast.shard(loader)


# Other iterables


def test_batches_of_any_iterable_are_dealt_out_in_turn():
    batches = [torch.full((n + 1,), n) for n in range(7)]
    seen = []
    for worker in range(3):
        seat = seat_of(worker, 3)
        with seated(seat):
            sharded = fast.shard(batches)
            assert len(sharded) == 3
            seen.append([(int(b[0]), seat.sessions[0].take_samples()) for b in sharded])
    # the last group has one batch: the others see it again, with weight zero
    assert seen == [[(0, 1), (3, 4), (6, 7)], [(1, 2), (4, 5), (6, 0)], [(2, 3), (5, 6), (6, 0)]]


class Eager:
    def __iter__(self):
        return iter(torch.randperm(12).split(2))


class Lazy:
    """Draws its order when the first batch is asked for, and goes on drawing."""

    def __iter__(self):
        left = set(range(12))
        while left:
            chosen = sorted(left)[int(torch.randint(len(left), ()))]
            left.remove(chosen)
            yield torch.tensor([chosen])


class OwnBatches(Sampler):
    """A batch sampler of the user's own, which shuffles."""

    def __init__(self, data):
        self._inner = BatchSampler(RandomSampler(data), 2, False)

    def __iter__(self):
        yield from self._inner


@pytest.mark.parametrize(
    "make",
    [Eager, Lazy, lambda: DataLoader(range(12), batch_sampler=OwnBatches(range(12)))],
    ids=["eager", "lazy", "batch sampler"],
)
def test_an_iterable_that_shuffles_itself_has_one_order_for_all(make):
    seen, orders = Counter(), []
    for worker in range(3):
        torch.manual_seed(worker)  # as different as after fast.join
        with seated(seat_of(worker, 3)):
            loader = make()
            for _ in range(2):
                orders.append([batch.tolist() for batch in fast.shard(loader)])
                seen.update(i for batch in orders[-1] for i in batch)
                torch.rand(worker)
    assert seen == Counter(dict.fromkeys(range(12), 2))
    assert orders[0] != orders[1]


@pytest.mark.real
def test_loaders_of_all_kinds_on_real_workers(runner):
    found = runner.results("loop_bodies:shard_kinds", 2)
    a, b = (worker["worker processes"] for worker in found)
    assert [len(x) + len(y) for x, y in zip(a, b, strict=True)] == [6, 6, 6, 2]
    assert sorted(i for part in (*a, *b) for i in part) == list(range(20))
    for kind in ("batch sampler", "list"):
        assert [worker[kind] for worker in found] == [
            [[0, 1], [4, 5], [8, 9], [12, 13]],
            [[2, 3], [6, 7], [10, 11], [12, 13]],
        ]
    assert [worker["iterable data set"] for worker in found] == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [8, 9]],
    ]


def test_an_iterable_data_set_is_dealt_out_by_batches():
    per_worker = []
    for worker in range(2):
        with seated(seat_of(worker, 2)):
            per_worker.append([batch.tolist() for batch in fast.shard(DataLoader(Counting(), 3))])
    assert per_worker == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9]]]


# fast.own and counting


def test_own_gives_everything_and_counts_its_samples():
    seat = seat_of(1, 3)
    batches = [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(1, 2), torch.zeros(1))]
    with seated(seat):
        owned = fast.own(batches)
        assert len(owned) == 2
        counts = [seat.sessions[0].take_samples() for _ in owned]
    assert counts == [3, 1]


def test_samples_of_several_batches_add_up_until_the_step():
    seat = seat_of(0, 2)
    with seated(seat):
        for _ in fast.own([torch.zeros(3), torch.zeros(4)]):
            pass
    assert seat.sessions[0].take_samples() == 7
    assert seat.sessions[0].take_samples() == 1, "a step without shard or own weighs as one"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(4, 2), 4),
        (torch.zeros(()), 1),
        ((torch.zeros(3), torch.zeros(9)), 3),
        ([torch.zeros(2)], 2),
        ({"x": torch.zeros(5), "y": None}, 5),
        ({}, 0),
        ([], 0),
        ("text", 1),
        (range(6), 6),
        pytest.param(object(), 1, id="something else-1"),
    ],
    ids=repr,
)
def test_the_number_of_samples_in_a_batch(batch, samples):
    assert samples_in(batch) == samples
