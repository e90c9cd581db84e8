"""n-softsync with rates by staleness, against plain loops in float64."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
import torch

from fast.adapters import ServerReplica, TorchReplica
from fast.corrections import by_staleness
from fast.errors import UsageError
from fast.sim import Compute, Network, Simulation, SimWorker, TraceHash, parse_straggler
from fast.strategies.presets import downpour, staleness_aware
from fast.trace import Applied, Dropped, Included

from .problem import INSTANT, LeastSquares, RandomCompute, RoundRobin, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.01


def soft_loop(batches, c, *, lr=LR, corrected=True, momentum=0.0):
    """Workers in turns. The server adds up c gradients, each with its own rate, and answers at once."""
    size, w, v, version = len(batches), PROBLEM.start, torch.zeros_like(PROBLEM.start), 0
    read, stamp, total, count = [w] * size, [0] * size, torch.zeros_like(w), 0
    for step in range(len(batches[0])):
        for i in range(size):
            sigma = version - stamp[i]
            rate = lr / sigma if corrected and sigma >= 1 else lr
            total, count = total + rate / lr * PROBLEM.gradient(read[i], batches[i][step]), count + 1
            if count == c:
                v = momentum * v + total / c
                w, version = w - lr * v, version + 1
                total, count = torch.zeros_like(w), 0
            read[i], stamp[i] = w, version
    return w


@pytest.mark.parametrize(("n", "c"), [(1, 6), (2, 3), (3, 2), (4, 1), (6, 1), (inf, 1), (2.5, 2)])
def test_it_is_the_plain_loop(n, c):
    batches = PROBLEM.batches(6, 20)
    simulation = PROBLEM.simulation(staleness_aware(n=n), batches, lr=LR, compute=RoundRobin())
    simulation.run(pause_after=20)
    assert close(simulation.me(6).weights, soft_loop(batches, c))
    assert simulation.me(6).version == 120 // c


@pytest.mark.parametrize(("n", "c"), [(1, 4), (4, 1)])
def test_without_a_correction_gradients_count_alike(n, c):
    batches = PROBLEM.batches(4, 20)
    simulation = PROBLEM.simulation(
        staleness_aware(n=n, correction=None), batches, lr=LR, momentum=0.6, compute=RoundRobin()
    )
    simulation.run(pause_after=20)
    expected = soft_loop(batches, c, corrected=False, momentum=0.6)
    assert close(simulation.me(4).weights, expected)
    assert c == 4 or not close(simulation.me(4).weights, soft_loop(batches, c), 1e-4)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_at_a_constant_staleness_it_is_downpour_with_the_rate_divided(size):
    """Before the first round is over staleness still grows; there the gradients are made zero."""
    batches = PROBLEM.batches(size, 20)
    sigma, calm = size - 1, [[(0,) * 2, *own] for own in batches]

    def run(strategy, lr):
        problem = LeastSquares()
        plain = problem.gradient
        seen = Counter()

        def gradient(w, batch):
            seen["calls"] += 1
            return torch.zeros_like(w) if seen["calls"] <= size else plain(w, batch)

        problem.gradient = gradient
        simulation = problem.simulation(strategy, calm, lr=lr, compute=RoundRobin())
        simulation.run(pause_after=21)
        return simulation.me(size).weights

    slow = run(downpour(), LR / sigma)
    assert close(run(staleness_aware(n=inf), LR), slow)
    assert not close(slow, PROBLEM.start, 1e-2)


def test_a_staleness_of_0_or_1_changes_nothing():
    """Two workers in turns never see more."""
    batches, ends = PROBLEM.batches(2, 20), []
    for strategy in (staleness_aware(n=inf), downpour()):
        simulation = PROBLEM.simulation(strategy, batches, lr=LR, momentum=0.5, compute=RoundRobin())
        simulation.run()
        ends.append(weights(simulation))
    assert equal(*ends)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_per_gradient_without_correction_is_downpour_bit_for_bit(seed):
    traces, ends = [], []
    for strategy in (staleness_aware(n=inf, correction=None), downpour()):
        trace = TraceHash()
        simulation = PROBLEM.simulation(
            strategy,
            PROBLEM.batches(4, 12),
            lr=LR,
            momentum=0.5,
            compute=RandomCompute(),
            network=random_network(4, seed, participants=5),
            seed=seed,
            observers=[lambda record, trace=trace: trace(record) if isinstance(record, Included) else None],
        )
        simulation.run()
        traces.append(trace.hexdigest())
        ends.append(weights(simulation))
    assert equal(*ends)
    assert traces[0] == traces[1]


# How many gradients a step takes


class Steps:
    """An observer: how many gradients each of the server's steps was made of, and of whom."""

    def __init__(self, server):
        self.server, self.made_of, self._open = server, [], []

    def __call__(self, record):
        if isinstance(record, Included) and record.who == self.server:
            self._open.append(record.sender)
        if isinstance(record, Applied) and record.who == self.server:
            self.made_of.append(tuple(self._open))
            self._open.clear()
        assert not isinstance(record, Dropped)


