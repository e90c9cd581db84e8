"""Proxies in front of one server: synchronous training in groups, and write-back caches."""

from collections import Counter
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.sim import Compute, Network, Straggler
from fast.sim.checkers import Checkers
from fast.strategies.presets import allreduce, proxies, ssp
from fast.trace import Included, Sent

from .problem import LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.05


def run(strategy, batches, **options):
    simulation = PROBLEM.simulation(strategy, batches, lr=LR, **options)
    simulation.run()
    return simulation


def checked(strategy, batches, *, seed, **options):
    """With random times and links, and all that the strategy promises watched."""
    size, checkers = len(batches), Checkers(strategy)
    simulation = PROBLEM.simulation(
        strategy, batches, lr=LR, compute=RandomCompute(), seed=seed, spoil_letters=True, observers=[checkers],
        network=random_network(size, seed, size + strategy.servers(size)), **options,
    )  # fmt: skip
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    return simulation


def server_weights(simulation):
    return torch.stack([p.me.weights for p in simulation.servers])


# Synchronous


@pytest.mark.parametrize(("size", "group"), [(1, 4), (2, 2), (3, 2), (4, 4), (5, 2), (7, 3), (8, 4)])
def test_sums_of_groups_become_one_mean(size, group):
    """To the bit: members in their order, then groups in theirs."""
    batches = PROBLEM.batches(size, 6)
    w, v = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
    for step in range(6):
        sums = []
        for first in range(0, size, group):
            sums.append(PROBLEM.gradient(w, batches[first][step]))
            for worker in range(first + 1, min(first + group, size)):
                sums[-1] = sums[-1] + PROBLEM.gradient(w, batches[worker][step])
        together = sums[0]
        for other in sums[1:]:
            together = together + other
        v = 0.9 * v + together / size
        w = w - LR * v
    simulation = run(proxies(group=group), batches, momentum=0.9)
    assert equal(weights(simulation), w.expand(size, -1))
    assert equal(server_weights(simulation), w.expand(1 + ceil(size / group), -1))


def test_it_is_synchronous_training_up_to_rounding_and_not_bitwise():
    batches = PROBLEM.batches(7, 12)
    mean = run(allreduce(), batches, momentum=0.9)
    assert close(weights(run(proxies(group=3), batches, momentum=0.9)), weights(mean))
    assert not equal(weights(run(proxies(group=3), batches, momentum=0.9)), weights(mean))


def test_gradients_count_by_their_samples():
    sizes = [1, 4, 2, 3, 2]
    batches = [[rows[0][: sizes[n]]] for n, rows in enumerate(PROBLEM.batches(5, 1, size=4))]
    together = tuple(row for own in batches for row in own[0])
    expected = PROBLEM.start - LR * PROBLEM.gradient(PROBLEM.start, together)
    assert close(weights(run(proxies(group=2), batches)), expected.expand(5, -1))


def synchronous(batches):
    """Plain steps with the mean over those who still have a batch: everybody's weights at its end, and the last."""
    w, ends = PROBLEM.start.clone(), {}
    for step in range(max(map(len, batches)) + 1):
        ends.update({n: w for n, own in enumerate(batches) if len(own) == step})
        here = [own[step] for own in batches if len(own) > step]
        if here:
            w = w - LR * torch.stack([PROBLEM.gradient(w, batch) for batch in here]).mean(0)
    return torch.stack([ends[n] for n in range(len(batches))]), w


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.integers(2, 4), st.integers(0, 1000))
def test_members_and_whole_groups_may_leave(counts, group, seed):
    batches = PROBLEM.batches(len(counts), counts) if any(counts) else [[]] * len(counts)
    simulation = checked(proxies(group=group), batches, seed=seed)
    ends, last = synchronous(batches)
    assert close(weights(simulation), ends)
    servers = server_weights(simulation)
    assert close(servers[0], last)
    assert equal(servers, servers[:1].expand_as(servers)), "at the end all servers hold the same"


# Write-back caches


