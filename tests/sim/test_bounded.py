"""Servers with a bound: plain loops for the values, every event for the promises, and what the bounds equal.

Without a network every letter arrives at the time at which it is sent, and with random times no two steps
end at once: then a queue of (time, worker) is all there is to a run, and a plain loop can do it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import inf
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from fast.core import Strategy
from fast.core.seeds import stream_seed
from fast.parts import sum_
from fast.sim import NETWORKS, Compute, Network, Simulation
from fast.strategies.central.cached import CachedReads
from fast.strategies.presets import allreduce, downpour, essp, mxnet, parameter_server, petuum, ssp, vap
from fast.trace import Included, Received, Record, Sent, Stepped

from .problem import (
    Batch,
    LeastSquares,
    RandomCompute,
    close,
    equal,
    random_network,
    weights,
)

PROBLEM = LeastSquares()
LR, MOMENTUM = 0.02, 0.6
EQUAL, UNEQUAL = [9, 9, 9], [9, 4, 12, 7]
every_count = pytest.mark.parametrize("counts", [EQUAL, UNEQUAL], ids=repr)


def simulated(strategy: Strategy, counts: Sequence[int], *, seed: int = 0, **options: Any) -> Simulation:
    batches = PROBLEM.batches(len(counts), counts)
    options = {"lr": LR, "momentum": MOMENTUM, "compute": RandomCompute(), **options}
    return PROBLEM.simulation(strategy, batches, seed=seed, **options)


class Stumbling:
    """Equal workers that stumble now and then."""

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        random = Random(stream_seed(seed, "stumbling", worker, step))
        return int(1_000_000 * (random.uniform(0.9, 1.1) + 2 * (random.random() < 0.1)))


# The same trainings as plain loops


@dataclass
class Plain:
    """Workers that end their steps one after another, and a server with SGD and momentum."""

    counts: Sequence[int]
    seed: int = 0
    w: Tensor = field(default_factory=PROBLEM.start.clone)
    v: Tensor = field(default_factory=lambda: torch.zeros_like(PROBLEM.start))

    def __post_init__(self) -> None:
        size = len(self.counts)
        self.batches: list[list[Batch]] = PROBLEM.batches(size, self.counts)
        self.x = [PROBLEM.start] * size
        self.clock = [0] * size
        self.version, self.read = 0, [0] * size
        self.staleness: list[int] = []
        self.here = set(range(size))
        self.queue = [(self.duration(i), i) for i in range(size)]
        heapify(self.queue)

    def duration(self, worker: int) -> int:
        step = self.clock[worker]
        return RandomCompute().duration_ns(worker, len(self.counts), step, self.seed)

    def steps(self) -> Iterator[tuple[int, int, Tensor]]:
        """When each step ends, whose it is, and its gradient."""
        while self.queue:
            now, i = heappop(self.queue)
            yield now, i, PROBLEM.gradient(self.x[i], self.batches[i][self.clock[i]])

    def moved(self, g: Tensor) -> tuple[Tensor, Tensor]:
        v = MOMENTUM * self.v + g
        return self.w - LR * v, v

    def apply(self, worker: int, g: Tensor) -> None:
        self.w, self.v = self.moved(g)
        self.staleness.append(self.version - self.read[worker])
        self.version += 1
        self.clock[worker] += 1

    def goes_on(self, worker: int, now: int) -> None:
        if self.clock[worker] == self.counts[worker]:
            self.here.discard(worker)
        else:
            heappush(self.queue, (now + self.duration(worker), worker))

    @property
    def slowest(self) -> float:
        return min((self.clock[i] for i in self.here), default=inf)


def plain_ssp(counts: Sequence[int], bound: float, seed: int = 0) -> Plain:
    """A read is answered when nobody is more than `bound` clocks behind."""
    run, waiting = Plain(counts, seed), set[int]()
    for now, i, g in run.steps():
        run.apply(i, g / len(run.here))
        waiting.add(i)
        while ready := {j for j in waiting if run.clock[j] - run.slowest <= bound}:
            waiting -= ready
            for j in ready:
                run.x[j], run.read[j] = run.w, run.version
                run.goes_on(j, now)
    return run


@dataclass
class Reader:
    """What a worker that keeps a copy knows: everybody's clocks up to `holds`, and its own moves."""

    u: Tensor = field(default_factory=lambda: torch.zeros_like(PROBLEM.start))
    moves: list[Tensor] = field(default_factory=list)
    holds: float = 0
    needs: float = 0
    asks: bool = False
    mail: tuple[Tensor, float, int] | None = None