@pytest.mark.parametrize(("n", "c"), [(1, 5), (2, 2), (5, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_each_step_consumes_c_gradients_and_none_is_lost(n, c, seed):
    steps = Steps(5)
    simulation = PROBLEM.simulation(
        staleness_aware(n=n),
        PROBLEM.batches(5, 9),
        lr=LR,
        compute=RandomCompute(),
        network=random_network(5, seed, participants=6),
        seed=seed,
        observers=[steps],
    )
    complete = []
    simulation.run(
        on_step=lambda me, now: (
            complete.append(len(steps.made_of)) if not simulation.post.departures else None
        )
    )
    counts = [len(each) for each in steps.made_of]
    assert sum(counts) == 45
    assert max(complete) >= 5 // c
    assert set(counts[: max(complete)]) == {c}


def test_a_fast_worker_may_have_several_gradients_in_one_step():
    steps = Steps(3)
    simulation = PROBLEM.simulation(
        staleness_aware(n=1),
        PROBLEM.batches(3, [30, 30, 3]),
        lr=LR,
        compute=Compute(0.02, parse_straggler("10x")),
        observers=[steps],
    )
    simulation.run(pause_after=3)
    assert Counter(len(set(each)) for each in steps.made_of[:2]) == {2: 2}


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_left_at_the_end_makes_a_last_step(size):
    """When all have gone nobody will bring what is missing."""
    steps = Steps(size)
    simulation = PROBLEM.simulation(
        staleness_aware(n=1),
        PROBLEM.batches(size, [7, 3, 2][:size]),
        lr=LR,
        compute=RandomCompute(),
        observers=[steps],
    )
    simulation.run()
    assert sum(len(each) for each in steps.made_of) == sum([7, 3, 2][:size])


def test_what_was_collected_when_the_last_one_is_gone_makes_a_step_too():
    """Worker 2 dies before it has brought anything, and it takes a while until anybody knows."""
    batches, steps = PROBLEM.batches(3, [1, 1, 5]), Steps(3)
    simulation = PROBLEM.simulation(
        staleness_aware(n=1),
        batches,
        lr=LR,
        compute=RoundRobin(),
        network=Network(1e9, 0.005),
        observers=[steps],
    )
    simulation.at(10, lambda: simulation.kill(2))
    simulation.run()
    assert steps.made_of == [(0, 1)]
    together = (
        PROBLEM.gradient(PROBLEM.start, batches[0][0]) + PROBLEM.gradient(PROBLEM.start, batches[1][0])
    ) / 2
    assert close(simulation.me(3).weights, PROBLEM.start - LR * together)


# The rate, not the gradient


def test_an_optimizer_that_scales_gradients_itself_gets_the_smaller_rate():
    """Adam ignores the size of gradients, so dividing them by their staleness would change nothing."""

    def run(correction):
        replicas = []
        for _ in range(3):
            model = torch.nn.Linear(4, 1, bias=False).double()
            torch.nn.init.ones_(model.weight)
            replicas.append(TorchReplica(model, torch.optim.Adam(model.parameters(), lr=0.125, eps=1e-12)))

        def worker(replica):
            def compute(batch):
                replica.samples = 1
                replica.compute(lambda: replica.model.weight.sum())

            return SimWorker(replica, iter(range(5)), compute)

        first = replicas[0]
        server = ServerReplica(first.optimizer_spec(), first.layout, first.weights.clone())
        simulation = Simulation(
            staleness_aware(n=inf, correction=correction),
            [worker(replica) for replica in replicas],
            server_replicas=[server],
            network=INSTANT,
            compute=RoundRobin(),
        )
        simulation.run(pause_after=5)
        return float(first.layout.views(server.weights)[0].flatten()[0])

    # A constant gradient of 1 moves Adam by its rate. Staleness is 0, 1 and then 2, thirteen times.
    assert run(None) == pytest.approx(1 - 0.125 * 15, abs=1e-9)
    assert run(by_staleness()) == pytest.approx(1 - 0.125 * (2 + 13 / 2), abs=1e-9)


# The rest


@pytest.mark.parametrize("n", [1, 2, inf])
@pytest.mark.parametrize("servers", [2, "workers"])
def test_shards_that_see_the_same_order_are_one_server_bit_for_bit(n, servers):
    ends = []
    for count in (1, servers):
        simulation = PROBLEM.simulation(
            staleness_aware(n=n, servers=count),
            PROBLEM.batches(4, 12),
            lr=LR,
            momentum=0.5,
            compute=RoundRobin(),
        )
        simulation.run()
        ends.append((weights(simulation), torch.cat([server.me.weights for server in simulation.servers])))
    assert equal(ends[0][0], ends[1][0])
    assert equal(ends[0][1], ends[1][1])


def test_what_has_been_collected_is_saved_and_restored():
    def half(resume):
        simulation = PROBLEM.simulation(
            staleness_aware(n=1), PROBLEM.batches(4, 9), lr=LR, compute=RandomCompute()
        )
        if resume is None:
            simulation.run(pause_after=5)
        else:
            simulation.restore(resume)
        saved = simulation.checkpoint()
        simulation.run()
        return weights(simulation), saved

    straight, saved = half(None)
    assert equal(half(saved)[0], straight)


def test_one_worker_is_plain_sgd_bit_for_bit():
    batches = PROBLEM.batches(1, 12)
    for n in (1, 3, inf):
        simulation = PROBLEM.simulation(staleness_aware(n=n), batches, lr=LR, momentum=0.9)
        simulation.run()
        w, v = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
        for batch in batches[0]:
            v = 0.9 * v + PROBLEM.gradient(w, batch)
            w -= LR * v
        assert equal(weights(simulation)[0], w)


@pytest.mark.parametrize("n", [0, 0.5, -1, True, "2", float("nan")])
def test_what_can_not_be_is_refused(n):
    with pytest.raises(UsageError, match=r"staleness_aware\(n="):
        staleness_aware(n=n)
