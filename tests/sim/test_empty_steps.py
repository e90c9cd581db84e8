"""Steps that count no samples, such as the last ones of `fast.shard`: a real gradient is sent, and counts nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from fast.codecs import error_feedback, top_k
from fast.core import Me, Strategy
from fast.core.seeds import stream_seed
from fast.corrections import explicit_momentum
from fast.rules import median, sum_
from fast.sim import Compute, Simulation, SimWorker
from fast.sim.checkers import Checkers
from fast.strategies.central.quorum import REPLACED
from fast.strategies.presets import (
    agn,
    allreduce,
    downpour,
    essp,
    project_adam,
    proxies,
    ssp,
    staleness_aware,
    tensorflow,
    vap,
)
from fast.trace import Applied, Dropped, Included, Received, Record

from .problem import (
    Batch,
    LeastSquares,
    PlainReplica,
    RandomCompute,
    RoundRobin,
    close,
    random_network,
    weights,
)
from .test_shares import applied_by


class Uncounted(tuple[int, ...]):
    """A batch whose gradient is computed and counts nothing."""

    __slots__ = ()


class Padded(LeastSquares):
    """The problem with batches that may be uncounted."""

    def worker(
        self, replica: PlainReplica, batches: Sequence[Batch], log: list[Tensor] | None = None
    ) -> SimWorker:
        inner = super().worker(replica, batches, log)

        def compute(batch: Batch) -> None:
            inner.compute(batch)
            replica.samples = 0 if isinstance(batch, Uncounted) else len(batch)

        return SimWorker(replica, iter(batches), compute)


PROBLEM = Padded()
LR = 0.02


def batches_of(workers: int, steps: int, *, uncounted: dict[int, Sequence[int]]) -> list[list[Batch]]:
    """Everybody's batches, some steps of some workers uncounted."""
    drawn = PROBLEM.batches(workers, steps)
    for worker, which in uncounted.items():
        for step in which:
            drawn[worker][step] = Uncounted(drawn[worker][step])
    return drawn


def ended_of(simulation: Simulation) -> list[tuple[int, Tensor]]:
    """Run it: the gradients that counted, in the order in which their steps ended, and whose they are."""
    found: list[tuple[int, Tensor]] = []

    def watch(me: Me, now: int) -> None:
        if me.samples:
            found.append((me.id, me.gradient.clone()))

    simulation.run(on_step=watch)
    return found


# Servers that apply pushes as they come


@pytest.mark.parametrize(
    "strategy",
    [ssp(1), ssp(inf), essp(2), vap(inf), vap(0.5), project_adam(), downpour(), staleness_aware(n=inf)],
    ids=repr,
)
def test_a_server_with_momentum_stays_where_it_is(strategy: Strategy) -> None:
    """Of two workers the first counts nothing, so the other's gradients are the whole mean, and all that moves."""
    batches = batches_of(2, 8, uncounted={0: range(8)})
    simulation = PROBLEM.simulation(strategy, batches, lr=LR, momentum=0.9, compute=RoundRobin())
    counted = ended_of(simulation)
    w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    for _, g in counted:
        v = 0.9 * v + g
        w = w - LR * v
    server = simulation.servers[0].me
    assert [worker for worker, _ in counted] == [1] * 8
    assert server.version == 8
    assert close(server.weights, w)


def test_a_correction_remembers_nothing_of_it() -> None:
    batches = batches_of(2, 6, uncounted={0: range(6), 1: [2]})
    simulation = PROBLEM.simulation(
        ssp(inf, correction=explicit_momentum(0.5)), batches, lr=LR, compute=RoundRobin()
    )
    applied, v = applied_by(simulation), torch.zeros_like(PROBLEM.start)
    counted = ended_of(simulation)
    assert len(applied) == len(counted) == 5
    for found, (_, g) in zip(applied, counted, strict=True):
        v = 0.5 * v + g
        assert close(found, v)


def test_a_proxy_writes_back_what_counted_and_no_more() -> None:
    batches, records = batches_of(4, 9, uncounted={0: range(9), 3: [1, 4]}), list[Record]()
    simulation = PROBLEM.simulation(
        proxies(group=2, flush=2), batches, lr=LR, momentum=0.9, compute=RandomCompute(),
        observers=[records.append],
    )  # fmt: skip
    simulation.run()
    proxies_of = {server.me.id for server in simulation.servers[1:]}
    assert sum(isinstance(each, Applied) and each.who in proxies_of for each in records) == 4 * 9 - 11


# Workers that go on with a copy


@pytest.mark.parametrize("strategy", [essp(3), downpour(fetch=4, push=2), agn(steps=4)], ids=repr)
def test_a_worker_does_not_move_its_copy_for_it(strategy: Strategy) -> None:
    """One that counts nothing has only what servers sent it; where nobody counts, that is the beginning."""
    simulation = PROBLEM.simulation(
        strategy, batches_of(2, 7, uncounted={0: range(7), 1: range(7)}), lr=LR, compute=RoundRobin()
    )
    simulation.run()
    assert torch.equal(weights(simulation), PROBLEM.start.expand(2, -1))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("empty", [0, 1, 2])
def test_what_is_gathered_has_the_samples_of_all_its_steps(empty: int, normalised: bool) -> None:
    """Three steps of which one counts nothing: the sum of two, which is an update whichever of them it was."""
    strategy = agn(steps=3) if normalised else downpour(fetch=3, push=3)
    records = list[Record]()
    simulation = PROBLEM.simulation(
        strategy, batches_of(2, 3, uncounted={0: [empty], 1: [empty]}), lr=LR, compute=RoundRobin(),
        observers=[records.append],
    )  # fmt: skip
    applied, counted = applied_by(simulation), ended_of(simulation)
    for worker, found in enumerate(applied):
        total = sum(g for who, g in counted if who == worker)
        assert close(found, total / 2 if normalised else total)
    assert len(applied) == sum(isinstance(each, Included) for each in records) == 2


