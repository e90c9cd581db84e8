"""Synchronous training with backup workers, against an event loop of thirty lines."""

from __future__ import annotations

import heapq
from collections import Counter
from math import ceil

import pytest
import torch

from fast.codecs import fp16
from fast.errors import UsageError
from fast.rules import median, sum_, trimmed_mean
from fast.sim import Compute, Network, TraceHash, parse_straggler
from fast.strategies.central.quorum import LATE
from fast.strategies.presets import allreduce, ssp, tensorflow
from fast.trace import Applied, Dropped, Included, Received, Sent, Stepped

from .problem import LeastSquares, RandomCompute, RoundRobin, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR, SEED = 0.02, 3


class Books:
    """An observer: what each server did with the gradients that came."""

    def __init__(self, servers):
        self.received, self.used, self.late = Counter(), Counter(), Counter()
        self.updates = {server: [] for server in servers}
        self._open = {server: [] for server in servers}

    def __call__(self, record):
        match record:
            case Received(who=server, tag="push"):
                self.received[server] += 1
            case Included(who=server, sender=sender, staleness=staleness):
                assert staleness == 0
                self.used[server] += 1
                self._open[server].append(sender)
            case Dropped(who=server, tag="push", why=why):
                assert why == LATE
                self.late[server] += 1
            case Applied(who=server) if server in self.updates:
                self.updates[server].append(tuple(self._open[server]))
                self._open[server].clear()


# What it must be equal to


@pytest.mark.parametrize("servers", [1, 2, "workers"])
@pytest.mark.parametrize("call", [{"backups": 0}, {"quorum": 1.0}])
def test_without_backups_it_is_synchronous_bit_for_bit(servers, call):
    ends = []
    for strategy in (tensorflow(servers=servers, **call), ssp(bound=0), allreduce()):
        simulation = PROBLEM.simulation(
            strategy,
            PROBLEM.batches(4, [9, 12, 12, 5]),
            lr=LR,
            momentum=0.9,
            compute=RandomCompute(),
            network=random_network(4, 1, participants=8),
        )
        simulation.run()
        ends.append(weights(simulation))
    assert equal(ends[0], ends[1])
    assert equal(ends[0], ends[2])


def test_one_worker_is_plain_sgd_bit_for_bit():
    batches = PROBLEM.batches(1, 12)
    for strategy in (tensorflow(), tensorflow(quorum=0.5), tensorflow(backups=0)):
        simulation = PROBLEM.simulation(strategy, batches, lr=LR, momentum=0.9)
        simulation.run()
        w, v = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
        for batch in batches[0]:
            v = 0.9 * v + PROBLEM.gradient(w, batch)
            w -= LR * v
        assert equal(weights(simulation)[0], w)


def event_loop(size, needed, updates, duration_ns, *, cancel, batches=None):
    """So many updates with the first `needed` gradients of each version, over links that take no time.
    Returns the weights after each update, how many gradients were late, and when the last update was."""
    w, version, late, ends, held, trace = PROBLEM.start, 0, 0, [], {}, []
    taken = [0] * size

    def begin(worker, now):
        batch = batches[worker][taken[worker]] if batches else None
        took = duration_ns(worker, size, taken[worker], SEED)
        heapq.heappush(ends, (now + took, worker, version, w, batch))
        taken[worker] += 1

    for worker in range(size):
        begin(worker, 0)
    while version < updates:
        now, worker, stamp, of, batch = heapq.heappop(ends)
        if stamp < version:
            late += 1
            begin(worker, now)
            continue
        held[worker] = PROBLEM.gradient(of, batch) if batches else 0.0
        if len(held) < needed:
            continue
        w = w - LR * sum(held[each] for each in sorted(held)) / needed
        version += 1
        trace.append(w)
        ends, again, held = (ends, sorted(held), {}) if not cancel else ([], range(size), {})
        for each in again:
            begin(each, now)
    return trace, late, now


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize(("size", "backups"), [(4, 1), (5, 2), (6, 1), (3, 2)])
def test_it_is_the_event_loop(size, backups, cancel):
    updates = 25
    batches = PROBLEM.batches(size, 400)
    seen, books = [], Books([size])

    def after_step(me, now):
        server = simulation.me(size)
        if server.version > len(seen):
            seen.append((server.weights.clone(), now))

    simulation = PROBLEM.simulation(
        tensorflow(backups=backups, cancel=cancel),
        batches,
        lr=LR,
        compute=RandomCompute(),
        seed=SEED,
        observers=[books],
    )
    simulation.run(on_step=after_step, stop=lambda simulation: simulation.me(size).version >= updates)
    trace, late, when = event_loop(
        size, size - backups, updates, RandomCompute().duration_ns, cancel=cancel, batches=batches
    )
    assert len(seen) >= updates
    for (found, _), expected in zip(seen, trace, strict=False):
        assert close(found, expected)
    assert seen[updates - 1][1] == when
    assert cancel or late > 5
    assert late <= books.late[size] <= late + size  # those who were computing at the end come late too
    assert not cancel or books.late[size] <= size


