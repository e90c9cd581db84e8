"""An epoch that ends for everybody as soon as a part of it is done by all together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fast
from fast.engine import Seat, seated
from fast.errors import UsageError
from fast.loop.session import Session
from fast.strategies.presets import allreduce, project_adam
from fast.transport import MemoryHub, MemoryTransport
from running import Runner

UNDER_WAY, OVER = "under way", "over"


class Crowd:
    """Workers of one process whose loops are led by hand: one batch of one worker at a time."""

    def __init__(self, workers: int, make_loader, finish: float, strategy=None) -> None:
        hub = MemoryHub(workers)
        self.seats = []
        for worker in range(workers):
            runtime = SimpleNamespace(
                transport=MemoryTransport(worker, hub), strategy=strategy or project_adam()
            )
            session = Session(nn.Linear(1, 1), None, runtime)
            self.seats.append(
                Seat(worker, workers, lambda: None, lambda *_: None, print, 0, sessions=[session])
            )
        self.loaders = [make_loader() for _ in range(workers)]
        self.finish = finish
        self.loops = [None] * workers
        self.passes = [[] for _ in range(workers)]
        """By worker and pass: the batches it has taken."""

    def go_on(self, worker: int) -> str:
        """Let a worker train on its batch and ask for the next one; begins a pass if it is in none."""
        with seated(self.seats[worker]):
            if self.loops[worker] is None:
                self.loops[worker] = iter(fast.shard(self.loaders[worker], finish=self.finish))
                self.passes[worker].append([])
            batch = next(self.loops[worker], None)
        if batch is None:
            self.loops[worker] = None
            return OVER
        self.passes[worker][-1].append(batch[0].tolist())
        return UNDER_WAY

    def taken(self, number: int) -> list[list[int]]:
        return [batch for own in self.passes if len(own) > number for batch in own[number]]


def numbers(n: int, size: int, **options):
    return lambda: DataLoader(TensorDataset(torch.arange(n)), batch_size=size, **options)


schedules = st.lists(st.integers(0, 2), min_size=30, max_size=120)


@given(
    schedules, st.integers(0, 50), st.integers(1, 4), st.sampled_from([0.1, 0.5, 0.75, 0.9]), st.booleans()
)
def test_a_pass_ends_when_so_much_is_done(schedule, n, size, finish, drop_last):
    """Against books kept by hand: whoever asks goes on if and only if less than that is done and it has data left."""
    crowd = Crowd(3, numbers(n, size, drop_last=drop_last), finish)
    steps = n // (3 * size) if drop_last else -(-n // (3 * size))
    total = min(n, steps * 3 * size)
    done, number, holds = {}, [-1, -1, -1], [None, None, None]
    for worker in schedule:
        if crowd.loops[worker] is None:
            number[worker] += 1
        elif holds[worker] is not None:
            done[number[worker]] = done.get(number[worker], 0) + holds[worker]
        left = steps - len(crowd.passes[worker][-1]) if crowd.loops[worker] is not None else steps
        expected = UNDER_WAY if left and done.get(number[worker], 0) < finish * total else OVER
        assert crowd.go_on(worker) == expected
        if expected == UNDER_WAY:
            step = len(crowd.passes[worker][-1]) - 1
            held = min(n - step * 3 * size, 3 * size)
            holds[worker] = held * (worker + 1) // 3 - held * worker // 3
    for each in range(max(number) + 1):
        taken = [sample for batch in crowd.taken(each) for sample in batch]
        assert len(set(taken)) >= len(taken) - 2, "no sample twice, but for those that count for nothing"


def test_the_slowest_leaves_its_rest_out_and_nobody_waits():
    crowd = Crowd(4, numbers(80, 2), 0.75)
    for worker in range(3):
        while crowd.go_on(worker) == UNDER_WAY:
            pass
    assert len(crowd.taken(0)) == 30, "three quarters of forty batches, without the fourth worker"
    assert crowd.go_on(3) == OVER, "its first pass was over before it began"
    assert crowd.passes[3] == [[]]


def test_all_of_it_is_all_of_it():
    crowd = Crowd(3, numbers(33, 2), 1.0)
    for worker in range(3):
        while crowd.go_on(worker) == UNDER_WAY:
            pass
    assert sorted(sample for batch in crowd.taken(0) for sample in batch) == list(range(33))


def test_passes_are_told_apart_also_when_a_loader_is_made_anew():
    """Somebody who is passes ahead has done its part of the first one, and no more."""
    data = TensorDataset(torch.arange(12))
    crowd = Crowd(3, lambda: DataLoader(data, batch_size=1), 0.75)
    for _ in range(70):  # alone it can't end a pass for the others: a third of it is its own part
        while crowd.go_on(0) == UNDER_WAY:
            pass
        crowd.loaders[0] = DataLoader(data, batch_size=1)
    assert {len(own) for own in crowd.passes[0]} == {4}
    assert crowd.go_on(1) == OVER, "who is 64 passes behind has nothing to look for there"
    crowd = Crowd(3, lambda: DataLoader(data, batch_size=1), 0.75)
    for _ in range(5):
        while crowd.go_on(0) == UNDER_WAY:
            pass
    while crowd.go_on(1) == UNDER_WAY:
        pass
    assert len(crowd.passes[1][0]) == 4
    assert [crowd.go_on(2), crowd.go_on(2)] == [UNDER_WAY, OVER], "4 + 4 of 12, and one makes 9"


def test_books_are_used_again_after_many_passes():
    """Neither one's own old numbers count, nor those of somebody who is that many passes behind."""
    crowd = Crowd(3, numbers(12, 1), 0.5)
    for _ in range(4):
        crowd.go_on(1)
    for _ in range(200):
        while crowd.go_on(0) == UNDER_WAY:
            pass
    lengths = [len(own) for own in crowd.passes[0]]
    assert lengths[0] == 3, "three of its own and three of the other make six"
    assert set(lengths[1:]) == {4}


