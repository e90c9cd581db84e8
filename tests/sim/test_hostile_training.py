"""Training among hostile workers: it converges with rules that stand them, and fails with the mean."""

from math import isfinite

import pytest
import torch

from fast.errors import UsageError
from fast.rules import krum, mean, median, multi_krum, norm_clip, trimmed_mean
from fast.sim import Compute, parse_straggler
from fast.sim.checkers import Checkers
from fast.sim.faults import Director, parse_scenario
from fast.strategies.expression import parse_strategy
from fast.strategies.presets import allreduce, ssp, torus
from fast.topologies import Full, Ring, Star
from fast.trace import Applied, Dropped

from .problem import ROWS, LeastSquares, close, equal, weights

PROBLEM = LeastSquares()
RULES = (median(), trimmed_mean(1), krum(1), multi_krum(1), norm_clip(1.0, then=median()))
LIES = {
    "flip": "worker 4 flips signs",
    "scaled": "worker 4 scales by -30",
    "noise": "worker 4 sends noise of 100",
    "NaN": "worker 4 sends NaN",
}
FATAL = ("scaled", "noise", "NaN")
"""Against the mean. One of five that flips its signs only makes the mean three fifths as long."""
every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)
every_lie = pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
MAKE = {
    "server": lambda rule: ssp(bound=0, rule=rule),
    "allreduce": lambda rule: allreduce(rule=rule),
    "torus": lambda rule: torus(rule=rule),
}


def loss(w):
    return float(((PROBLEM.a @ w - PROBLEM.b) ** 2).mean() / 2)


BEST = loss(torch.linalg.lstsq(PROBLEM.a, PROBLEM.b).solution)
START = loss(PROBLEM.start) - BEST


def trained(strategy, lie, *, workers=5, steps=60, rows=6, lr=0.1, observers=(), **options):
    """A simulation that has run, every event of which was checked."""
    scenario = parse_scenario(lie)
    scenario.check(strategy, workers, strategy.servers(workers))
    checkers = Checkers(strategy, finite=False)
    if rows == ROWS:
        batches = [[tuple(range(ROWS))] * steps for _ in range(workers)]
    else:
        batches = PROBLEM.batches(workers, steps, size=rows)
    simulation = PROBLEM.simulation(
        strategy, batches, lr=lr, faults=Director(scenario, 0), observers=[checkers, *observers], **options
    )
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    return simulation


def excess(simulation):
    """How far the worst replica is from the best loss there is."""
    found = [loss(w) - BEST for w in weights(simulation)]
    return max(found) if all(map(isfinite, found)) else float("inf")


@pytest.mark.parametrize("name", ["server", "allreduce"])
@every_rule
@every_lie
def test_lock_step_converges_among_hostile_workers(name, rule, lie):
    """Every worker has other rows in every step, so honest gradients differ too."""
    assert excess(trained(MAKE[name](rule), lie)) < START / 10


@every_rule
@every_lie
def test_a_torus_converges_among_hostile_workers(rule, lie):
    simulation = trained(torus(rule=rule), lie, workers=9, rows=ROWS, lr=0.08, steps=45)
    assert excess(simulation) < START / 10


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("lie", [LIES[name] for name in FATAL], ids=FATAL)
def test_with_the_mean_it_fails(name, lie):
    """The negative control."""
    options = {"workers": 9, "rows": ROWS, "lr": 0.05} if name == "torus" else {}
    assert excess(trained(MAKE[name](mean), lie, **options)) > 5 * START


@every_lie
def test_two_of_seven(lie):
    lies = lie.replace("worker 4", "workers 2,4").replace("flips", "flip").replace("sends", "send")
    lies = lies.replace("scales", "scale")
    for rule in (trimmed_mean(2), multi_krum(2, chosen=3)):
        assert excess(trained(ssp(bound=0, rule=rule), lies, workers=7, rows=4)) < START / 5


