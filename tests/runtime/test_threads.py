"""Workers as threads of this process: the real world over letters alone, and the same bits."""

from __future__ import annotations

import pytest
import torch

from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.loop.loading import strategy_from
from fast.loop.serving import serve
from flood_bodies import flood
from preset_bodies import OPTIMUM, own_weights, simulation, train
from running import from_text
from table import DIFFERENT

STEPS = [20, 45, 30]


def run(call, steps):
    return run_threads(len(steps), lambda id: train(call, list(steps), len(set(steps)) == 1), serve)


@pytest.mark.parametrize("call", DIFFERENT)
def test_every_preset_trains_on_threads_as_on_processes(call):
    results = run(call, STEPS)
    assert [result["steps"] for result in results] == STEPS
    assert len({result["final"] for result in results}) == 1
    final = from_text(results[0]["final"], torch.float32)
    assert float((final - OPTIMUM).norm() / OPTIMUM.norm()) < 0.2
    if strategy_from(call).synchronous:
        simulated = simulation(strategy_from(call), STEPS)
        simulated.run()
        assert [result["settled"] for result in results] == own_weights(simulated)


def test_what_a_thread_raises_is_raised_here():
    def fail(id):
        if current_seat().id == 1:
            raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        run_threads(3, fail, serve)


# Leaving while nobody reads


def test_workers_that_leave_at_the_same_time_make_room_for_each_other():
    assert run_threads(2, lambda id: flood([1, 1], False), serve) == [[(1, 10)], [(0, 10)]]


@pytest.mark.real
@pytest.mark.parametrize("workers", [2, 3])
def test_processes_that_leave_at_the_same_time_make_room_for_each_other(workers, runner):
    results = runner.results("flood_bodies:flood", workers, steps=[2] * workers, mean=False)
    assert results == [[[peer, 20] for peer in range(workers) if peer != me] for me in range(workers)]


@pytest.mark.real
def test_a_worker_can_leave_while_the_others_wait_for_it_in_a_mean(runner):
    """Its last letters need room at peers who are inside a collective; so they must read meanwhile."""
    results = runner.results("flood_bodies:flood", 3, steps=[1, 3, 3], mean=True)
    assert [[0, 10] in found for found in results] == [False, True, True]
