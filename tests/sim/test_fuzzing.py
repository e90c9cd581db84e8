"""The fuzzer: it finds planted mistakes, makes them small, and finds nothing in the presets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fast.core import Strategy
from fast.errors import Deadlock, UsageError, Violation
from fast.parts import Torus
from fast.sim.checkers import Checkers, Seen
from fast.sim.faults import Scenario, parse_scenario
from fast.sim.fuzzing import (
    PLAIN,
    STEPS,
    WORKERS,
    Case,
    Machines,
    attempt,
    checkers_for,
    draw_case,
    fuzz,
    shrunk,
    simpler_cases,
)
from fast.strategies import catalogue
from fast.strategies.expression import parse_strategy
from fast.strategies.presets import allreduce, choco, dpsgd, gossip, local_sgd, sfb, ssp, torus
from table import CALLS

from .bench import trial_of
from .broken import BROKEN

SEEDS = 3
LONG_SEEDS = 300


# Planted mistakes


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_every_planted_mistake_is_found_within_200_seeds(make: type[Strategy]):
    strategy = make()
    outcome = fuzz(strategy, trial_of(strategy), range(200), tries=60)
    finding = outcome.finding
    assert finding is not None
    assert outcome.seeds <= 200
    kind, words = BROKEN[make]
    assert type(finding.error) is kind
    assert words in str(finding.error)
    assert finding.case.workers <= finding.drawn.workers
    assert finding.case.steps <= finding.drawn.steps
    again = attempt(finding.case, trial_of(strategy), checkers_for(strategy, finding.case.scenario))
    assert str(again) == str(finding.error)


# Presets


@pytest.mark.parametrize("call", CALLS)
def test_presets_break_no_promise(call: str):
    strategy = parse_strategy(call)
    outcome = fuzz(strategy, trial_of(strategy), range(SEEDS))
    assert outcome.finding is None, describe(outcome.finding)
    assert outcome.seeds == SEEDS
    assert outcome.seen.steps > 0


def test_every_preset_is_fuzzed():
    assert {call.partition("(")[0] for call in CALLS} == set(catalogue())


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("call", CALLS)
def test_presets_break_no_promise_over_many_seeds(call: str):
    strategy = parse_strategy(call)
    outcome = fuzz(strategy, trial_of(strategy), range(SEEDS, LONG_SEEDS))
    assert outcome.finding is None, describe(outcome.finding)


def describe(finding: object) -> str:
    return f"{finding}"


# Drawing


def test_a_seed_is_a_case_and_the_same_every_time():
    strategies = [allreduce(), local_sgd(), ssp(), dpsgd(), torus(), gossip(), sfb(), choco()]
    for strategy in strategies:
        for seed in range(30):
            case = draw_case(seed, strategy)
            assert case == draw_case(seed, strategy)
            assert case.seed == seed
            assert case.workers in WORKERS
            assert case.steps in STEPS
            case.scenario.check(strategy, case.workers, strategy.servers(case.workers))
            assert parse_scenario(str(case.scenario)) == case.scenario
            case.machines.cluster()


def test_cases_are_of_all_kinds():
    cases = [draw_case(seed, gossip()) for seed in range(200)]
    text = " ".join(str(case.scenario) for case in cases)
    assert {case.workers for case in cases} == set(WORKERS)
    assert len({case.machines.network for case in cases}) > 5
    assert any(case.machines.speeds for case in cases) and any(case.machines.spread for case in cases)
    for words in (
        "dies",
        "stops",
        "freezes",
        "cut apart",
        "lost",
        "doubled",
        "overtaken",
        "longer",
        "sends NaN",
    ):
        assert words in text, words
    assert any(not case.scenario for case in cases)


def test_only_numbers_of_workers_that_the_topology_takes_are_drawn():
    square = dpsgd(topology=Torus(2, 3))
    assert {draw_case(seed, square).workers for seed in range(30)} == {6}
    with pytest.raises(UsageError, match="runs on none of 2 to 8 workers"):
        draw_case(0, dpsgd(topology=Torus(5, 5)))


def test_where_somebody_lies_weights_may_become_anything():
    lies = parse_scenario("worker 1 sends NaN")
    promises = [checkers_for(gossip(), scenario).promises for scenario in (Scenario(), lies)]
    assert set(promises[0]) - set(promises[1]) == {"weights must stay finite"}


# Trying and shrinking, with trials that fail by rule


def failing(rule, error=ValueError):
    """A trial that fails where `rule` says so, and counts."""

    def trial(case: Case, checkers: Checkers) -> None:
        checkers.seen.events += 10
        trial.cases.append(case)
        if rule(case):
            raise error(f"{case.workers} workers")

    trial.cases = []
    return trial


def test_it_stops_at_the_first_seed_that_fails():
    told: list[tuple[int, int]] = []
    trial = failing(lambda case: case.seed == 7)
    outcome = fuzz(
        gossip(), trial, range(3, 100), tell=lambda seeds, seen: told.append((seeds, seen.events)), tries=0
    )
    assert outcome.seeds == 5
    assert outcome.finding is not None
    assert outcome.finding.case == outcome.finding.drawn == draw_case(7, gossip())
    assert told == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert outcome.seen == Seen(events=50)
    assert outcome.faults == sum(len(draw_case(seed, gossip()).scenario.clauses) for seed in range(3, 8))


def test_without_a_finding_all_seeds_are_tried():
    trial = failing(lambda case: False)
    outcome = fuzz(gossip(), trial, range(5))
    assert (outcome.seeds, outcome.finding, len(trial.cases)) == (5, None, 5)
    assert "weights must stay finite" in outcome.promises


def test_a_finding_is_made_as_small_as_its_rule_allows():
    machines = Machines(network="wan", step="5ms", straggler="4x", speeds="1,2,1,1,1,1", spread=0.5)
    scenario = parse_scenario("worker 3 freezes at 2s for 1s; worker 4 dies at 3s; letters take 5ms longer")
    case = Case(1, 6, 33, machines, scenario)

    def rule(case: Case) -> bool:
        return (
            case.workers >= 5
            and case.steps >= 4
            and "dies" in str(case.scenario)
            and case.machines.spread > 0
        )

    trial = failing(rule)
    finding = shrunk(case, ValueError("6 workers"), gossip(), trial)
    assert finding.case == Case(1, 5, 4, replace(PLAIN, spread=0.5), parse_scenario("worker 0 dies at 0s"))
    assert str(finding.error) == "5 workers"
    assert finding.drawn == case
    assert finding.tries == len(trial.cases) <= 100


def test_another_kind_of_failure_is_another_finding():
    def trial(case: Case, checkers: Checkers) -> None:
        if case.steps < 10:
            raise Deadlock("nothing can happen any more")
        if case.workers < 4:
            raise Violation("another promise", 0, "something else")
        raise Violation("this promise", 0, "found")

    finding = shrunk(Case(0, 8, 40), Violation("this promise", 0, "first"), gossip(), trial)
    assert (finding.case.workers, finding.case.steps) == (4, 10)


def test_what_cannot_be_is_not_tried():
    """With fewer than four workers there is no worker 3; and a topology of six takes only six."""
    named = shrunk(
        Case(0, 8, 5, scenario=parse_scenario("worker 3 stops at 1s")),
        ValueError(),
        gossip(),
        failing(lambda case: "stops" in str(case.scenario) and "worker 3" in str(case.scenario)),
    )
    assert named.case.workers == 4
    square = shrunk(Case(0, 6, 5), ValueError(), dpsgd(topology=Torus(2, 3)), failing(lambda case: True))
    assert square.case.workers == 6


def test_every_step_of_shrinking_is_smaller():
    case = draw_case(11, gossip())
    for candidate in simpler_cases(case):
        assert candidate != case
        assert candidate.seed == case.seed
        assert candidate.workers <= case.workers
        assert candidate.steps <= case.steps
    assert list(simpler_cases(Case(0, 2, 1))) == []
