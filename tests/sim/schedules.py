"""Random schedules: every step of every worker takes a time of its own, every link is as slow as chance has it, and
workers leave when their batches end. All promises of the strategy are watched at every event."""

from __future__ import annotations

from random import Random

import pytest
import torch

from fast.core import Strategy
from fast.core.seeds import stream_seed
from fast.sim import Simulation
from fast.sim.checkers import Checkers
from fast.sim.checkers.sums import SumOfWeights

from .problem import DIM, LeastSquares, RandomCompute, random_network

PROBLEM = LeastSquares()
FEW_AND_MANY = (
    range(12),
    pytest.param(range(12, 1012), marks=[pytest.mark.long, pytest.mark.timeout(900)]),
)
"""Seeds: a few on every run (test_decentral_schedules.py has more of them), many in `make test-long`."""


def counts_of(seed: int, *, fewest: int = 2, most: int = 6) -> list[int]:
    """How many steps each worker takes, if this seed says so."""
    random = Random(stream_seed(seed, "counts"))
    return [random.randrange(1, 10) for _ in range(random.randrange(fewest, most + 1))]


def run_watched(
    strategy: Strategy, counts: list[int], seed: int, sums: SumOfWeights | None = None
) -> Simulation:
    """Train under this schedule, with all checkers that apply; everybody must have done all its steps. With `sums`
    replicas begin apart and gradients change nothing, and that sum is watched too."""
    checkers = Checkers(strategy)
    checkers.checkers += (sums,) if sums else ()
    generator = torch.Generator().manual_seed(seed)
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(len(counts), counts),
        lr=0.0 if sums else 0.01,
        momentum=0.5,
        starts=list(torch.randn(len(counts), DIM, generator=generator, dtype=torch.float64))
        if sums
        else None,
        compute=RandomCompute(),
        network=random_network(len(counts), seed),
        seed=seed,
        observers=[checkers],
        spoil_letters=True,
    )
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    assert [p.me.steps for p in simulation.workers] == counts, f"seed {seed}"
    assert sums is None or sums.events > sum(counts)
    return simulation