class Batches:
    """No DataLoader: batches that know how many they are, or don't."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self):
        yield from ([torch.tensor([number])] for number in range(self.count))


class Counted(Batches):
    def __len__(self) -> int:
        return self.count


def test_batches_of_any_kind_are_counted():
    crowd = Crowd(2, lambda: Counted(20), 0.5)
    while crowd.go_on(0) == UNDER_WAY:
        pass
    assert len(crowd.passes[0][0]) == 10 and crowd.go_on(1) == OVER
    with pytest.raises(UsageError, match="how many batches an epoch has"):
        Crowd(2, lambda: Batches(20), 0.5).go_on(0)


def test_without_gradients_everything_is_looked_at():
    crowd = Crowd(2, numbers(20, 1), 0.5)
    with torch.no_grad():
        while crowd.go_on(0) == UNDER_WAY:
            pass
    assert len(crowd.passes[0][0]) == 10


def test_what_makes_no_sense_is_refused():
    for wrong in (0, -1, 1.5, True, "0.5"):
        with pytest.raises(UsageError, match="the part of an epoch"):
            fast.shard([], finish=wrong)
    with pytest.raises(UsageError, match="go in lock-step"):
        Crowd(2, numbers(20, 1), 0.5, allreduce()).go_on(0)
    crowd = Crowd(2, numbers(20, 1), 0.5)
    crowd.seats[0].sessions.clear()
    with pytest.raises(UsageError, match=r"call fast\.join before the loop"):
        crowd.go_on(0)


class Remembering:
    """A journal that gives its own answers, as a replay does, and keeps what it was asked."""

    def __init__(self, answers) -> None:
        self.answers, self.asked = list(answers), []

    def goes_on(self, more: bool) -> bool:
        self.asked.append(more)
        return self.answers.pop(0)

    def sampled(self, indices) -> None:
        """Nobody asks for them here."""


def test_where_a_pass_ends_comes_from_the_record():
    crowd = Crowd(2, numbers(20, 1), 0.5)
    crowd.seats[0].journal = journal = Remembering([True] * 10)
    crowd.seats[1].journal = Remembering([True, True, False])
    while crowd.go_on(0) == UNDER_WAY:
        pass
    assert journal.asked == [True] * 10
    while crowd.go_on(1) == UNDER_WAY:
        pass
    assert crowd.seats[1].journal.asked == [False] * 3, "by itself it would have had an empty pass"
    assert [len(own[0]) for own in crowd.passes] == [10, 2]


def test_with_one_worker_it_is_the_loader_itself():
    seat = Seat(0, 1, lambda: None, lambda *_: None, print, 0)
    loader = numbers(7, 2)()
    with seated(seat):
        assert fast.shard(loader, finish=0.5) is loader


@pytest.mark.real
def test_on_real_workers_the_slowest_holds_nobody_back(runner: Runner):
    """Worker 2 stays in its first step until the others have ended their first pass."""
    results = runner.results("loop_bodies:finish_early", 3, samples=30, finish=0.6, epochs=3)
    first = [result["steps"][0] for result in results]
    assert first[2] == 1 and 18 <= first[0] + first[1] <= 20
    for later in (1, 2):
        steps = [result["steps"][later] for result in results]
        assert 18 <= sum(steps) <= 18 + 3 and max(steps) <= 10
    assert len({result["final"] for result in results}) == 1
