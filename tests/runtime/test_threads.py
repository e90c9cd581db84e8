"""Workers as threads of this process: the real world over letters alone, and the same bits."""

from __future__ import annotations

import pytest
import torch

from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.loop.loading import strategy_from
from fast.loop.serving import serve
from preset_bodies import OPTIMUM, own_weights, simulation, train
from running import from_text
from table import CALLS

STEPS = [20, 45, 30]


def run(call, steps):
    return run_threads(len(steps), lambda id: train(call, list(steps), len(set(steps)) == 1), serve)


@pytest.mark.parametrize("call", CALLS)
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
