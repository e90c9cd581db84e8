"""Rules in place of the mean where weights are merged, and where a server collects whatever comes: against plain loops,
among hostile workers, and where too few take part."""

from collections import Counter

import pytest
import torch

from fast.errors import UsageError
from fast.rules import krum, mean, median, multi_krum, trimmed_mean
from fast.sim import Compute, parse_straggler
from fast.strategies.expression import parse_strategy
from fast.strategies.presets import diloco, dpsgd, local_sgd, slowmo, sparknet, staleness_aware
from fast.topologies import Full, Ring
from fast.trace import Applied, Dropped, Included

from .problem import ROWS, LeastSquares, RoundRobin, close, equal, weights
from .test_hostile_training import START, excess, trained

PROBLEM = LeastSquares()
RULES = (median(), trimmed_mean(1), krum(1), multi_krum(1))
every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)
LIES = ("worker 4 flips signs", "worker 4 scales by -30", "worker 4 sends noise of 100", "worker 4 sends NaN")
MAKE = {
    "local_sgd": lambda rule: local_sgd(tau=4, rule=rule),
    "sparknet": lambda rule: sparknet(tau=4, rule=rule),
    "slowmo": lambda rule: slowmo(tau=4, rule=rule),
    "diloco": lambda rule: diloco(interval=4, momentum=0.5, rule=rule),
    "dpsgd": lambda rule: dpsgd(topology=Full(), rule=rule),
    "staleness_aware": lambda rule: staleness_aware(rule=rule),
}
every_strategy = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())


@every_strategy
@every_rule
@pytest.mark.parametrize("lie", LIES)
def test_it_converges_among_hostile_workers(make, rule, lie):
    """All workers have all rows, so that honest replicas stay near each other."""
    assert excess(trained(make(rule), lie, rows=ROWS, steps=100)) < START / 10


@every_strategy
@pytest.mark.parametrize("lie", LIES[1:])
def test_with_the_mean_it_fails(make, lie):
    assert excess(trained(make(mean), lie, rows=ROWS, steps=100)) > START / 2


# Against plain loops


def local_loop(batches, rule, tau, lr=0.05):
    """Local steps; every tau steps everybody's weights become what the rule makes of them."""
    rows = [PROBLEM.start.clone() for _ in batches]
    for step in range(len(batches[0])):
        rows = [w - lr * PROBLEM.gradient(w, own[step]) for w, own in zip(rows, batches, strict=True)]
        if (step + 1) % tau == 0:
            rows = [rule.merge(rows)] * len(rows)
    return torch.stack(rows)


@every_rule
@pytest.mark.parametrize("name", ["local_sgd", "sparknet"])
def test_local_steps_are_the_plain_loop(name, rule):
    batches = PROBLEM.batches(5, 10, size=3)
    simulation = PROBLEM.simulation(MAKE[name](rule), batches)
    simulation.run()
    assert close(weights(simulation), local_loop(batches, rule, 4))


@every_rule
def test_outer_steps_are_the_plain_loop(rule):
    batches = PROBLEM.batches(5, 8, size=3)
    simulation = PROBLEM.simulation(diloco(interval=4, rate=0.7, momentum=0.5, rule=rule), batches)
    simulation.run()
    anchor, memory = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
    for first in (0, 4):
        rows = [anchor.clone() for _ in batches]
        for step in range(first, first + 4):
            rows = [w - 0.05 * PROBLEM.gradient(w, own[step]) for w, own in zip(rows, batches, strict=True)]
        change = rule.merge([anchor - row for row in rows])
        memory = 0.5 * memory + change
        anchor = anchor - 0.7 * (change + 0.5 * memory)
    assert all(close(row, anchor) for row in weights(simulation))


@pytest.mark.parametrize(
    ("topology", "rule"), [(Ring(), median()), (Full(), krum(1)), (Full(), multi_krum(1))]
)
def test_neighbours_are_the_plain_loop(topology, rule):
    batches = PROBLEM.batches(5, 8, size=3)
    simulation = PROBLEM.simulation(dpsgd(topology=topology, rule=rule), batches)
    simulation.run()
    rows = [PROBLEM.start.clone() for _ in batches]
    for step in range(8):
        hears = [
            [i, *sorted(range(5) if isinstance(topology, Full) else ((i - 1) % 5, (i + 1) % 5))]
            for i in range(5)
        ]
        votes = [[rows[j] for j in dict.fromkeys(heard)] for heard in hears]
        gradients = [PROBLEM.gradient(w, own[step]) for w, own in zip(rows, batches, strict=True)]
        rows = [rule.merge(each) - 0.05 * g for each, g in zip(votes, gradients, strict=True)]
    assert close(weights(simulation), torch.stack(rows))


@every_rule
def test_collected_pushes_are_the_plain_loop(rule):
    """In turns, so that a step has one push of each; only the last one reads what it has completed."""
    batches = PROBLEM.batches(5, 6, size=3)
    strategy = staleness_aware(correction=None, rule=rule)
    simulation = PROBLEM.simulation(strategy, batches, compute=RoundRobin())
    simulation.run(pause_after=6)
    w, read = PROBLEM.start, [PROBLEM.start] * 5
    for step in range(6):
        pushed = [PROBLEM.gradient(read[i], batches[i][step]) for i in range(5)]
        before, w = w, w - 0.05 * rule.merge(pushed)
        read = [before] * 4 + [w]
    assert close(simulation.me(5).weights, w)


