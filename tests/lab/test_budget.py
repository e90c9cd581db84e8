"""The budget's arithmetic against plain counting, and the data of both worlds against each other."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fast
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.errors import UsageError
from fast.lab import Budget, load_task
from fast.lab.data import batches_of, loader_of, order_of, simulated_batches
from fast.lab.splits import parse_split
from fast.loop.data import slices_of

OWN = f"{Path(__file__).parent / 'problems.py'}:Dropout"
small = st.integers(1, 60)


@given(epoch=small, workers=st.integers(1, 7), size=st.integers(1, 9), samples=st.integers(1, 200))
def test_steps_in_lock_step_are_the_fewest_that_use_up_the_budget(
    epoch: int, workers: int, size: int, samples: int
) -> None:
    budget = Budget(samples, epoch, workers * size)
    per_step = [
        sum(
            slices_of(range(epoch), workers, worker, size, drop_last=False)[step][1]
            for worker in range(workers)
        )
        for step in range(len(slices_of(range(epoch), workers, 0, size, drop_last=False)))
    ]
    total, steps = 0, 0
    while total < samples:
        total += per_step[steps % len(per_step)]
        steps += 1
        assert budget.samples_after(steps) == total
    assert budget.steps == steps


@given(samples=st.integers(1, 300), seen=st.integers(0, 400))
def test_a_tick_has_passed_when_its_share_of_the_samples_has_been_seen(samples: int, seen: int) -> None:
    passed = sum(1 for tick in range(1, 51) if seen * 50 >= tick * samples)
    budget = Budget(samples, 10, 10)
    assert budget.ticks_after(seen) == passed
    assert passed == 50 or budget.samples_at(passed + 1) > seen
    assert passed == 0 or budget.samples_at(passed) <= seen


@given(seconds=st.floats(0.01, 1e5), elapsed_ns=st.integers(0, 10**15))
def test_a_budget_of_time_counts_its_ticks_by_the_clock(seconds: float, elapsed_ns: int) -> None:
    budget = Budget(1, 10, 10, seconds=seconds)
    share = elapsed_ns / (seconds * 1e9)
    assert abs(budget.ticks_after(10**9, elapsed_ns) - min(50, share * 50)) <= 1
    assert budget.is_over(10**9, elapsed_ns) == (elapsed_ns >= seconds * 1e9)
    assert not budget.is_over(10**9, 0), "samples say nothing then"


@given(samples=st.integers(1, 500), workers=st.integers(1, 7), size=st.integers(1, 9))
def test_workers_with_data_of_their_own_never_take_a_short_step(
    samples: int, workers: int, size: int
) -> None:
    budget = Budget(samples, 13, workers * size, whole_steps=True)
    assert budget.samples_after(budget.steps) >= samples > budget.samples_after(budget.steps - 1)


def test_a_large_model_is_copied_less_often() -> None:
    task = load_task(OWN)
    assert Budget.of(task, 2, 1, weights_bytes=1 << 20).ticks == 50
    assert Budget.of(task, 2, 1, weights_bytes=64 << 20).ticks == 8
    assert Budget.of(task, 2, 1, weights_bytes=1 << 20, ticks=7).ticks == 7
    assert Budget.of(task, 2, 1, weights_bytes=1 << 40).ticks == 1


@pytest.mark.parametrize("options", [{"seconds": 0}, {"seconds": float("nan")}, {"ticks": 0}])
def test_budgets_that_cant_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"seconds can't be trained|at least 1"):
        Budget.of(load_task(OWN), 2, 1.0, **options)


@pytest.mark.parametrize("epochs", [0, -1, float("nan"), float("inf")])
def test_epochs_that_cant_be_trained_are_refused(epochs: float) -> None:
    with pytest.raises(UsageError, match="epochs can't be trained"):
        Budget.of(load_task(OWN), 2, epochs)


def test_an_epoch_has_every_sample_once_and_its_own_order() -> None:
    first, second = order_of(50, 0, 0), order_of(50, 0, 1)
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({first, second, order_of(50, 1, 0)}) == 3


@pytest.mark.parametrize("workers", [2, 3])
def test_shard_and_the_simulator_hand_out_the_same_samples(workers: int) -> None:
    """Two epochs; the batches are compared by value, and how many samples count by the session."""
    task = load_task(OWN)

    def body(worker: int) -> list[tuple[torch.Tensor, int]]:
        model = task.model()
        fast.join(model, task.optimizer(model))
        batches, session = fast.shard(loader_of(task, 5)), current_seat().sessions[-1]
        return [(batch[0], session.take_samples()) for _ in range(2) for batch in batches]

    seen = run_threads(workers, body, lambda strategy, number: None)
    for worker in range(workers):
        expected = islice(simulated_batches(task, None, workers, worker, 5), len(seen[worker]))
        for (rows, counted), (indices, counts) in zip(seen[worker], expected, strict=True):
            assert torch.equal(rows, task.batch(indices)[0])
            assert counted == counts
    assert sum(counted for mine in seen for _, counted in mine) == 2 * 110


@pytest.mark.parametrize("workers", [1, 3])
def test_own_and_the_simulator_hand_out_the_same_samples(workers: int) -> None:
    """Unequal shares: every batch is whole, and each worker sees its own samples only."""
    task = load_task(OWN)
    shares = parse_split("sizes(1)").assign(task, workers, 5)
    assert shares is not None

    def body(worker: int) -> list[tuple[torch.Tensor, int]]:
        model = task.model()
        fast.join(model, task.optimizer(model))
        session = current_seat().sessions[-1]
        return [
            (batch[0], session.take_samples()) for batch in islice(batches_of(task, shares, worker, 5), 12)
        ]

    seen = run_threads(workers, body, lambda strategy, number: None)
    for worker in range(workers):
        expected = islice(simulated_batches(task, shares, workers, worker, 5), 12)
        for (rows, counted), (indices, counts) in zip(seen[worker], expected, strict=True):
            assert torch.equal(rows, task.batch(indices)[0])
            assert counted == counts == len(rows) == 16
            assert set(indices) <= set(shares[worker])
