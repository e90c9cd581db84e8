"""Staleness as it is reported, what it does to a training, and corrections inside the programs."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
import torch

from fast.corrections import (
    adaptive_delay_compensation,
    by_staleness,
    chain,
    delay_compensation,
    explicit_momentum,
    total_momentum,
)
from fast.sim import Compute, TraceHash, parse_straggler
from fast.strategies.presets import agn, dc_asgd, downpour, ssp, staleness_aware
from fast.trace import Applied, Included, Received, Sent

from .problem import ROWS, LeastSquares, RandomCompute, RoundRobin, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.01
EVERYTHING = tuple(range(ROWS))


# What is reported


class Versions:
    """An observer that counts versions itself: since the last answer to a worker before its push came."""

    def __init__(self, servers):
        self.version, self.answered, self.read, self.seen = Counter(), Counter(), {}, []
        self.servers = set(servers)

    def __call__(self, record):
        match record:
            case Applied(who=who) if who in self.servers:
                self.version[who] += 1
            case Sent(who=who, to=to) if who in self.servers:
                for worker in to:
                    self.answered[who, worker] = self.version[who]
            case Received(who=who, sender=sender, steps=(step,)) if who in self.servers:
                self.read[who, sender, step] = self.answered[who, sender]
            case Included(who=who, sender=sender, step=step, staleness=staleness):
                assert staleness == self.version[who] - self.read[who, sender, step]
                self.seen.append(staleness)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "call",
    [
        lambda servers: downpour(servers=servers),
        lambda servers: downpour(fetch=3, push=2, servers=servers),
        lambda servers: agn(steps=2, servers=servers),
        lambda servers: staleness_aware(n=2, servers=servers),
        lambda servers: dc_asgd(servers=servers),
        lambda servers: ssp(bound=2, servers=servers, correction=by_staleness()),
    ],
    ids=["downpour", "intervals", "agn", "softsync", "dc_asgd", "ssp"],
)
def test_the_staleness_of_every_update_is_exact(call, seed):
    """Also on shards that see other orders, with slow links and workers that end early."""
    servers = 1 + seed % 3
    versions = Versions(range(4, 4 + servers))
    PROBLEM.simulation(
        call(servers),
        PROBLEM.batches(4, [12, 6, 12, 9]),
        lr=LR,
        compute=RandomCompute(),
        network=random_network(4, seed, participants=4 + servers),
        seed=seed,
        observers=[versions],
    ).run()
    assert max(versions.seen) > 0


def test_a_straggler_is_stale_and_the_others_are_not():
    found = {worker: [] for worker in range(4)}

    def watch(record):
        if isinstance(record, Included):
            found[record.sender].append(record.staleness)

    PROBLEM.simulation(
        downpour(),
        PROBLEM.batches(4, [40, 40, 40, 4]),
        lr=LR,
        compute=Compute(0.02, parse_straggler("10x")),
        observers=[watch],
    ).run()
    assert all(staleness >= 27 for staleness in found[3][:3])  # three others, nine or ten steps each
    assert max(staleness for worker in range(3) for staleness in found[worker]) <= 3


# What it does: implicit momentum


def mean_path(correction, *, workers=4, updates=16, runs=100, lr=0.06):
    """The server's weights after each update, as the mean over many random schedules in which whoever is
    next is each worker with the same probability, and its standard error."""
    paths = []
    for seed in range(runs):
        path = []

        def watch(record, path=path):
            if isinstance(record, Applied) and record.who == workers and len(path) < updates:
                path.append(simulation.me(workers).weights.clone())  # noqa: B023

        simulation = PROBLEM.simulation(
            downpour(correction=correction),
            [[EVERYTHING] * updates] * workers,
            lr=lr,
            compute=RandomCompute(),
            seed=seed,
            observers=[watch],
        )
        simulation.run(stop=lambda simulation: simulation.me(workers).version >= updates)
        paths.append(torch.stack(path))
    found = torch.stack(paths)
    return found.mean(0), found.std(0) / runs**0.5


def expected_path(mu, *, workers=4, updates=16, lr=0.06):
    """With G the expected gradient of whoever is next: G <- (1 - 1/P) G + 1/P grad(w), since with probability
    1/P it is the one who has just read. For mu = 0 that makes w heavy ball with momentum 1 - 1/P and rate lr/P."""
    w = PROBLEM.start
    g, v, path = PROBLEM.gradient(w, EVERYTHING), torch.zeros_like(w), []
    for _ in range(updates):
        v = mu * v + g
        w = w - lr * v
        path.append(w)
        g = (1 - 1 / workers) * g + PROBLEM.gradient(w, EVERYTHING) / workers
    return torch.stack(path)


def heavy_ball(momentum, lr, *, updates=16, first=0.06):
    """w moves by `momentum` times its last move minus lr times the gradient; the first move is everybody's
    from the same weights."""
    w, path = PROBLEM.start, []
    move = -first * PROBLEM.gradient(w, EVERYTHING)
    for _ in range(updates):
        w = w + move
        path.append(w)
        move = momentum * move - lr * PROBLEM.gradient(w, EVERYTHING)
    return torch.stack(path)


def test_the_expected_path_without_momentum_is_heavy_ball():
    """The theorem itself, on paper: asynchrony of P workers is a momentum of 1 - 1/P."""
    assert close(expected_path(0.0), heavy_ball(1 - 1 / 4, 0.06 / 4))


@pytest.mark.parametrize("mu", [0.0, -0.4])
def test_asynchrony_is_a_momentum_and_an_explicit_one_adds_to_it(mu):
    """Statistical: 100 schedules, each of 16 x 20 values within 5 standard errors of its expectation."""
    mean, error = mean_path(explicit_momentum(mu) if mu else None)
    expected = expected_path(mu)
    assert bool(((mean - expected).abs() <= 5 * error + 1e-9).all())
    wrong = expected_path(mu + 0.3)
    assert bool(((mean - wrong).abs() > 5 * error + 1e-9).any())


def test_the_total_is_explicit_plus_implicit():
    ends = []
    for correction in (total_momentum(0.6), explicit_momentum(0.6 - 0.75)):
        simulation = PROBLEM.simulation(
            downpour(correction=correction), PROBLEM.batches(4, 10), lr=LR, compute=RandomCompute()
        )
        simulation.run(pause_after=10)  # so that nobody has left, and P stays 4
        ends.append(weights(simulation))
    assert equal(*ends)


def test_with_random_times_staleness_is_geometric():
    """Its mean is P - 1, and each further one is 1 - 1/P times as likely."""
    seen = Counter()

    def watch(record):
        if isinstance(record, Included):
            seen[record.staleness] += 1

    simulation = PROBLEM.simulation(
        downpour(),
        [[(0, 1)] * 1500] * 4,
        lr=1e-6,
        compute=RandomCompute(),
        observers=[watch],
    )
    simulation.run(stop=lambda simulation: simulation.me(4).version >= 1500)
    total = sum(seen.values())
    assert sum(s * n for s, n in seen.items()) / total == pytest.approx(3.0, rel=0.1)
    for staleness in range(6):
        assert seen[staleness] / total == pytest.approx(0.25 * 0.75**staleness, abs=0.035)


# Corrections in programs


def corrected_loop(batches, share, correct):
    """Workers in turns; `correct(g, w, read, sigma)` gives the gradient and the factor on the rate."""
    size, w, version = len(batches), PROBLEM.start, 0
    read, stamp = [w] * size, [0] * size
    for step in range(len(batches[0])):
        for i in range(size):
            g, factor = correct(PROBLEM.gradient(read[i], batches[i][step]), w, read[i], version - stamp[i])
            w, version = w - LR * factor * share * g, version + 1
            read[i], stamp[i] = w, version
    return w


@pytest.mark.parametrize(("build", "share"), [(downpour, 1.0), (lambda **k: ssp(bound=inf, **k), 0.25)])
@pytest.mark.parametrize("kind", ["rate", "delay", "both"])
def test_corrections_are_the_plain_loop_in_both_programs(build, share, kind):
    """What is corrected is the gradient as it came; `ssp` divides by P afterwards."""
    batches = PROBLEM.batches(4, 15)
    parts = {
        "rate": by_staleness(),
        "delay": delay_compensation(0.5),
        "both": chain(delay_compensation(0.5), by_staleness()),
    }

    def correct(g, w, read, sigma):
        factor = 1 / max(1, sigma) if kind != "delay" else 1.0
        return (g if kind == "rate" else g + 0.5 * g * g * (w - read)), factor

    simulation = PROBLEM.simulation(build(correction=parts[kind]), batches, lr=LR, compute=RoundRobin())
    simulation.run(pause_after=15)
    assert close(simulation.me(4).weights, corrected_loop(batches, share, correct))


@pytest.mark.parametrize(
    "correction",
    [by_staleness(), delay_compensation(1.0), adaptive_delay_compensation(), explicit_momentum(-0.2)],
)
def test_a_corrected_training_repeats_and_resumes(correction):
    def run(resume):
        trace = TraceHash()
        simulation = PROBLEM.simulation(
            staleness_aware(n=2, correction=correction, servers=2),
            PROBLEM.batches(4, 10),
            lr=LR,
            compute=RandomCompute(),
            network=random_network(4, 2, participants=6),
            observers=[trace],
        )
        if resume is None:
            simulation.run(pause_after=5)
        else:
            simulation.restore(resume)
        saved = simulation.checkpoint()
        trace.__init__()
        simulation.run()
        return (trace.hexdigest(), weights(simulation).tolist()), saved

    straight, saved = run(None)
    assert run(None)[0] == straight
    assert run(saved)[0] == straight


def test_delay_compensation_makes_asynchronous_training_more_like_sequential():
    """On a problem whose Hessian is about g g^T, which is what it assumes: one row, exactly fitted."""
    problem = LeastSquares(1)
    batches = [[(0,)] * 12] * 4

    def end(strategy):
        simulation = problem.simulation(strategy, batches, lr=0.002, compute=RoundRobin())
        simulation.run(pause_after=12)
        return simulation.me(4).weights

    w = problem.start
    for _ in range(48):
        w = w - 0.002 * problem.gradient(w, (0,))
    distances = [
        float((end(dc_asgd(adaptive=False, strength=strength)) - w).norm()) for strength in (0.0, 0.1, 0.2)
    ]
    assert distances[0] > distances[1] > distances[2]
