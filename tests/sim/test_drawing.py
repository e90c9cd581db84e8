"""Scenarios drawn at random: always possible, of every kind that a strategy stands, and never of another."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.core import Strategy
from fast.sim.faults import Director, Scenario, parse_scenario, random_scenario
from fast.sim.faults.checking import story
from fast.sim.faults.deeds import Datagrams, Deed, Freezes, Lies, Mishap, Mishaps, Moves
from fast.strategies.presets import allreduce, gossip, local_sgd, ssp, torus

from .problem import LeastSquares

PROBLEM = LeastSquares()
UNTIL_NS, STEPS = 400_000_000, 20
HOUSE = (allreduce, local_sgd, lambda: ssp(bound=0), lambda: ssp(bound=3), torus, gossip)


class Hardy(Strategy):
    survives_loss = admits = True

    def servers(self, workers):
        return 1


class Delicate(Strategy):
    survives_death = False


def drawn(seed, strategy, workers=4):
    return random_scenario(
        seed,
        workers=workers,
        servers=strategy.servers(workers),
        strategy=strategy,
        until_ns=UNTIL_NS,
        steps=STEPS,
    )


@settings(max_examples=300)
@given(
    st.integers(0, 2**63),
    st.sampled_from([Hardy(), Delicate(), Strategy(), *(make() for make in HOUSE)]),
    st.integers(1, 9),
)
def test_every_draw_can_be_and_reads_back(seed, strategy, workers):
    scenario = drawn(seed, strategy, workers)
    scenario.check(strategy, workers, strategy.servers(workers))
    assert parse_scenario(str(scenario)) == scenario
    assert drawn(seed, strategy, workers) == scenario


@settings(max_examples=200)
@given(st.integers(0, 2**63), st.integers(1, 9))
def test_two_workers_stay_from_beginning_to_end(seed, workers):
    scenario = drawn(seed, Hardy(), workers)
    steady = [worker for worker in range(workers) if not story(scenario.clauses, worker)]
    assert len(steady) >= min(2, workers)


def kinds(scenario: Scenario) -> set[object]:
    """What is in it, finely enough to tell whether everything comes up."""
    found = set()
    for clause in scenario.clauses:
        match clause:
            case Moves(deed=deed):
                found.add(deed)
            case Lies(lie=lie):
                found.add(type(lie))
            case Freezes(who=who):
                found.add(("freezes", bool(who.servers)))
            case Mishaps(mishap=mishap):
                found.add((mishap, scenario.datagrams))
            case _:
                found.add(type(clause))
    return found


def test_all_kinds_come_up_where_everything_is_stood():
    seen = Counter(kind for seed in range(600) for kind in kinds(drawn(seed, Hardy(), 5)))
    expected = {
        *Deed,
        ("freezes", False),
        ("freezes", True),
        (Mishap.LOST, False),
        *((each, True) for each in Mishap),
    }
    assert expected <= set(seen)
    assert len(seen) == len(expected) + 4 + 5, "four lies; cuts, delays, datagrams, resends, notices"
    assert min(seen.values()) >= 10


def test_only_what_a_strategy_stands_comes_up():
    found = [drawn(seed, Strategy(), 5) for seed in range(300)]
    assert not any(scenario.of(Datagrams) for scenario in found)
    assert {clause.deed for scenario in found for clause in scenario.of(Moves)} == {Deed.STOP, Deed.DIE}
    delicate = [drawn(seed, Delicate(), 5) for seed in range(300)]
    assert {clause.deed for scenario in delicate for clause in scenario.of(Moves)} == {Deed.STOP}


def test_most_are_small():
    sizes = Counter(len(drawn(seed, Hardy(), 5).clauses) for seed in range(500))
    assert sizes[0] > 20
    assert sum(count for size, count in sizes.items() if size <= 4) > 400
    assert max(sizes) <= 12


def test_seeds_differ():
    assert len({str(drawn(seed, Hardy(), 6)) for seed in range(200)}) > 150


@pytest.mark.parametrize("make", HOUSE)
def test_house_strategies_stand_what_is_drawn_for_them(make):
    """Every worker that stays does all its steps, whatever happens to the others."""
    for seed in range(25):
        strategy = make()
        scenario = drawn(seed, strategy, 5)
        simulation = PROBLEM.simulation(
            strategy,
            PROBLEM.batches(5, STEPS),
            faults=Director(scenario, seed),
            absent=scenario.absent,
            seed=seed,
        )
        simulation.run()
        for worker in range(5):
            if not story(scenario.clauses, worker):
                assert simulation.me(worker).steps == STEPS, f"seed {seed}: {scenario}"