@pytest.mark.parametrize("empty", [4, 5])
def test_what_was_pushed_is_in_no_residual_any_more(empty: int) -> None:
    """pushed + residual = all gradients that counted, also if the last step of a push counts nothing."""
    codec = error_feedback(top_k(0.2))
    simulation = PROBLEM.simulation(
        downpour(fetch=2, push=2, codec=codec), batches_of(2, 6, uncounted={0: [empty], 1: [empty]}), lr=1e-3,
        compute=RoundRobin(),
    )  # fmt: skip
    applied, counted = applied_by(simulation), ended_of(simulation)
    left = [
        coder["state"]["tensors"]["residual"]
        for worker in simulation.workers
        for coder in worker.me.coding.state_dict().values()
    ]
    assert len(left) == 2
    assert close(sum(applied) + sum(left), sum(g for _, g in counted))


# Sums, and the first n of a step


@pytest.mark.parametrize("strategy", [ssp(0, rule=sum_), allreduce(rule=sum_)], ids=repr)
@pytest.mark.parametrize("empty", [0, 2])
def test_a_sum_has_nothing_of_it(strategy: Strategy, empty: int) -> None:
    batches = batches_of(3, 1, uncounted={empty: [0]})
    simulation = PROBLEM.simulation(strategy, batches, lr=LR)
    simulation.run()
    total = sum(PROBLEM.gradient(PROBLEM.start, own[0]) for i, own in enumerate(batches) if i != empty)
    assert close(weights(simulation), (PROBLEM.start - LR * total).expand(3, -1))


@pytest.mark.parametrize(
    ("empty", "made_of"),
    [([], [0, 1, 2]), ([1], [0, 2, 3]), ([0, 1], [2, 3]), ([0, 1, 2], [3]), ([3], [0, 1, 2])],
    ids=repr,
)
def test_the_first_n_are_the_first_that_count(empty: list[int], made_of: list[int]) -> None:
    """Three of four are needed, or as many as can come; they come in the order of their ids."""
    batches = batches_of(4, 2, uncounted={i: [0] for i in empty})
    simulation = PROBLEM.simulation(tensorflow(backups=1), batches, lr=LR, compute=RoundRobin())
    simulation.run(stop=lambda simulation: simulation.me(4).version == 1)
    mean = sum(PROBLEM.gradient(PROBLEM.start, batches[i][0]) for i in made_of) / len(made_of)
    assert close(simulation.me(4).weights, PROBLEM.start - LR * mean)


@pytest.mark.parametrize("cancel", [False, True])
def test_where_nobody_counts_all_go_on_from_the_same_weights(cancel: bool) -> None:
    batches = batches_of(4, 2, uncounted={i: [0] for i in range(4)})
    simulation = PROBLEM.simulation(
        tensorflow(backups=1, cancel=cancel), batches, lr=LR, momentum=0.9, compute=RoundRobin()
    )
    simulation.run(stop=lambda simulation: simulation.me(4).version == 1)
    mean = sum(PROBLEM.gradient(PROBLEM.start, batches[i][1]) for i in range(3)) / 3
    assert close(simulation.me(4).weights, PROBLEM.start - LR * mean)


def schedule(seed: int) -> tuple[Strategy, list[list[Batch]]]:
    """Some backups, some shards, everybody's own number of steps, and a third of them uncounted."""
    random = Random(stream_seed(seed, "empty steps"))
    size = random.randint(2, 5)
    batches = PROBLEM.batches(size, [random.randint(1, 10) for _ in range(size)])
    mixed = [[Uncounted(rows) if random.random() < 0.3 else rows for rows in own] for own in batches]
    return tensorflow(backups=random.randint(1, size - 1), servers=random.choice([1, 2, 3])), mixed


@pytest.mark.parametrize("seed", range(30))
def test_a_quorum_goes_on_whoever_counts_nothing(seed: int) -> None:
    strategy, batches = schedule(seed)
    size, checkers = len(batches), Checkers(strategy)
    simulation = PROBLEM.simulation(
        strategy, batches, lr=LR, compute=RandomCompute(), seed=seed, observers=[checkers], spoil_letters=True,
        network=random_network(size, seed, size + strategy.servers(size)),
    )  # fmt: skip
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    assert [worker.me.steps for worker in simulation.workers] == [len(own) for own in batches]


def test_every_push_is_used_or_reported_where_a_rule_has_too_few() -> None:
    """Two of four die while theirs are collected, so the weights stay. A worker that was still computing on them
    finds its answer waiting, goes on at once, and pushes on the same weights again."""
    received, gone, reasons = Counter[Any](), Counter[Any](), Counter[str]()

    def watch(record: Record) -> None:
        if isinstance(record, Received) and record.tag == "push":
            received.update((record.sender, step) for step in record.steps)
        if isinstance(record, Dropped) and record.tag == "push":
            gone.update((record.sender, step) for step in record.steps)
            reasons[record.why] += 1

    compute = Compute(workers_s={0: 0.005, 1: 0.022, 2: 0.001, 3: 0.0011})
    simulation = PROBLEM.simulation(
        tensorflow(backups=1, rule=median()), PROBLEM.batches(4, 9), lr=LR, compute=compute, observers=[watch]
    )
    for worker in (2, 3):
        simulation.at(2_000_000, partial(simulation.kill, worker, notice_ns=100_000))
    simulation.run()
    assert simulation.me(4).version == 0
    assert reasons[REPLACED] == 1
    assert received == gone and set(received.values()) == {1}
