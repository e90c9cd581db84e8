"""Statement 1: whatever the delays, when all letters have arrived every replica has every gradient.

It holds at the end of a run of every strategy that sends its gradients to everybody and waits for nobody, also where
workers take different numbers of steps.
"""

from collections import Counter
from functools import cache
from random import Random

import pytest
import torch

import preset_bodies
from fast.core import GRADIENT
from fast.errors import UsageError
from fast.loop.loading import strategy_from
from fast.parts import Full, Ring, sum_
from fast.sim import Compute, Straggler
from fast.sim.checkers import Checkers
from fast.strategies.presets import dpsgd, gossip, torus
from fast.trace import Dropped, Included, Received, Sent
from table import CALLS

from .problem import INSTANT, LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.002
MORE = ("torus(rule=sum, topology=full, bucket_mb=0.00001)",)
"""Not in the table of presets."""


class Given(LeastSquares):
    """The gradient of a batch is the same at all weights, so that its sum is known without training."""

    def gradient(self, weights, batch):
        return self.a[list(batch)].sum(0)


@cache
def sends_to_everybody(call, workers):
    """Whether each worker's gradient of each step goes to all other workers, and nobody waits for it."""
    strategy, sent = strategy_from(call), Counter()
    if strategy.synchronous or strategy.servers(workers):
        return False
    gradients = {tag.name for tag in strategy.tags if tag.carries == GRADIENT}

    def look(record):
        if isinstance(record, Sent) and record.whole and record.tag in gradients:
            sent.update((record.who, to, record.step) for to in record.to)

    try:
        simulation = PROBLEM.simulation(strategy, PROBLEM.batches(workers, 5), observers=[look])
    except UsageError:  # its rule needs more of them
        return False
    simulation.run(pause_after=3)
    pairs = [(a, b) for a in range(workers) for b in range(workers) if a != b]
    return sent == Counter((a, b, step) for a, b in pairs for step in range(3))


def calls(workers):
    return [call for call in (*CALLS, *MORE) if sends_to_everybody(call, workers)]


def sums(workers):
    """Those whose workers add up all gradients as they are."""
    found = [call for call in calls(workers) if getattr(strategy_from(call), "rule", None) is sum_]
    return [call for call in found if all(tag.codec is None for tag in strategy_from(call).tags)]


def drawn(seed):
    """Numbers of steps (some workers may take none), and cluster: random delays, or one worker that is much slower."""
    random = Random(seed)
    workers = random.randint(2, 5)
    steps = (
        [random.randint(1, 9)] * workers if seed % 4 == 0 else [random.randint(0, 12) for _ in range(workers)]
    )
    slow = Compute(0.02, Straggler(random.choice([3.0, 30.0])), workers_s={random.randrange(workers): 0.2})
    network = random_network(workers, seed) if random.random() < 0.8 else INSTANT
    return steps, {"network": network, "compute": random.choice([RandomCompute(), slow]), "seed": seed}


def run(problem, call, steps, **options):
    """Watched by all checkers. Gives the simulation and what was recorded."""
    strategy, records = strategy_from(call), []
    checkers = Checkers(strategy)
    simulation = problem.simulation(
        strategy,
        batches(problem, steps),
        observers=[checkers, records.append],
        spoil_letters=True,
        lr=LR,
        **options,
    )
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    return simulation, records


def batches(problem, steps):
    """As `problem.batches`, also where nobody takes a step."""
    return problem.batches(len(steps), steps) if max(steps) else [[] for _ in steps]


def delivered(records):
    """Who received whose gradient of which step, and how often."""
    came = Counter()
    for record in records:
        if isinstance(record, Received):
            came.update((record.who, record.sender, step) for step in record.steps)
    return came


def everything(steps):
    """Each gradient to each of the others, once."""
    everybody = range(len(steps))
    return Counter((a, b, step) for a in everybody for b in everybody if a != b for step in range(steps[b]))


def check_delivery(call, seed):
    """Everybody gets each gradient of all others once."""
    steps, cluster = drawn(seed)
    _, records = run(PROBLEM, call, steps, **cluster)
    assert delivered(records) == everything(steps), f"{call}, seed {seed}, steps {steps}"
    dropped = {record.why for record in records if isinstance(record, Dropped)}
    assert all(why.startswith("too few updates for") for why in dropped), f"{call}, seed {seed}: {dropped}"


def check_sum(call, seed):
    """Every replica is w_0 - eta sum g, here of gradients that are known beforehand."""
    steps, cluster = drawn(seed)
    problem = Given()
    simulation, _ = run(problem, call, steps, **cluster)
    total = torch.zeros_like(problem.start)
    for own in batches(problem, steps):
        for batch in own:
            total += problem.a[list(batch)].sum(0)
    expected = (problem.start - LR * total).expand(len(steps), -1)
    assert close(weights(simulation), expected), f"{call}, seed {seed}, steps {steps}"


