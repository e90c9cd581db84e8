"""Every strategy without a centre on random schedules: nobody waits for ever, no letter is lost or counted twice,
and what is conserved stays, at every event, letters on their way included."""

from __future__ import annotations

from random import Random

import pytest

from fast.core import Strategy
from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.sim.checkers import Checkers, CountedOnce, LettersAccounted, Seen
from fast.sim.faults import parse_scenario
from fast.sim.fuzzing import Case, Machines
from fast.strategies import catalogue
from fast.strategies.calls import arguments_of, with_argument
from fast.strategies.expression import parse_strategy
from table import PRESETS

from .bench import simulation_of

DECENTRAL = [name for name, preset in catalogue().items() if preset.place.optimization == "decentral"]
INTERVALS = ("tau", "h", "H", "interval", "period", "every", "up", "down", "after")
"""Arguments that count steps between exchanges: here they are short, so that there are some in a short run."""
SILENT = ("one_shot",)
"""Who says nothing before the end."""
SEEDS = (
    range(50),
    pytest.param(range(50, 1050), marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
)
"""Of random schedules: some on every run, many in `make test-long`."""


def often(call: str) -> str:
    """The same strategy, exchanging every third step at least, if it can be built like that."""
    for key, value in arguments_of(parse_strategy(call).call).items():
        short = (
            with_argument(call, key, 3) if key in INTERVALS and value.isdigit() and int(value) > 3 else call
        )
        short = with_argument(call, key, 0.5) if key == "p" else short
        try:
            call = parse_strategy(short).call
        except UsageError:
            continue
    return call


def fits(strategy: Strategy, workers: int) -> bool:
    try:
        strategy.check(workers)
    except UsageError:
        return False
    return True


def small_case(seed: int, strategy: Strategy) -> Case:
    """Two to six workers of random speeds on slow links. One stumbles, one may stop early, one may die, and letters
    may be lost: for good, doubled or overtaken where the strategy says that it stands that."""
    random = Random(stream_seed(seed, "decentral"))
    workers = random.choice([size for size in range(2, 7) if fits(strategy, size)])
    steps = random.randint(4, 9)
    first, second, third = random.sample(range(workers), 3) if workers > 2 else (0, 1, 0)
    clauses = [
        f"worker {first} freezes at {random.randint(5, 80)}ms for {random.randint(10, 300)}ms",
        f"letters from {third} take {random.randint(1, 90)}ms longer",
        f"{random.randint(5, 30)}% of letters are lost; lost letters are sent again after 30ms",
    ]
    if workers > 2:
        clauses.append(f"worker {second} stops at step {random.randint(1, steps - 1)}")
    if workers > 2 and strategy.survives_death:
        clauses.append(f"worker {third} dies at step {random.randint(1, steps - 1)}")
    if strategy.survives_loss:
        fate = random.choice(["lost", "doubled", "overtaken"])
        clauses[2] = f"letters travel as datagrams; {random.randint(5, 30)}% of letters are {fate}"
    machines = Machines(
        network=random.choice(["1gbit", "1mbit,1ms", "wan", "300kbit,10ms"]),
        straggler=random.choice([None, "4x", "10x@0.2"]),
        spread=random.choice([0.0, 0.5, 1.5]),
    )
    said = random.sample(clauses, random.randint(1, len(clauses)))
    return Case(
        seed, workers, steps, machines, parse_scenario("; ".join([*said, "deaths are noticed after 30ms"]))
    )


def watched(strategy: Strategy, case: Case) -> Seen:
    checkers = Checkers(strategy)
    assert {LettersAccounted, CountedOnce} <= {type(checker) for checker in checkers.checkers}
    simulation = simulation_of(case, strategy, checkers)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    assert all(worker.gone for worker in simulation.workers)  # nobody waits for ever
    return checkers.seen


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", DECENTRAL)
def test_nothing_is_lost_or_doubled_whoever_is_slow_stops_or_dies(name: str, seeds: range) -> None:
    strategies = [parse_strategy(often(call)) for call in PRESETS[name]]
    seen = Seen()
    for seed in seeds:
        strategy = strategies[seed % len(strategies)]
        case = small_case(seed, strategy)
        try:
            seen.add(watched(strategy, case))
        except Exception as error:
            error.add_note(f"{strategy!r}: {case}")
            raise
    assert seen.died > len(seeds) / 10 or not all(strategy.survives_death for strategy in strategies)
    if name in SILENT:
        assert seen.letters == seen.rounds == 0
        return
    assert seen.letters + seen.rounds > len(seeds)
    assert seen.dropped > 0 or not any(strategy.survives_loss for strategy in strategies)


def test_all_of_them_are_tried() -> None:
    assert {"dpsgd", "torus", "choco", "gossip", "local_sgd"} <= set(DECENTRAL)
    assert set(DECENTRAL) <= set(PRESETS)


def test_exchanges_come_often() -> None:
    assert often("local_sgd(tau=7)").startswith("local_sgd(tau=3, ")
    assert often("gossip(p=0.02)").startswith("gossip(p=0.5, ")
    assert often("torus") == parse_strategy("torus").call
