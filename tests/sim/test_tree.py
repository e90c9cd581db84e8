"""The binomial tree to one server: its shape, its order of additions, and what departures do to it."""

from collections import Counter
from math import ceil, log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.sim import TraceHash
from fast.sim.checkers import Checkers
from fast.strategies.central.tree import children
from fast.strategies.presets import allreduce, firecaffe
from fast.trace import Received, Sent

from .problem import LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.05


# The shape


@given(st.integers(1, 300))
def test_every_place_but_the_root_has_one_parent_which_lacks_its_lowest_bit(size):
    parents = {child: place for place in range(size) for child in children(place, size)}
    assert parents == {place: place - (place & -place) for place in range(1, size)}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 64, 100])
def test_the_root_has_a_logarithm_of_children_and_nobody_is_further_away(size):
    assert len(children(0, size)) == ceil(log2(size))
    for place in range(size):
        assert place.bit_count() <= ceil(log2(size))  # so many edges lead to the root, one for each bit


# The values


def tree_sum(gradients, place):
    """g of this place and then the sums of its children, added in the order of their places."""
    total = gradients[place - 1].clone()
    bit = 1
    while place + bit <= len(gradients) and place & (2 * bit - 1) == 0:
        total = total + tree_sum(gradients, place + bit)
        bit *= 2
    return total


def root_sum(gradients):
    total, place = tree_sum(gradients, 1), 2
    while place <= len(gradients):
        total = total + tree_sum(gradients, place)
        place *= 2
    return total


def run(batches, **options):
    simulation = PROBLEM.simulation(firecaffe(), batches, lr=LR, **options)
    simulation.run()
    return simulation


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 11])
def test_the_sum_is_made_in_the_order_of_the_tree(size):
    batches = PROBLEM.batches(size, 6)
    w, v = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
    for step in range(6):
        gradients = [PROBLEM.gradient(w, batches[worker][step]) for worker in range(size)]
        v = 0.9 * v + root_sum(gradients) / size
        w = w - LR * v
    simulation = run(batches, momentum=0.9)
    assert equal(weights(simulation), w.expand(size, -1))
    assert equal(simulation.servers[0].me.weights, w)


def test_it_is_synchronous_training_up_to_rounding_and_not_bitwise():
    batches = PROBLEM.batches(7, 9)
    mean = PROBLEM.simulation(allreduce(), batches, lr=LR, momentum=0.9)
    mean.run()
    tree = run(batches, momentum=0.9)
    assert close(weights(tree), weights(mean))
    assert not equal(weights(tree), weights(mean)), "the order of additions is another one"


def test_gradients_count_by_their_samples():
    sizes = [1, 4, 2, 3, 2]
    batches = [[rows[0][: sizes[n]]] for n, rows in enumerate(PROBLEM.batches(5, 1, size=4))]
    rows = [row for own in batches for row in own[0]]
    expected = PROBLEM.start - LR * PROBLEM.gradient(PROBLEM.start, tuple(rows))
    assert close(weights(run(batches)), expected.expand(5, -1))


def test_a_step_that_does_not_count_adds_nothing():
    batches = PROBLEM.batches(3, 1)
    simulation = PROBLEM.simulation(firecaffe(), batches, lr=LR)
    simulation.workers[1].worker.compute = lambda batch: None  # samples stay 0, as does the gradient
    simulation.run()
    both = (*batches[0][0], *batches[2][0])
    expected = PROBLEM.start - LR * PROBLEM.gradient(PROBLEM.start, both)
    assert close(weights(simulation), expected.expand(3, -1))


# The letters


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 8, 12])
def test_the_server_gets_a_logarithm_of_letters_and_sends_as_many(size):
    steps, got, sent = 5, Counter(), Counter()

    def watch(record):
        if isinstance(record, Received):
            got[record.who] += 1
        if isinstance(record, Sent):
            sent[record.who] += len(record.to)

    simulation = run(PROBLEM.batches(size, steps), observers=[watch])
    (server,) = (p.me.id for p in simulation.servers)
    assert got[server] == sent[server] == steps * ceil(log2(size + 1))
    assert sum(got.values()) == sum(sent.values()) == 2 * steps * size, (
        "each edge carries one up and one down"
    )


# Departures


def synchronous(batches):
    """Plain steps with the mean over those who still have a batch; everybody's weights at its end."""
    w, ends = PROBLEM.start.clone(), {}
    for step in range(max(map(len, batches)) + 1):
        ends.update({n: w for n, own in enumerate(batches) if len(own) == step})
        here = [own[step] for own in batches if len(own) > step]
        if here:
            w = w - LR * torch.stack([PROBLEM.gradient(w, batch) for batch in here]).mean(0)
    return torch.stack([ends[n] for n in range(len(batches))])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=11), st.integers(0, 1000))
def test_whoever_leaves_is_passed_by(counts, seed):
    """Whatever the timing is: the result depends only on who took part in which step."""
    batches = PROBLEM.batches(len(counts), counts)
    if not any(counts):
        return
    checkers = Checkers(firecaffe())
    simulation = PROBLEM.simulation(
        firecaffe(), batches, lr=LR, compute=RandomCompute(), seed=seed, spoil_letters=True,
        network=random_network(len(counts), seed, len(counts) + 1), observers=[checkers],
    )  # fmt: skip
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    assert close(weights(simulation), synchronous(batches))
    assert equal(weights(simulation), weights(run(batches)))


def test_after_departures_the_server_hears_the_children_of_those_who_left():
    counts = [2, 9, 9, 2, 9, 9, 9]  # places 1 and 4 leave; 4 has the children 5 and 6
    got = Counter()

    def watch(record):
        if isinstance(record, Received) and record.who == len(counts):
            got[record.sender] += 1

    run(PROBLEM.batches(len(counts), counts), observers=[watch])
    assert got == {0: 2, 1: 9, 3: 2, 4: 7, 5: 7}


def test_the_same_run_makes_the_same_trace():
    traces = []
    for _ in range(2):
        trace = TraceHash()
        run(PROBLEM.batches(6, [3, 8, 8, 2, 8, 8]), observers=[trace], compute=RandomCompute(), seed=3)
        traces.append(trace.hexdigest())
    assert traces[0] == traces[1]
