"""Servers with a bound on random schedules: promises are watched at every event, and nobody waits for ever."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fast.core import Strategy
from fast.core.seeds import stream_seed
from fast.sim.checkers import Checkers, Lead, ReachKept, ReadsComplete
from fast.sim.faults import parse_scenario
from fast.sim.fuzzing import Case, Machines
from fast.strategies.central.cached import CachedReads
from fast.strategies.presets import essp, ssp, vap

from .bench import simulation_of


def small_case(seed: int) -> Case:
    """Three to five workers of random speeds; one stumbles, some stop or leave early, one may die."""
    random = Random(stream_seed(seed, "bounded"))
    workers, steps = random.randint(3, 5), random.randint(5, 9)
    first, second, third = random.sample(range(workers), 3)
    clauses = [
        f"worker {first} freezes at {random.randint(5, 80)}ms for {random.randint(10, 300)}ms",
        f"worker {second} stops at step {random.randint(1, steps - 1)}",
        f"letters from {third} take {random.randint(1, 60)}ms longer",
        f"worker {third} dies at step {random.randint(1, steps - 1)}",
        "deaths are noticed after 30ms",
    ]
    machines = Machines(
        network=random.choice(["1gbit", "1mbit,1ms", "wan"]),
        straggler=random.choice([None, "4x", "10x@0.2"]),
        spread=random.choice([0.0, 0.5, 1.5]),
    )
    said = "; ".join([*random.sample(clauses[:4], random.randint(1, 4)), clauses[4]])
    return Case(seed, workers, steps, machines, parse_scenario(said))


def watched(strategy: Strategy, case: Case) -> Checkers:
    checkers = Checkers(strategy)
    simulation = simulation_of(case, strategy, checkers)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    assert all(worker.gone for worker in simulation.workers)  # nobody waits for ever (B20)
    return checkers


SEEDS = (
    range(100),
    pytest.param(range(100, 1100), marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
)
"""Of random schedules: some on every run, many in `make test-long`."""
SHARDS = (1, 1, 2, "workers")


def stale(seed: int) -> Strategy:
    return ssp(seed % 5, servers=SHARDS[seed % 4])


def eager(seed: int) -> Strategy:
    return essp(1 + seed % 3, servers=SHARDS[seed % 4])


def lazy(seed: int) -> Strategy:
    return CachedReads(bound=1 + seed % 3, eager=False, servers=SHARDS[seed % 4])


def valued(seed: int) -> Strategy:
    return vap((0, 0.003, 0.01, 0.03)[seed % 4])


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("make", [stale, eager, lazy, valued], ids=lambda make: make.__name__)
def test_promises_hold_whoever_is_slow_stops_or_leaves(make: Any, seeds: range):
    died = 0
    for seed in seeds:
        strategy = make(seed)
        checkers = watched(strategy, small_case(seed))
        kinds = {type(checker) for checker in checkers.checkers}
        assert {ReachKept} <= kinds if make is valued else {Lead, ReadsComplete} <= kinds
        died += checkers.seen.died
    assert died > len(seeds) / 5