def test_one_more_than_promised_is_too_many():
    """The negative control of the promise: two that agree, against a rule that stands one."""
    lies = "workers 3,4 scale by -30"
    assert excess(trained(ssp(bound=0, rule=trimmed_mean(1)), lies)) > START


@every_lie
def test_clipping_alone_keeps_training_in_bounds(lie):
    """It doesn't promise the optimum, only that nobody moves a step by more than 2 limit / n."""
    assert excess(trained(ssp(bound=0, rule=norm_clip(1.0)), lie)) < START / 5


# The same bits everywhere


@every_rule
@pytest.mark.parametrize("lie", ["worker 4 flips signs", "worker 4 sends noise of 3"])
def test_everybody_merges_to_the_same_bits_as_a_server(rule, lie):
    gathered, served = (trained(MAKE[name](rule), lie, steps=12) for name in ("allreduce", "server"))
    assert all(equal(row, weights(gathered)[0]) for row in weights(gathered))
    assert equal(weights(gathered), weights(served))


@pytest.mark.parametrize("rule", [median(), trimmed_mean(1)], ids=repr)
def test_coordinate_by_coordinate_shards_give_the_bits_of_one_server(rule):
    one, three = (
        trained(ssp(bound=0, rule=rule, servers=servers), "worker 4 flips signs", steps=8)
        for servers in (1, 3)
    )
    assert equal(weights(one), weights(three))


@every_rule
def test_without_lies_the_values_are_those_of_a_plain_loop(rule):
    batches = PROBLEM.batches(5, 8, size=6)
    simulation = PROBLEM.simulation(allreduce(rule=rule), batches, momentum=0.5)
    simulation.run()
    w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    for step in range(8):
        gradients = [PROBLEM.gradient(w, own[step]) for own in batches]
        v = 0.5 * v + rule.merge(gradients)
        w = w - 0.05 * v
    assert close(weights(simulation)[0], w)


# Too few


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_too_few_workers_are_refused_before_anything_starts(make):
    with pytest.raises(UsageError, match="needs at least 5 updates at a time, and"):
        PROBLEM.simulation(make(krum(1)), PROBLEM.batches(4, 1))


@pytest.mark.parametrize(
    ("call", "workers", "why"),
    [
        ("torus(rule=krum(2))", 16, "at least 7 updates at a time, and 5 come"),
        ("torus(rule=median, topology=ring)", 2, "at least 3 updates at a time, and 2 come"),
        ("torus(rule=median, topology=star)", 9, "at least 3 updates at a time, and 2 come"),
        ("torus(rule=median, topology=hypercube(one_peer=True))", 8, "and 2 come"),
        ("ssp(bound=0, rule=trimmed_mean(2))", 4, "at least 5 updates at a time, and 4 come"),
        ("ssp(bound=0, rule=krum(1), servers=2)", 8, "each of the 2 servers sees only its own slice"),
        ("allreduce(rule=norm_clip(1.0, then=krum(1)))", 4, "at least 5 updates"),
    ],
)
def test_what_a_strategy_refuses(call, workers, why):
    with pytest.raises(UsageError, match=why):
        parse_strategy(call).check(workers)


@pytest.mark.parametrize(
    ("call", "workers"),
    [
        ("torus(rule=krum(1))", 16),
        ("torus(rule=krum(2), topology=full)", 7),
        ("torus(rule=median, topology=ring)", 3),
        ("ssp(bound=0, rule=median, servers='workers')", 3),
        ("allreduce(rule=krum(1))", 1),
        ("torus(rule=mean)", 2),
    ],
)
def test_what_a_strategy_accepts(call, workers):
    parse_strategy(call).check(workers)


def test_contributors_are_those_that_the_loneliest_worker_hears():
    assert torus(topology=Full()).contributors(6) == 6
    assert (torus(topology=Ring()).contributors(6), torus(topology=Star()).contributors(6)) == (3, 2)
    assert (torus().contributors(9), torus().contributors(1), allreduce().contributors(6)) == (5, 1, 6)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