def plain_copies(counts: Sequence[int], bound: int, *, eager: bool, seed: int = 0) -> Plain:
    """The newest weights that have come, and the own moves that are not in them; it waits only if it must."""
    run, readers, waiting, told = Plain(counts, seed), [Reader() for _ in counts], set[int](), 0.0

    def tell(j: int) -> None:
        readers[j].mail, readers[j].asks = (run.w, run.slowest, run.clock[j]), False

    def read(j: int) -> None:
        if readers[j].mail is not None:
            run.x[j], readers[j].holds, own = readers[j].mail
            run.x[j] = run.x[j] + sum(readers[j].moves[own:])
            readers[j].mail = None

    for now, i, g in run.steps():
        reader, share = readers[i], 1 / len(run.here)
        reader.u = MOMENTUM * reader.u + g * share
        reader.moves.append(-LR * reader.u)
        run.x[i] = run.x[i] + reader.moves[-1]
        reader.needs = run.clock[i] + 1 - (bound if len(run.here) > 1 else 0)
        reader.asks = not eager and reader.holds < reader.needs
        read(i)
        run.apply(i, g * share)
        waiting.add(i)
        while True:
            ready = {j for j in waiting if readers[j].holds >= readers[j].needs}
            waiting -= ready
            for j in ready:
                run.goes_on(j, now)
            asking = {j for j in waiting if readers[j].asks and run.clock[j] - run.slowest <= bound}
            if eager and run.slowest != told:
                asking, told = set(run.here), run.slowest
            for j in asking:
                tell(j)
            for j in waiting:
                read(j)
            if not ready and not asking:
                break
    return run


def plain_vap(counts: Sequence[int], limit: float, seed: int = 0) -> Plain:
    """A push is admitted if all who compute are then still near; else it waits, and all behind it too."""
    run, held = Plain(counts, seed), list[tuple[int, Tensor]]()
    reading = dict.fromkeys(range(len(counts)), PROBLEM.start)
    for now, i, g in run.steps():
        del reading[i]
        held.append((i, g))
        admitted = [i]
        while admitted:
            admitted = []
            while held:
                after, _ = run.moved(held[0][1] / len(run.here))
                if any(float((after - x).abs().max()) >= limit for x in reading.values()):
                    break
                j, late = held.pop(0)
                run.apply(j, late / len(run.here))
                admitted.append(j)
            for j in admitted:
                run.x[j] = run.w
                run.goes_on(j, now)
                if j in run.here:
                    reading[j] = run.w
            admitted = [j for j in admitted if j not in run.here]  # who leaves may make room for others
    return run


def check_same(simulation: Simulation, run: Plain) -> None:
    simulation.run()
    assert close(simulation.servers[0].me.weights, run.w)
    assert close(weights(simulation), torch.stack(run.x))


@every_count
@pytest.mark.parametrize("bound", [1, 2, inf])
def test_ssp_is_the_plain_loop(counts: list[int], bound: float):
    for seed in range(4):
        staleness: list[int] = []
        simulation = simulated(ssp(bound), counts, seed=seed, observers=[stale_into(staleness)])
        run = plain_ssp(counts, bound, seed)
        check_same(simulation, run)
        assert staleness == run.staleness


def stale_into(found: list[int]) -> Any:
    return lambda record: found.append(record.staleness) if isinstance(record, Included) else None


@every_count
@pytest.mark.parametrize("bound", [1, 2, 4])
@pytest.mark.parametrize("eager", [True, False])
def test_copies_with_own_moves_are_the_plain_loop(counts: list[int], bound: int, eager: bool):
    for seed in range(4):
        strategy = essp(bound) if eager else CachedReads(bound=bound, eager=False)
        check_same(
            simulated(strategy, counts, seed=seed), plain_copies(counts, bound, eager=eager, seed=seed)
        )


@every_count
@pytest.mark.parametrize("limit", [0, 0.05, 0.2, inf])
def test_vap_is_the_plain_loop(counts: list[int], limit: float):
    for seed in range(4):
        check_same(simulated(vap(limit), counts, seed=seed), plain_vap(counts, limit, seed))


def test_the_loops_differ_so_the_tests_can_tell():
    """What is compared above isn't the same for every bound: schedules are wild enough to block somebody."""
    ends = [plain_ssp(EQUAL, bound).w for bound in (1, 2, inf)]
    ends += [plain_copies(EQUAL, bound, eager=eager).w for bound in (1, 2, 4) for eager in (True, False)]
    ends += [plain_vap(EQUAL, limit).w for limit in (0, 0.05, 0.2)]
    for one, other in combinations(ends, 2):
        assert not close(one, other, 1e-6)


# What the bounds equal


@pytest.mark.parametrize(
    "strategy",
    [
        essp(0),
        petuum(0),
        petuum(0, eager=False),
        parameter_server(0, servers=3),
        mxnet("dist_sync"),
        ssp(0, servers=2),
    ],
    ids=repr,
)
@every_count
def test_bound_0_is_allreduce_bit_for_bit(strategy: Strategy, counts: list[int]):
    together = simulated(allreduce(), counts)
    network = random_network(len(counts), 3, participants=2 * len(counts))
    server = simulated(strategy, counts, network=network, seed=3)
    together.run()
    server.run()
    assert equal(weights(together), weights(server))