# Exactly n, all on the present weights


@pytest.mark.parametrize("seed", range(20))
def test_every_update_is_made_of_exactly_n_present_gradients(seed):
    size, backups, servers = 5, 1 + seed % 3, 1 + seed % 2
    owners = range(size, size + servers)
    books = Books(owners)
    simulation = PROBLEM.simulation(
        tensorflow(backups=backups, servers=servers),
        PROBLEM.batches(size, 30),
        lr=LR,
        compute=RandomCompute(),
        network=random_network(size, seed, participants=size + servers),
        seed=seed,
        observers=[books],
    )
    simulation.run(stop=lambda simulation: simulation.total_samples >= 100)
    needed = size - backups
    for server in owners:
        whole = [update for update in books.updates[server] if len(update) == needed]
        assert len(whole) >= 10
        assert all(len(set(update)) == len(update) and list(update) == sorted(update) for update in whole)
        assert books.updates[server][: len(whole)] == whole  # only when workers have left there are fewer
        assert books.used[server] + books.late[server] == books.received[server]
        assert books.late[server] > 0


@pytest.mark.parametrize(
    ("quorum", "size", "needed"),
    [(0.5, 4, 2), (0.5, 5, 3), (0.75, 4, 3), (0.1, 4, 1), (2 / 3, 3, 2), (0.6, 5, 3)],
)
def test_a_quorum_is_a_share_of_the_workers(quorum, size, needed):
    strategy = tensorflow(quorum=quorum)
    assert strategy.contributors(size) == needed == ceil(round(quorum * size, 9))
    books = Books([size])
    simulation = PROBLEM.simulation(
        strategy, PROBLEM.batches(size, 30), lr=LR, compute=RandomCompute(), observers=[books]
    )
    simulation.run(stop=lambda simulation: simulation.total_samples >= 150)
    assert {len(update) for update in books.updates[size][:10]} == {needed}


def test_a_worker_that_is_always_slow_holds_nobody_back():
    finished = {}
    PROBLEM.simulation(
        tensorflow(backups=1), PROBLEM.batches(4, 20), lr=LR, compute=Compute(0.02, parse_straggler("10x"))
    ).run(on_step=lambda me, now: finished.setdefault((me.id, me.steps), now))
    assert [finished[worker, 19] for worker in range(3)] == [19 * 20_000_000] * 3
    finished.clear()
    PROBLEM.simulation(
        tensorflow(backups=0), PROBLEM.batches(4, 20), lr=LR, compute=Compute(0.02, parse_straggler("10x"))
    ).run(on_step=lambda me, now: finished.setdefault((me.id, me.steps), now))
    assert finished[0, 19] == 19 * 200_000_000


# Departures


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_those_who_are_left_make_the_quorum(seed, cancel):
    counts = [3, 25, 7, 20, 12]
    simulation = PROBLEM.simulation(
        tensorflow(backups=2, cancel=cancel, servers=1 if cancel else 2),
        PROBLEM.batches(5, counts),
        lr=LR,
        compute=RandomCompute(),
        network=random_network(5, seed, participants=7),
        seed=seed,
    )
    simulation.run()
    assert [p.me.steps for p in simulation.workers] == counts