@every_rule
def test_alone_there_is_nobody_to_distrust(make, rule):
    """One worker takes exactly the steps that it takes without FAST, also with a rule that clips."""
    batches = PROBLEM.batches(1, 6)
    simulation = PROBLEM.simulation(make(rule), batches)
    simulation.run()
    w = PROBLEM.start
    for batch in batches[0]:
        w = w - 0.05 * PROBLEM.gradient(w, batch)
    assert equal(weights(simulation)[0], w)


@pytest.mark.parametrize("name", ["server", "allreduce"])
def test_where_too_few_are_left_nothing_is_applied_and_that_is_reported(name):
    """Worker 4 leaves after 3 steps, and Krum needs all five: the weights stay where they are."""
    records, counts = [], [6, 6, 6, 6, 3]
    batches = PROBLEM.batches(5, counts)
    simulation = PROBLEM.simulation(MAKE[name](krum(1)), batches, observers=[records.append])
    simulation.run()
    w = PROBLEM.start
    for step in range(3):
        w = w - 0.05 * krum(1).merge([PROBLEM.gradient(w, own[step]) for own in batches])
    assert all(close(row, w) for row in weights(simulation)[:4])
    dropped = [
        r for r in records if isinstance(r, Dropped) and "too few updates for krum(hostile=1)" in r.why
    ]
    places = 1 if name == "server" else 4
    assert sorted(r.sender for r in dropped) == sorted([*range(4)] * 3 * places)
    assert sum(isinstance(r, Applied) for r in records if r.who in (0, 5)) == 3


def test_a_step_without_samples_has_no_vote():
    """Four of five have samples in the second step, which is too few for Krum and enough for the median."""
    batches = [[(0, 1), (2, 3)]] * 5
    for rule, moves in ((krum(1), False), (median(), True)):
        simulation = PROBLEM.simulation(ssp(bound=0, rule=rule), batches)
        for participant in simulation.workers:
            compute = participant.worker.compute

            def scarce(batch, compute=compute, replica=participant.me.replica, who=participant.me.id):
                compute(batch)
                if who == 4 and batch == (2, 3):
                    replica.samples = 0

            object.__setattr__(participant.worker, "compute", scarce)
        simulation.run()
        first = PROBLEM.start - 0.05 * PROBLEM.gradient(PROBLEM.start, (0, 1))
        second = first - 0.05 * PROBLEM.gradient(first, (2, 3))
        assert close(weights(simulation)[0], second if moves else first)


def test_on_a_torus_a_worker_trusts_only_itself_where_too_few_were_heard():
    """Worker 8 is four times slower than the others; while nothing came from it, its neighbours are four and not
    five, so they take their own gradient alone. Against a loop over what each of them had read."""
    read, records = {}, []
    own, size, steps = {}, 9, 6
    batches = PROBLEM.batches(size, steps, size=3)
    strategy = torus(rule=krum(1))
    simulation = PROBLEM.simulation(
        strategy, batches, compute=Compute(0.02, parse_straggler("4x")), observers=[records.append]
    )
    before = {}

    def watch(me, now):
        before[me.id, me.steps] = me.weights.clone()

    for participant in simulation.workers:
        me = participant.me
        letters = me.letters

        def reading(tag, from_=None, me=me, letters=letters):
            found = letters(tag, from_)
            if not me.ending:
                read[me.id, me.steps] = [letter.tensor / letter.count for letter in found]
                own[me.id, me.steps] = me.gradient.clone()
            return found

        object.__setattr__(me, "letters", reading)
    simulation.run(on_step=watch)
    alone = 0
    for (who, step), arrived in read.items():
        w = before.get((who, step), PROBLEM.start)
        votes = [own[who, step], *arrived]
        alone += len(votes) < 5
        update = krum(1).merge(votes) if len(votes) >= 5 else votes[0]
        if step + 1 < steps:
            assert close(before[who, step + 1], w - 0.05 * update)
    assert 0 < alone < len(read)
    assert any(isinstance(r, Dropped) and "too few updates" in r.why for r in records)