def test_bound_0_with_the_rule_sum_takes_steps_that_are_as_many_times_longer():
    mean, added = simulated(ssp(0), EQUAL), simulated(ssp(0, rule=sum_), EQUAL, lr=LR / 3)
    mean.run()
    added.run()
    assert close(weights(mean), weights(added))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_bound_inf_is_downpour_at_a_rate_divided_by_the_workers(size: int):
    for seed in range(5):
        ends = [
            asynchronous(strategy, size, lr, seed)
            for strategy, lr in ((ssp(inf), LR), (ssp(inf, servers=2), LR), (downpour(), LR / size))
        ]
        for other in ends[1:]:
            assert close(ends[0][0], other[0])
            assert ends[0][1] == other[1]


def asynchronous(strategy: Strategy, size: int, lr: float, seed: int) -> tuple[Tensor, list[int]]:
    """The weights after 12 steps of each, before anybody leaves, and every update's staleness at a server."""
    staleness: list[int] = []
    simulation = simulated(strategy, [13] * size, seed=seed, lr=lr, observers=[stale_into(staleness)])
    simulation.run(pause_after=12)
    return weights(simulation), staleness[:: len(simulation.servers)]


@every_count
def test_without_a_limit_vap_is_asynchronous_bit_for_bit(counts: list[int]):
    for seed in range(4):
        network = random_network(len(counts), seed, participants=len(counts) + 1)
        ends = []
        for strategy in (vap(inf), ssp(inf)):
            simulation = simulated(strategy, counts, seed=seed, network=network)
            done: list[tuple[int, int]] = []
            simulation.run(on_step=lambda me, now, done=done: done.append((me.id, now)))
            ends.append((weights(simulation), simulation.servers[0].me.weights, done))
        assert equal(ends[0][0], ends[1][0]) and equal(ends[0][1], ends[1][1])
        assert ends[0][2] == ends[1][2]


@pytest.mark.parametrize(
    "strategy", [ssp(2), essp(2), petuum(1), petuum(2, eager=False), vap(0.01)], ids=repr
)
def test_alone_it_is_plain_sgd(strategy: Strategy):
    simulation = simulated(strategy, [12], network=NETWORKS["1gbit"])
    simulation.run()
    w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    for batch in PROBLEM.batches(1, 12)[0]:
        v = MOMENTUM * v + PROBLEM.gradient(w, batch)
        w = w - LR * v
    assert equal(weights(simulation)[0], w)


# How old what is read is


class Ages:
    """An observer: of every step, how many clocks behind the worker's own that is which what it has holds."""

    def __init__(self, workers: int) -> None:
        self._pushed, self._sent = [0] * workers, [list[int]() for _ in range(workers)]
        self._holds, self.ages, self.steps = [0] * workers, list[int](), list[tuple[int, int, int]]()

    def __call__(self, record: Record) -> None:
        workers = len(self._pushed)
        match record:
            case Included(sender=sender, step=step):
                self._pushed[sender] = step + 1
            case Sent(who=who, to=to) if who >= workers:
                for worker in to:
                    self._sent[worker].append(min(self._pushed))
            case Received(who=who, letters=letters) if who < workers:
                self._holds[who] = [self._sent[who].pop(0) for _ in range(letters)][-1]
            case Stepped(who=who, step=step, at_ns=at_ns):
                self.ages.append(step - self._holds[who])
                self.steps.append((who, step, at_ns))

    @property
    def mean(self) -> float:
        return sum(self.ages) / len(self.ages)


def ages_of(strategy: Strategy, seed: int) -> Ages:
    ages = Ages(4)
    simulation = simulated(strategy, [25] * 4, seed=seed, observers=[ages], compute=Stumbling())
    simulation.run(pause_after=25)
    return ages


@pytest.mark.parametrize("bound", [2, 3, 6])
def test_eager_reads_are_younger_than_those_that_are_asked_for(bound: int):
    """Without a network both have the same schedule, to the nanosecond. Stale-synchronous reads as their
    authors have them use a copy for as long as the bound allows."""
    for seed in range(5):
        eager, lazy = (ages_of(CachedReads(bound=bound, eager=each), seed) for each in (True, False))
        assert sorted(eager.steps) == sorted(lazy.steps)
        assert eager.mean <= lazy.mean
        assert max(eager.ages) <= bound == max(lazy.ages)


def test_the_age_of_eager_reads_hardly_depends_on_the_bound():
    for seed in range(3):
        eager, lazy = (
            [ages_of(CachedReads(bound=bound, eager=each), seed).mean for bound in (6, 12)]
            for each in (True, False)
        )
        assert eager[1] < 1.1 * eager[0]
        assert lazy[1] > 1.4 * lazy[0]


def test_eager_workers_wait_for_nobody_who_is_within_the_bound():
    """Where letters take half as long as a step, who asks in every step waits for every answer."""
    times = {}
    for name, strategy in (
        ("each", ssp(4)),
        ("lazy", CachedReads(bound=4, eager=False)),
        ("eager", essp(4)),
    ):
        simulation = simulated(strategy, [21] * 4, network=Network(1e12, 0.005), compute=Compute(0.01))
        simulation.run(pause_after=20, on_step=lambda me, now, name=name: times.update({name: now}))
    assert times["eager"] == 20 * 10_000_000
    assert times["each"] == 20 * 20_000_000
    assert times["eager"] < times["lazy"] < times["each"]