def spied(simulation):
    """What each server applies from now on."""
    applied = {}
    for server in simulation.servers:
        apply, mine = server.me.replica.apply, applied.setdefault(server.me.id, [])

        def spy(gradient, present, rates=None, apply=apply, mine=mine):
            mine.append(gradient.clone())
            apply(gradient, present, rates)

        server.me.replica.apply = spy
    return applied


def total(tensors):
    return sum(tensors, torch.zeros_like(PROBLEM.start))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=9),
    st.integers(2, 4),
    st.integers(2, 5),
    st.integers(0, 1000),
)
def test_every_gradient_is_applied_at_the_root_exactly_once(counts, group, flush, seed):
    """Also those that a proxy still held when its group had left."""
    strategy, size, log = proxies(group=group, flush=flush), len(counts), []
    batches, checkers = PROBLEM.batches(size, counts) if any(counts) else [[]] * size, Checkers(strategy)
    simulation = PROBLEM.simulation(
        strategy, batches, lr=LR, compute=RandomCompute(), seed=seed, spoil_letters=True, observers=[checkers],
        network=random_network(size, seed, size + strategy.servers(size)), log=log,
    )  # fmt: skip
    applied = spied(simulation)
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    root, *caches = applied.values()
    assert sum(map(len, caches)) == len(log) == sum(counts)
    assert close(total(root), total(each for cache in caches for each in cache))
    servers = server_weights(simulation)
    assert close(servers[0], PROBLEM.start - LR * total(root))
    assert equal(servers, servers[:1].expand_as(servers))


def test_what_is_at_the_root_and_what_is_dirty_are_all_gradients():
    """While nobody has left, each counts for 1 / P."""
    log = []
    simulation = PROBLEM.simulation(
        proxies(group=3, flush=4), PROBLEM.batches(7, 30), lr=LR, compute=RandomCompute(), seed=5, log=log
    )
    simulation.run(pause_after=25)
    root, *caches = simulation.servers
    flushed = (PROBLEM.start - root.me.weights) / LR
    dirty = [cache.me.state.dirty for cache in caches]
    assert len(log) == 7 * 25 and any(float(each.norm()) > 0 for each in dirty)
    assert close(flushed + total(dirty), total(log) / 7)


def caches(batches, group, flush, order):
    """A plain loop: pushes in this order, each with the gradient of what its worker read last, and its share of
    the samples: those of its own group as they are, those of the other groups as they were at their last flush."""
    size = len(batches)
    root = PROBLEM.start.clone()
    copies = [PROBLEM.start.clone() for _ in range(ceil(size / group))]
    dirty = [torch.zeros_like(root) for _ in copies]
    pushed, taken = [0] * len(copies), [0] * size
    read = [PROBLEM.start.clone() for _ in range(size)]
    last, told, heard = [{} for _ in copies], [[] for _ in copies], [[] for _ in copies]
    for worker in order:
        proxy = worker // group
        members = min(group, size - proxy * group)
        batch = batches[worker][taken[worker]]
        last[proxy][worker] = len(batch)
        known = [*last[proxy].values(), *heard[proxy]]
        taken[worker] += 1
        update = PROBLEM.gradient(read[worker], batch) * (len(batch) * len(known) / (sum(known) * size))
        copies[proxy] = copies[proxy] - LR * update
        dirty[proxy] = dirty[proxy] + update
        pushed[proxy] += 1
        if pushed[proxy] == flush * members:
            root = root - LR * dirty[proxy]
            copies[proxy], dirty[proxy], pushed[proxy] = root.clone(), torch.zeros_like(root), 0
            told[proxy] = list(last[proxy].values())
            heard[proxy] = [each for other, sizes in enumerate(told) if other != proxy for each in sizes]
        read[worker] = copies[proxy].clone()
    return read