def test_a_worker_that_pushes_often_has_one_vote():
    """Worker 4 is slow. Until its push has come the others push again and again, and what each of them pushed is one
    vote: so no step is ever made of fewer than five workers."""
    records = []
    batches = PROBLEM.batches(5, 12, size=3)
    simulation = PROBLEM.simulation(
        staleness_aware(rule=krum(1)),
        batches,
        compute=Compute(0.02, parse_straggler("4x")),
        observers=[records.append],
    )
    simulation.run()
    steps, inside = 0, Counter()
    for record in records:
        if isinstance(record, Included) and record.who == 5:
            inside[record.sender] += 1
        if isinstance(record, Applied) and record.who == 5:
            assert set(inside) == set(range(5))
            steps, inside = steps + 1, Counter()
    pushes = Counter(record.sender for record in records if isinstance(record, Included) and record.who == 5)
    assert steps >= 2 and pushes[0] > steps, "who is fast has several pushes in one vote"


def test_shards_go_coordinate_by_coordinate():
    """One server and several collect the same pushes in turns, and come to the same bits."""
    batches = PROBLEM.batches(5, 6, size=3)
    found = []
    for servers in (1, 3):
        strategy = staleness_aware(correction=None, rule=median(), servers=servers)
        simulation = PROBLEM.simulation(strategy, batches, compute=RoundRobin())
        simulation.run()
        found.append(weights(simulation))
    assert equal(found[0], found[1])


# Too few


@pytest.mark.parametrize("name", ["local_sgd", "slowmo", "diloco"])
def test_where_too_few_are_left_everybody_goes_on_alone(name):
    """Worker 4 leaves after the first exchange, and Krum needs all five."""
    records = []
    batches = PROBLEM.batches(5, [8, 8, 8, 8, 4], size=3)
    simulation = PROBLEM.simulation(MAKE[name](krum(1)), batches, observers=[records.append])
    simulation.run(pause_after=4)
    start = weights(simulation).clone()
    simulation.run()
    for who in range(4):
        w = start[who]
        for step in range(4, 8):
            w = w - 0.05 * PROBLEM.gradient(w, batches[who][step])
        assert close(weights(simulation)[who], w)
    dropped = [record for record in records if isinstance(record, Dropped)]
    assert {record.sender for record in dropped if record.why == "too few updates for krum(hostile=1)"} == {
        0,
        1,
        2,
        3,
    }


def test_where_too_few_are_left_the_master_gives_back_its_model():
    batches = PROBLEM.batches(5, [8, 8, 8, 8, 4], size=3)
    simulation = PROBLEM.simulation(MAKE["sparknet"](krum(1)), batches)
    simulation.run()
    model = local_loop([own[:4] for own in batches], krum(1), 4)[0]
    assert all(close(row, model) for row in weights(simulation)[:4])


@pytest.mark.parametrize(
    ("call", "workers", "why"),
    [
        ("local_sgd(rule=krum(1))", 4, "needs at least 5 updates at a time, and 4 come"),
        ("dpsgd(rule=krum(1))", 16, "needs at least 5 updates at a time, and 3 come"),
        ("dpsgd(topology=torus, rule=krum(1))", 16, ""),
        ("staleness_aware(n=4, rule=median)", 8, "needs at least 3 updates at a time, and 2 come"),
        ("staleness_aware(rule=krum(1), servers=2)", 8, "each of the 2 servers sees only its own slice"),
        ("bigdl(rule=krum(1))", 8, "each of the 8 servers sees only its own slice"),
        ("caffeonspark(rule=median)", 8, ""),
        ("mxnet(rule=trimmed_mean(1))", 3, ""),
        ("parameter_server(tau=0, rule=median)", 3, ""),
    ],
)
def test_how_many_are_enough(call, workers, why):
    strategy = parse_strategy(call)
    if not why:
        strategy.check(workers)
        return
    with pytest.raises(UsageError, match=why):
        strategy.check(workers)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("local_sgd(rule=sum)", "this rule is one for gradients"),
        ("diloco(rule=by_age)", "this rule is one for gradients"),
        ("local_sgd(rule=norm_clip(1.0))", "shortened to some length they are another model"),
        ("dpsgd(rule=median, moments='average')", "would lie about those"),
        ("sparknet(rule=median, moments='average')", "would lie about those"),
        ("mxnet('dist_async', rule=median)", "Take kvstore='dist_sync'"),
        ("parameter_server(rule=median)", "Take tau=0"),
    ],
)
def test_what_makes_no_sense_is_refused(call, why):
    with pytest.raises(UsageError, match=why):
        parse_strategy(call)


@every_strategy
@every_rule
def test_alone_there_is_nobody_to_distrust(make, rule):
    """One worker goes as it does with the mean."""
    batches = PROBLEM.batches(1, 8)
    found = []
    for each in (rule, mean):
        simulation = PROBLEM.simulation(make(each), batches)
        simulation.run()
        found.append(weights(simulation)[0])
    assert equal(found[0], found[1])


@pytest.mark.parametrize("call", ["bigdl(rule=median)", "caffeonspark(rule=median)", "mxnet(rule=median)"])
def test_systems_in_lock_step_take_a_rule_as_ssp_does(call):
    batches = PROBLEM.batches(4, 6)
    found = []
    for each in (call, "ssp(bound=0, rule=median, servers='workers')"):
        simulation = PROBLEM.simulation(parse_strategy(each), batches)
        simulation.run()
        found.append(weights(simulation))
    assert equal(found[0], found[1])
