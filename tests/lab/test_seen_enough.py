"""A simulated run that is ended at a tick has the ticks of a whole one, as far as it went."""

from __future__ import annotations

import pytest
import torch

from fast.lab import Budget, Run, load_task, simulate_task
from fast.lab.measures import Tick
from fast.lab.watching import Enough
from fast.loop.loading import strategy_from
from fast.sim import Compute, parse_network, parse_straggler

TASK = load_task("digits")


def simulated(call: str, workers: int, gradients: str, enough: Enough = lambda tick: False) -> Run:
    return simulate_task(
        TASK,
        strategy_from(call),
        workers=workers,
        budget=Budget.of(TASK, workers, 3, ticks=12),
        network=parse_network("10mbit,1ms"),
        compute=Compute(step_s=0.01, straggler=parse_straggler("3x@0.3")),
        gradients=gradients,
        enough=enough,
    )


@pytest.mark.parametrize("gradients", ["exact", "auto"])
@pytest.mark.parametrize(
    "call", ["allreduce", "local_sgd(tau=4)", "ssp(bound=2)", "downpour", "gossip", "ad_psgd"]
)
def test_the_ticks_before_the_end_are_those_of_a_whole_run(call: str, gradients: str) -> None:
    workers, seen = 16, list[Tick]()

    def fifth(tick: Tick) -> bool:
        seen.append(tick)
        return len(seen) == 5

    whole, ended = simulated(call, workers, gradients), simulated(call, workers, gradients, fifth)
    assert len(whole.ticks) == 12 and list(ended.ticks) == seen and len(seen) == 5
    for one, other in zip(whole.ticks, seen, strict=False):
        assert (one.at_s, one.samples, one.nbytes, one.distance) == (
            other.at_s,
            other.samples,
            other.nbytes,
            other.distance,
        )
        assert all(torch.equal(value, other.state[name]) for name, value in one.state.items())
    assert ended.duration_ns < whole.duration_ns
    assert sum(each.samples for each in ended.workers) < sum(each.samples for each in whole.workers)
