"""Links that are too slow for what is sent: letters that fold do so at their sender, and nothing piles up."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fast.rules import sum_
from fast.sim import Compute, Network
from fast.sim.checkers import Checkers
from fast.strategies.presets import gossip, torus
from fast.topologies import Full
from fast.trace import Dropped, Received

from .problem import LeastSquares, close, weights

PROBLEM = LeastSquares()
STEPS = 150
SLOW = Network(rate_bytes_per_s=2000.0, latency_s=0.001)
"""A letter takes about ten steps."""
FAR = Network(rate_bytes_per_s=1e9, latency_s=0.5)
"""Nobody is in anybody's way, but everything takes 25 steps."""


def run(strategy, network, observers=()):
    """Four workers; the most letters that were on their way at any time."""
    checkers, most = Checkers(strategy), [0]
    simulation = PROBLEM.simulation(
        strategy, PROBLEM.batches(4, STEPS), lr=0.002, network=network, compute=Compute(0.02),
        observers=[checkers, *observers],
    )  # fmt: skip
    checkers.attach(simulation)

    def look(simulation):
        checkers.after_event(simulation)
        most[0] = max(most[0], sum(1 for _ in simulation.on_the_way()))

    simulation.run(after_event=look)
    checkers.finish()
    return simulation, most[0]


@pytest.mark.parametrize("strategy", [torus(topology=Full()), gossip(p=1.0)], ids=repr)
def test_what_is_on_its_way_is_bounded_by_who_talks_to_whom(strategy):
    """Two letters and one that is held back, for each pair; and every one of them is accounted for."""
    _, most = run(strategy, SLOW)
    assert 3 < most <= 12 * 3


def test_a_long_way_is_no_reason_to_hold_anything_back():
    _, most = run(torus(topology=Full()), FAR)
    assert most > 12 * 20


def test_every_gradient_is_included_once_however_slow_the_link():
    """With the sum rule and gradients that don't depend on the weights, only that counts: against a plain sum over all
    batches."""
    records, batches = [], PROBLEM.batches(4, STEPS)
    problem = LeastSquares()
    problem.gradient = lambda _, batch: torch.full_like(PROBLEM.start, float(sum(batch)))
    simulation = problem.simulation(
        torus(rule=sum_, send="own", topology=Full()), batches, lr=0.001, network=SLOW, compute=Compute(0.02),
        observers=[records.append],
    )  # fmt: skip
    simulation.run()
    read = Counter((r.sender, r.who, step) for r in records if isinstance(r, Received) for step in r.steps)
    lost = [record for record in records if isinstance(record, Dropped)]
    everything = {(i, j, step) for i in range(4) for j in range(4) if i != j for step in range(STEPS)}
    assert read == Counter(everything) and not lost
    assert any(len(record.steps) > 5 for record in records if isinstance(record, Received))
    total = sum(sum(batch) for own in batches for batch in own)
    assert close(weights(simulation), (PROBLEM.start - 0.001 * total).expand(4, -1))
