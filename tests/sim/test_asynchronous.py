"""Asynchronous presets: what holds whatever the times, and plain loops where the times are fixed."""

from collections import Counter
from math import inf

import pytest
import torch

from fast.core.letter import GRADIENT
from fast.parts import Full, Torus, sum_
from fast.sim import NETWORKS, Compute, parse_straggler
from fast.sim.faults import Director, parse_scenario
from fast.strategies.presets import gossip, ssp, torus
from fast.trace import Dropped, Included, Sent, Stepped, Waited

from .problem import INSTANT, LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.01


# Stale-synchronous


class Spread:
    """An observer: the distance between the fastest and the slowest worker at every step."""

    def __init__(self, size):
        self.steps, self.widest = [0] * size, 0

    def __call__(self, record):
        if isinstance(record, Stepped):
            self.steps[record.who] = record.step
            self.widest = max(self.widest, max(self.steps) - min(self.steps))


FEW_AND_MANY = (
    range(100),
    pytest.param(range(100, 1100), marks=[pytest.mark.long, pytest.mark.timeout(900)]),
)
"""Seeds of random schedules: some on every run, many in `make test-long`."""


@pytest.mark.parametrize("seeds", FEW_AND_MANY)
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_ssp_no_worker_runs_ahead_of_the_bound(bound, seeds):
    widest = 0
    for seed in seeds:
        spread = Spread(4)
        simulation = PROBLEM.simulation(
            ssp(bound=bound),
            PROBLEM.batches(4, 12),
            lr=LR,
            compute=RandomCompute(),
            network=random_network(4, seed, participants=5),
            seed=seed,
            observers=[spread],
        )
        simulation.run()
        assert spread.widest <= bound + 1, f"seed {seed}"
        widest = max(widest, spread.widest)
    assert widest == bound + 1  # the schedules are wild enough to reach the limit


def test_ssp_without_a_bound_does_run_ahead():
    spread = Spread(4)
    PROBLEM.simulation(
        ssp(bound=inf),
        PROBLEM.batches(4, 40),
        lr=LR,
        compute=Compute(0.02, parse_straggler("10x")),
        observers=[spread],
    ).run()
    assert spread.widest > 30


@pytest.mark.parametrize(("bound", "waits"), [(inf, False), (2, True), (0, True)])
def test_ssp_waits_for_a_straggler_only_within_a_bound(bound, waits):
    waited, finished = Counter(), {}
    simulation = PROBLEM.simulation(
        ssp(bound=bound),
        PROBLEM.batches(3, 20),
        lr=LR,
        compute=Compute(0.02, parse_straggler("4x")),
        observers=[lambda r: waited.update({r.who: r.waited_ns}) if isinstance(r, Waited) else None],
    )
    simulation.run(on_step=lambda me, now: finished.update({me.id: now}))
    assert (waited[0] > 0) == waits
    assert finished[2] == 20 * 80_000_000
    if not waits:
        assert finished[0] == finished[1] == 20 * 20_000_000


def test_ssp_with_one_worker_is_plain_sgd():
    batches = PROBLEM.batches(1, 12)
    for bound in (0, 2, inf):
        simulation = PROBLEM.simulation(ssp(bound=bound), batches, momentum=0.9, lr=LR)
        simulation.run()
        w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
        for batch in batches[0]:
            v = 0.9 * v + PROBLEM.gradient(w, batch)
            w = w - LR * v
        assert close(weights(simulation)[0], w)


def test_ssp_the_server_applies_every_push_once_scaled_by_the_workers():
    log = []
    simulation = PROBLEM.simulation(
        ssp(bound=3),
        PROBLEM.batches(4, 10),
        lr=LR,
        log=log,
        compute=RandomCompute(),
        network=NETWORKS["1gbit"],
    )
    simulation.run(pause_after=10)
    assert close(simulation.me(4).weights, PROBLEM.start - LR / 4 * sum(log))


@pytest.mark.parametrize("seed", range(5))
def test_ssp_a_departure_frees_those_who_waited_for_it(seed):
    simulation = PROBLEM.simulation(
        ssp(bound=1),
        PROBLEM.batches(4, [3, 25, 7, 20]),
        lr=LR,
        compute=RandomCompute(),
        network=random_network(4, seed, participants=5),
        seed=seed,
    )
    simulation.run()
    assert [p.me.steps for p in simulation.workers] == [3, 25, 7, 20]


# FAST's own torus


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_torus_in_lock_step_includes_the_neighbours_previous_gradients(size):
    """With equal times and no delay all workers step at the same instant, before any letter of
    that instant is delivered: step k merges the own gradient k with the neighbours' k - 1."""
    steps, batches, topology = 10, PROBLEM.batches(size, 10), Torus()
    simulation = PROBLEM.simulation(torus(send="own"), batches)
    simulation.run(pause_after=steps)
    x, previous = [PROBLEM.start] * size, None
    for step in range(steps):
        own = [PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)]
        for i in range(size):
            heard = [previous[j] for j in topology.links(i, size, 0)] if previous else []
            x[i] = x[i] - 0.05 * (own[i] + sum(heard)) / (1 + len(heard))
        previous = own
    assert close(weights(simulation), torch.stack(x))