def check_training(call, seed):
    """The same of gradients at each worker's own weights, which depend on what has arrived."""
    steps, cluster = drawn(seed)
    log = [torch.zeros_like(PROBLEM.start)]
    simulation, _ = run(PROBLEM, call, steps, log=log, **cluster)
    expected = (PROBLEM.start - LR * torch.stack(log).sum(0)).expand(len(steps), -1)
    assert close(weights(simulation), expected), f"{call}, seed {seed}, steps {steps}"


EVERY = sorted({call for workers in (2, 3, 4, 5) for call in calls(workers)})
EVERY_SUM = sums(5)


def test_the_table_has_such_strategies():
    assert ["torus(rule=sum, topology=full)", *MORE] == EVERY_SUM
    assert {"torus", "torus(codec=int8, bucket_mb=0.00001)", "torus(rule=trimmed_mean(1))"} < set(EVERY)
    assert "allreduce(rule=median)" not in EVERY, "it goes in lock-step"


def seeds_of(call, count):
    """Seeds with as many workers as make it send to everybody."""
    return [seed for seed in range(count) if sends_to_everybody(call, len(drawn(seed)[0]))]


@pytest.mark.parametrize("call", EVERY)
def test_everybody_gets_every_gradient_once(call):
    for seed in seeds_of(call, 80):
        check_delivery(call, seed)


@pytest.mark.parametrize("call", EVERY_SUM)
@pytest.mark.parametrize("check", [check_sum, check_training])
def test_all_replicas_are_the_start_and_every_gradient(check, call):
    for seed in seeds_of(call, 80):
        check(call, seed)


@pytest.mark.parametrize("seed", range(8))
def test_gradients_that_travel_in_pieces_arrive_too(seed):
    """Each of the two parameters is a bucket."""
    steps, cluster = drawn(seed)
    records = []
    simulation = preset_bodies.simulation(
        strategy_from(MORE[0]), steps, observers=[records.append], **cluster
    )
    simulation.run()
    assert delivered(records) == everything(steps)
    assert any(isinstance(record, Sent) and not record.whole for record in records) or not any(steps)
    assert not any(isinstance(record, Dropped) for record in records)


@pytest.mark.parametrize("pause", [3, 5])
def test_a_checkpoint_knows_who_still_receives(pause):
    """Worker 0 has taken its last step before the pause, and gets what the others send after it."""
    steps = [2, 8, 9]
    first, second = (
        PROBLEM.simulation(strategy_from(EVERY_SUM[0]), PROBLEM.batches(3, steps), lr=LR) for _ in range(2)
    )
    first.run(pause_after=pause)
    second.restore(first.checkpoint())
    first.run()
    second.run()
    assert equal(weights(first), weights(second))
    assert close(weights(first), weights(first)[0].expand(3, -1))


# Whoever isn't sent everything


def test_on_an_incomplete_graph_a_worker_receives_from_those_who_heard_it_first():
    """In a ring of five, worker 0 has left after 2 steps. Its neighbours were 1 and 4."""
    steps, records = [2, 9, 9, 9, 9], []
    PROBLEM.simulation(
        torus(rule=sum_, topology=Ring()), PROBLEM.batches(5, steps), lr=LR, observers=[records.append]
    ).run()
    late = [record for record in records if isinstance(record, Sent) and 0 in record.to and record.step > 3]
    assert {(record.who, record.step) for record in late} == {
        (w, step) for w in (1, 4) for step in range(4, 9)
    }
    assert {(r.sender, r.step) for r in records if isinstance(r, Included) and r.who == 0 and r.step > 3} == {
        (w, step) for w in (1, 4) for step in range(4, 9)
    }


@pytest.mark.parametrize("strategy", [dpsgd(topology=Full()), gossip(p=1.0)], ids=repr)
def test_weights_are_not_sent_to_workers_that_have_left(strategy):
    """They would mix with those of workers that train on, and what such a worker has would be lost to the others. In
    lock-step the others send on until its departure counts for all, and that is reported."""
    records, steps = [], [2, 9, 9]
    simulation = PROBLEM.simulation(strategy, PROBLEM.batches(3, steps), observers=[records.append])
    simulation.run()
    sent = [r.step for r in records if isinstance(r, Sent) and 0 in r.to]
    read = [step for r in records if isinstance(r, Received) and r.who == 0 for step in r.steps]
    dropped = [step for r in records if isinstance(r, Dropped) and r.to == 0 for step in r.steps]
    assert sorted(sent) == sorted(read + dropped)
    assert sorted(step for step in sent if step > 2) == ([3, 3, 4, 4] if strategy.synchronous else [])
    assert bool(dropped) == strategy.synchronous


@pytest.mark.long
@pytest.mark.parametrize("call", EVERY)
def test_everybody_gets_every_gradient_once_in_many_runs(call):
    for seed in seeds_of(call, 1000):
        check_delivery(call, seed)


@pytest.mark.long
@pytest.mark.parametrize("call", EVERY_SUM)
@pytest.mark.parametrize("check", [check_sum, check_training])
def test_all_replicas_are_the_start_and_every_gradient_in_many_runs(check, call):
    for seed in seeds_of(call, 1000):
        check(call, seed)
