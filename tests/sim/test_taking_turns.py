"""Topologies whose links take turns, memory that is read while it is written, and what can't be saved."""

import pytest
import torch

from fast.core import Strategy
from fast.errors import UsageError
from fast.parts import Channels
from fast.parts.topology import Rotating
from fast.sim import Compute, Network
from fast.strategies.presets import dpsgd

from .problem import LeastSquares

PROBLEM = LeastSquares()
SIZE = 6
ONE_AT_A_TIME = Rotating([Channels([(place, place + 1)]) for place in reversed(range(SIZE - 1))])
"""In the order in which news from place 0 travels most slowly."""


def test_all_change_their_view_at_the_same_step_although_few_hear_of_it_at_a_time():
    """With one channel per round those who don't hear the slow one for a while run ahead of it by more than
    P steps; they must not have changed their view by then, or others wait for them in vain."""
    views = {}
    batches = PROBLEM.batches(SIZE, [4, 90, 90, 90, 90, 90], size=1)
    simulation = PROBLEM.simulation(
        dpsgd(topology=ONE_AT_A_TIME), batches, compute=Compute(0.001, workers_s={0: 1.0}),
    )  # fmt: skip
    simulation.run(on_step=lambda me, now: views.setdefault(me.steps, set()).add(me.view.workers))
    assert {len(seen) for seen in views.values()} == {1}
    assert views[4] == {tuple(range(SIZE))} and views[80] == {tuple(range(1, SIZE))}


class Peeking(Strategy):
    """Worker 0 reads what worker 1 goes on writing."""

    racy = True

    def state(self, me):
        return {"seen": [], "window": None}

    async def begin(self, me):
        if me.steps == 0:
            me.state["window"] = me.publish("x", torch.zeros(800))

    async def step(self, me):
        me.state["window"].fill_(float(me.steps + 1))
        if me.id == 0:
            me.state["seen"].append((await me.read(1, "x")).unique().tolist())


def test_a_read_may_be_torn_by_a_write():
    """It takes 3.2 ms to travel and the writer writes every millisecond."""
    simulation = PROBLEM.simulation(
        Peeking(), PROBLEM.batches(2, [4, 40]), network=Network(1e6, 0.0), compute=Compute(0.001)
    )
    simulation.run()
    seen = simulation.me(0).state["seen"]
    assert any(len(values) > 1 for values in seen), "whoever reads slice by slice sees several steps"
    assert all(values == sorted(values) for values in seen)


def test_a_racy_strategy_can_not_be_saved():
    simulation = PROBLEM.simulation(Peeking(), PROBLEM.batches(2, 4))
    simulation.run(pause_after=2)
    with pytest.raises(UsageError, match="no checkpoint can be taken"):
        simulation.checkpoint()