@pytest.mark.parametrize("call", [{"backups": 2}, {"quorum": 0.6}])
def test_backups_take_the_places_of_those_who_leave(call):
    """An update is one of 3 of 5 gradients, also when 4 and 3 workers are left; of 2 and of 1 only when no more are."""
    books = Books([5])
    simulation = PROBLEM.simulation(
        tensorflow(**call),
        PROBLEM.batches(5, [2, 10, 25, 40, 50]),
        lr=LR,
        compute=RandomCompute(),
        observers=[books],
    )
    simulation.run()
    sizes = [len(update) for update in books.updates[5]]
    assert sizes == sorted(sizes, reverse=True) and set(sizes) == {3, 2, 1}
    after = [update for update in books.updates[5][15:] if len(update) == 3]
    assert {worker for update in after for worker in update} == {2, 3, 4}


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_dead_workers_are_not_waited_for(dead):
    stepped = Counter()

    def watch(record):
        if isinstance(record, Stepped):
            stepped[record.who] += 1

    simulation = PROBLEM.simulation(
        tensorflow(backups=1),
        PROBLEM.batches(5, 30),
        lr=LR,
        compute=RandomCompute(),
        network=Network(1e6, 1e-4),
        observers=[watch],
    )
    for worker in range(dead):
        simulation.at(
            5_000_000 + 1000 * worker, lambda worker=worker: simulation.kill(worker, notice_ns=10**7)
        )
    simulation.run()
    assert [stepped[worker] for worker in range(dead, 5)] == [30] * (5 - dead)


# How much it helps


STUMBLING = Compute(
    0.02, parse_straggler("5x@0.1"), workers_s={worker: 0.02 + 1.7e-6 * worker for worker in range(5)}
)
"""Not exactly equally fast, so that no two are done at the same instant and the order is no accident."""


@pytest.mark.parametrize(("size", "backups", "cancel"), [(4, 0, False), (5, 1, False), (5, 1, True)])
def test_stumbling_workers_take_the_time_of_the_event_loop(size, backups, cancel):
    strategy = tensorflow(backups=backups, cancel=cancel)
    simulation = PROBLEM.simulation(strategy, PROBLEM.batches(size, 400), compute=STUMBLING, seed=SEED)
    when = {}
    simulation.run(
        on_step=lambda me, now: when.setdefault(simulation.me(size).version, now),
        stop=lambda simulation: simulation.me(size).version >= 120,
    )
    for updates in (50, 119):
        assert (
            when[updates]
            == event_loop(size, size - backups, updates, STUMBLING.duration_ns, cancel=cancel)[2]
        )


def test_a_backup_worker_makes_four_workers_that_stumble_faster():
    """Each worker takes five times as long in a random tenth of its steps. In lock-step a step takes
    1 + 4 (1 - 0.9^4) times as long as it could. With four of five and late work given up, only two or more that
    stumble at once count: 1 + 4 (1 - 0.9^5 - 5 * 0.1 * 0.9^4). Late work that is finished keeps its worker
    from the next steps, so that is worth less."""

    def updates_per_second(size, needed, cancel=False, updates=8_000):
        return updates / event_loop(size, needed, updates, STUMBLING.duration_ns, cancel=cancel)[2] * 1e9

    together = updates_per_second(4, 4)
    lock_step, without_one = 1 + 4 * (1 - 0.9**4), 1 + 4 * (1 - 0.9**5 - 5 * 0.1 * 0.9**4)
    assert together == pytest.approx(50 / lock_step, rel=0.03)
    assert updates_per_second(5, 4, cancel=True) / together == pytest.approx(
        lock_step / without_one, rel=0.02
    )
    assert lock_step / without_one == pytest.approx(1.79, abs=0.005)
    assert updates_per_second(5, 4) / together == pytest.approx(1.37, rel=0.03)


# Giving up


def test_with_cancel_late_work_is_given_up_at_once_and_not_sent():
    sent, stepped = Counter(), Counter()

    def watch(record):
        if isinstance(record, Sent) and record.tag == "push":
            sent[record.who] += 1
        if isinstance(record, Stepped):
            stepped[record.who, record.at_ns] += 1

    simulation = PROBLEM.simulation(
        tensorflow(backups=1, cancel=True),
        PROBLEM.batches(3, 10),
        lr=LR,
        compute=Compute(0.02, parse_straggler("10x")),
        observers=[watch],
    )
    simulation.run(pause_after=8)
    assert sent == {0: 8, 1: 8}
    assert stepped == {(worker, 20_000_000 * step): 1 for worker in range(3) for step in range(1, 9)}
    assert equal(weights(simulation)[2], simulation.me(3).weights)
    assert simulation.now_ns == 8 * 20_000_000  # nothing of what was given up is still to happen
    assert simulation.checkpoint()["now_ns"] == simulation.now_ns