@pytest.mark.parametrize("sizes", [[2], [2, 2, 6, 6], [1, 5, 3]], ids=repr)
@pytest.mark.parametrize(("size", "group", "flush"), [(4, 2, 2), (5, 2, 3), (6, 3, 2)])
def test_the_values_are_those_of_a_plain_loop(size, group, flush, sizes):
    """On an infinitely fast network pushes are taken in the order in which steps end."""
    order, got = [], {}
    batches = [
        [tuple(range(step, step + sizes[worker % len(sizes)])) for step in range(15)]
        for worker in range(size)
    ]
    simulation = PROBLEM.simulation(
        proxies(group=group, flush=flush), batches, lr=LR, compute=RandomCompute(), seed=3
    )

    def watch(me, now):
        order.append(me.id)
        got.setdefault(me.id, []).append(me.weights.clone())

    simulation.run(on_step=watch, pause_after=12)
    expected = caches(batches, group, flush, order)
    for worker in range(size):
        assert close(got[worker][-1], expected[worker])
    assert len({tuple(w[-1].tolist()) for w in got.values()}) > 1, "the copies differ in between"


def test_with_one_worker_it_is_training_without_anybody():
    batches = PROBLEM.batches(1, 9)
    for flush in (1, 3):
        w = PROBLEM.start.clone()
        for batch in batches[0]:
            w = w - LR * PROBLEM.gradient(w, batch)
        assert equal(weights(run(proxies(flush=flush), batches))[0], w)


# Bytes and staleness


def letters_to(strategy, batches, who, **options):
    found = Counter()

    def watch(record):
        if isinstance(record, Sent):
            found.update({record.tag: record.to.count(who) * (record.nbytes // len(record.to))})

    run(strategy, batches, observers=[watch], **options)
    return found


@pytest.mark.parametrize(("size", "group"), [(4, 2), (6, 3), (8, 4)])
def test_the_root_gets_one_letter_per_group(size, group):
    steps, letter = 6, 8 * 20 + 256
    batches = PROBLEM.batches(size, steps)
    alone = letters_to(ssp(bound=0), batches, size)
    assert alone["push"] == steps * size * letter
    farewells = size // group * 256
    found = letters_to(proxies(group=group), batches, size)
    assert found == {"flush": alone["push"] // group + farewells, "push": 0, "read": 0, "fresh": 0}


def test_a_larger_flush_sends_the_root_less():
    batches, letter = PROBLEM.batches(4, 12), 8 * 20 + 256
    for flush in (2, 3, 4):
        found = letters_to(proxies(group=2, flush=flush), batches, 4)
        assert found["flush"] == 2 * 12 // flush * letter + 2 * 256


def test_a_slow_group_holds_nobody_else_back():
    done = {}
    for strategy in (proxies(group=2), proxies(group=2, flush=2)):
        batches = PROBLEM.batches(6, 30)
        simulation = PROBLEM.simulation(
            strategy, batches, lr=LR, compute=Compute(0.02, Straggler(5.0)), network=Network(1e9, 1e-4)
        )
        ended = {}
        simulation.run(on_step=lambda me, now, ended=ended: ended.update({me.id: now}))
        done[strategy.flush] = ended
    assert max(done[1].values()) / min(done[1].values()) == pytest.approx(1.0, abs=0.01)
    assert done[2][5] > 4 * max(done[2][worker] for worker in range(5))


def test_staleness_is_counted_where_updates_are_applied():
    """At the root in its versions: two groups in turn, so each write-back finds one of the other."""
    late = {"push": [], "flush": []}

    def watch(record):
        if isinstance(record, Included) and record.tag in late:
            late[record.tag].append(record.staleness)

    batches = PROBLEM.batches(4, 8)
    simulation = PROBLEM.simulation(
        proxies(group=2, flush=2), batches, lr=LR, observers=[watch],
        compute=Compute(workers_s={0: 0.020, 1: 0.021, 2: 0.025, 3: 0.026}),
    )  # fmt: skip
    for server in simulation.servers:
        server.me.replica.samples = 1
    simulation.run()
    assert late["flush"][0] == 0 and set(late["flush"][1:8]) == {1}
    assert set(late["push"]) <= {0, 1, 2} and max(late["push"]) > 0


@pytest.mark.parametrize("wrong", [{"group": 1}, {"group": 2.5}, {"flush": 0}, {"flush": True}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(UsageError, match=r"a whole number from [12] on"):
        proxies(**wrong)