def everything_included(seed, *, momentum=0.0, size=4, steps=8):
    """Full topology, sum rule, random times and links."""
    log = []
    simulation = PROBLEM.simulation(
        torus(rule=sum_, topology=Full()),
        PROBLEM.batches(size, steps),
        lr=LR,
        momentum=momentum,
        log=log,
        compute=RandomCompute(),
        network=random_network(size, seed),
        seed=seed,
    )
    simulation.run()
    return weights(simulation), PROBLEM.start - LR * sum(log)


@pytest.mark.parametrize("seeds", FEW_AND_MANY)
def test_statement_1_whatever_the_order_all_replicas_end_equal(seeds):
    for seed in seeds:
        ends, expected = everything_included(seed)
        for end in ends:
            assert close(end, expected), f"seed {seed}"


def test_statement_1_fails_with_momentum():
    apart = 0
    for seed in range(5):
        ends, _ = everything_included(seed, momentum=0.9)
        apart += not close(ends, ends[0].expand_as(ends), 1e-6)
    assert apart == 5


def test_statement_1_fails_when_letters_are_lost():
    """Here by the network."""
    log, lost = [], []
    simulation = PROBLEM.simulation(
        torus(rule=sum_, topology=Full()),
        PROBLEM.batches(3, [4, 8, 8]),
        lr=LR,
        log=log,
        compute=RandomCompute(),
        faults=Director(parse_scenario("letters travel as datagrams; 20% of letters are lost"), 0),
        observers=[lambda record: lost.append(record.to) if isinstance(record, Dropped) else None],
    )
    simulation.run()
    expected = PROBLEM.start - LR * sum(log)
    assert [close(end, expected, 1e-6) for end in weights(simulation)] == [
        who not in lost for who in range(3)
    ]
    assert lost


@pytest.mark.parametrize("send", ["own", "merged"])
def test_torus_includes_every_letter_exactly_once(send):
    sent, included = Counter(), Counter()

    def watch(record):
        if isinstance(record, Sent):
            sent.update((record.who, to, record.step) for to in record.to)
        if isinstance(record, Included):
            included.update([(record.sender, record.who)])

    for seed in range(5):
        simulation = PROBLEM.simulation(
            torus(send=send),
            PROBLEM.batches(6, 10),
            lr=LR,
            compute=RandomCompute(),
            network=random_network(6, seed),
            seed=seed,
            observers=[watch],
        )
        simulation.run(pause_after=10)
        simulation.run()
    pairs = Counter()
    for (who, to, _), count in sent.items():
        pairs[who, to] += count
    assert pairs == included


def test_a_letter_holds_the_values_at_the_moment_of_sending():
    """Gradients overwritten by the next step while their letter is still under way."""
    slow = random_network(4, 1)
    simulation = PROBLEM.simulation(torus(), PROBLEM.batches(4, 6), network=slow, compute=Compute(1e-6))
    flying = {}

    def unchanged(simulation):
        for to, letter in simulation.on_the_way():
            key = (to, letter.sender, letter.steps)
            assert equal(flying.setdefault(key, letter.tensor.clone()), letter.tensor)

    simulation.run(after_event=unchanged)
    assert len(flying) > 20
    assert simulation.strategy.tags[0].carries == GRADIENT


# Gossip


class Shares:
    """After every event: what all workers and all letters hold together."""

    def __init__(self):
        self.events = self.flying = 0
        self.mass = None

    def __call__(self, simulation):
        letters = [letter for _, letter in simulation.on_the_way()]
        waiting = [letter for p in simulation.workers for letter in simulation.unread(p.me.id)]
        held = [(p.me.state.share, p.me.weights) for p in simulation.workers if p.me.state is not None]
        held += [(letter.note["share"], letter.tensor) for letter in (*letters, *waiting)]
        if any(p.me.state is None for p in simulation.workers):
            return
        self.events += 1
        self.flying += bool(letters)
        assert abs(sum(share for share, _ in held) - 1) < 1e-12
        mass = sum(share * tensor for share, tensor in held)
        if self.mass is not None:
            assert close(mass, self.mass)
        self.mass = mass


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_gossip_conserves_the_shares_and_with_zero_gradients_the_weighted_sum(size, seed):
    starts = list(torch.randn(size, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    check = Shares()
    simulation = PROBLEM.simulation(
        gossip(p=0.5),
        PROBLEM.batches(size, [10 + 3 * i for i in range(size)]),
        lr=0.0,
        starts=starts,
        compute=RandomCompute(),
        network=random_network(size, seed),
        seed=seed,
    )
    simulation.run(after_event=check)
    assert check.events > sum(p.me.steps for p in simulation.workers)
    assert size == 1 or check.flying > 5
    assert close(check.mass, sum(starts) / size)


def test_gossip_without_gossip_is_independent_sgd():
    batches = PROBLEM.batches(3, 8)
    simulation = PROBLEM.simulation(gossip(p=0), batches, network=NETWORKS["wan"])
    simulation.run()
    for i in range(3):
        w = PROBLEM.start
        for batch in batches[i]:
            w = w - 0.05 * PROBLEM.gradient(w, batch)
        assert close(weights(simulation)[i], w)


def test_gossip_brings_replicas_together():
    starts = list(torch.randn(8, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    simulation = PROBLEM.simulation(gossip(p=1.0), [[(0,)] * 60] * 8, lr=0.0, starts=starts, network=INSTANT)
    simulation.run()
    assert weights(simulation).std(0).max() < 0.05 * torch.stack(starts).std(0).max()