def test_the_gradient_of_a_step_that_was_given_up_is_nowhere():
    """The slow worker's data doesn't matter at all."""
    ends = []
    for rows in ((0, 1), (30, 31)):
        batches = [*PROBLEM.batches(2, 10), [rows] * 10]
        simulation = PROBLEM.simulation(
            tensorflow(backups=1, cancel=True), batches, lr=LR, compute=Compute(0.02, parse_straggler("10x"))
        )
        simulation.run(pause_after=8)
        ends.append(simulation.me(3).weights)
    assert equal(*ends)


# The rest


def test_same_seed_same_trace():
    for cancel in (False, True):
        traces = set()
        for _ in range(2):
            trace = TraceHash()
            PROBLEM.simulation(
                tensorflow(backups=1, cancel=cancel, codec=fp16()),
                PROBLEM.batches(4, 12),
                lr=LR,
                compute=RandomCompute(),
                network=random_network(4, 2, participants=5),
                observers=[trace],
            ).run()
            traces.add(trace.hexdigest())
        assert len(traces) == 1


# A rule for the first n


def trimmed(stack):
    return stack.sort(0).values[1:-1].mean(0)


@pytest.mark.parametrize(
    ("rule", "reference"),
    [
        (sum_, lambda stack: stack.sum(0)),
        (median(), lambda stack: stack.median(0).values),
        (trimmed_mean(hostile=1), trimmed),
        (lambda own, weight, arrived: 3 * own + len(arrived), lambda stack: 3 * stack[0] + len(stack) - 1),
    ],
    ids=["sum", "median", "trimmed_mean", "own"],
)
@pytest.mark.parametrize("servers", [1, 2])
def test_a_rule_merges_the_first_n(rule, reference, servers):
    """Five of seven, which are done in turns: those with the ids from 0 to 4."""
    needed, batches = 5, PROBLEM.batches(7, 9, size=3)
    simulation = PROBLEM.simulation(
        tensorflow(backups=2, rule=rule, servers=servers), batches, lr=LR, compute=RoundRobin()
    )
    simulation.run(stop=lambda simulation: all(server.me.version == 1 for server in simulation.servers))
    first = torch.stack([PROBLEM.gradient(PROBLEM.start, own[0]) for own in batches[:needed]])
    found = torch.cat([server.me.weights for server in simulation.servers])
    assert close(found, PROBLEM.start - LR * reference(first))


def test_with_a_rule_a_hostile_worker_changes_nothing():
    """Whatever the first of them sends: the median of the three others and of that is between theirs."""
    batches, applied = PROBLEM.batches(5, 6), []
    simulation = PROBLEM.simulation(
        tensorflow(backups=1, rule=median()), batches, lr=LR, compute=RoundRobin()
    )
    compute, replica = simulation.workers[0].worker.compute, simulation.workers[0].me.replica

    def lie(batch):
        compute(batch)
        replica.gradient.fill_(1e30)

    object.__setattr__(simulation.workers[0].worker, "compute", lie)
    server = simulation.servers[0].me.replica
    apply = server.apply

    def spy(gradient, present, rates=None):
        applied.append(gradient.clone())
        apply(gradient, present, rates)

    server.apply = spy
    simulation.run(stop=lambda simulation: simulation.me(5).version == 1)
    honest = torch.stack([PROBLEM.gradient(PROBLEM.start, own[0]) for own in batches[1:4]])
    assert (applied[0] >= honest.min(0).values).all() and (applied[0] <= honest.max(0).values).all()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: tensorflow(backups=-1), r"backups=-1.*from 0 on"),
        (lambda: tensorflow(backups=1, quorum=0.5), "give one of them"),
        (lambda: tensorflow(quorum=0), "more than 0 and at most 1"),
        (lambda: tensorflow(quorum=1.5), "more than 0 and at most 1"),
        (lambda: tensorflow(cancel=True, servers=2), "late for one shard"),
        (lambda: tensorflow(backups=4).check(4), "none is left"),
        (lambda: PROBLEM.simulation(tensorflow(backups=5), PROBLEM.batches(3, 2)), "none is left"),
    ],
)
def test_what_can_not_be_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


def test_too_few_for_the_backups_is_fine_alone():
    tensorflow(backups=4).check(1)
    assert tensorflow(backups=4).contributors(1) == 1
