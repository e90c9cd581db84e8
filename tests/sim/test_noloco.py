"""NoLoCo: an outer optimizer in random pairs, against plain loops in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.sim import NETWORKS
from fast.strategies.decentral.pairwise import drawn_pairs
from fast.strategies.presets import noloco
from fast.trace import Dropped, Received, Reduced, Sent

from .problem import DIM, LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.05


# Pairs


@given(st.integers(1, 40), st.integers(0, 2**40), st.integers(1, 1000))
def test_everybody_has_one_partner_or_is_the_only_one_without(size, seed, round_):
    met = drawn_pairs(size, seed, round_)
    assert len(met) == size
    assert met.count(None) == size % 2
    for place, partner in enumerate(met):
        if partner is not None:
            assert partner != place and met[partner] == place


def test_all_pairs_are_equally_likely():
    """Each of 15 pairs of 6 workers in a fifth of the rounds: within 5 standard errors over 3000 of them."""
    rounds = 3000
    counts = torch.zeros(6, 6)
    for round_ in range(rounds):
        for place, partner in enumerate(drawn_pairs(6, 1, round_)):
            counts[place, partner] += 1
    off_diagonal = counts[~torch.eye(6, dtype=torch.bool)] / rounds
    assert counts.diagonal().sum() == 0
    assert (off_diagonal - 0.2).abs().max() < 5 * (0.2 * 0.8 / rounds) ** 0.5


def test_another_seed_has_other_pairs():
    assert [drawn_pairs(8, 1, r) for r in range(5)] != [drawn_pairs(8, 2, r) for r in range(5)]


# Values


def loop(batches, *, interval, rate, momentum, inner=0.0, seed=0, starts=None):
    """As the paper writes it: two means over the pair. Workers without a batch have left."""
    size = len(batches)
    theta = [PROBLEM.start] * size if starts is None else list(starts)
    phi, zero = list(theta), torch.zeros_like(PROBLEM.start)
    m, v = [zero] * size, [zero] * size
    for step in range(max(map(len, batches))):
        live = [i for i in range(size) if step < len(batches[i])]
        for i in live:
            v[i] = inner * v[i] + PROBLEM.gradient(theta[i], batches[i][step])
            theta[i] = theta[i] - LR * v[i]
        if (step + 1) % interval:
            continue
        met = drawn_pairs(size, seed, (step + 1) // interval)
        delta, before = [theta[i] - phi[i] for i in range(size)], list(phi)
        for i in live:
            pair = [i, met[i]] if met[i] in live else [i]
            mean_delta = sum(delta[j] for j in pair) / len(pair)
            mean_phi = sum(before[j] for j in pair) / len(pair)
            m[i] = momentum * m[i] + rate * mean_delta + rate * (mean_phi - before[i])
            phi[i] = before[i] + m[i]
            theta[i] = phi[i]
    return torch.stack(theta), torch.stack(phi)


def run(strategy, batches, **options):
    simulation = PROBLEM.simulation(strategy, batches, **options)
    simulation.run()
    return weights(simulation), torch.stack([p.me.state.slow for p in simulation.workers])


@pytest.mark.parametrize("send", ["both", "sum"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_it_is_the_plain_loop(size, send):
    batches = PROBLEM.batches(size, 17)
    found = run(noloco(interval=3, send=send), batches, momentum=0.5, seed=4)
    wanted = loop(batches, interval=3, rate=0.7, momentum=0.5, inner=0.5, seed=4)
    assert close(found[0], wanted[0])
    assert close(found[1], wanted[1])


@pytest.mark.parametrize("counts", [[20, 7, 20, 20], [3, 20, 11, 20, 20]])
def test_whose_partner_has_left_stays_alone_whatever_the_times(counts):
    batches = PROBLEM.batches(len(counts), counts)
    wanted, _ = loop(batches, interval=2, rate=0.7, momentum=0.5, seed=6)
    ends = [
        run(
            noloco(interval=2),
            batches,
            compute=RandomCompute(),
            network=random_network(len(counts), seed),
            seed=6,
        )[0]
        for seed in range(4)
    ]
    assert all(equal(end, ends[0]) for end in ends)
    assert close(ends[0], wanted)


def test_the_mean_of_the_slow_weights_takes_the_step_of_the_mean_change():
    """What pulls a pair together adds up to nothing, so over an even number of workers the mean is heavy ball."""
    batches = PROBLEM.batches(4, 12)
    simulation, seen = PROBLEM.simulation(noloco(interval=3), batches), {}

    def keep(me, now):
        if me.steps % 3 == 2:
            seen[me.id, me.steps] = (me.weights - me.state.slow, me.state.slow.clone())
        elif me.steps % 3 == 0:
            seen[me.id, me.steps] = me.state.slow.clone()

    simulation.run(on_step=keep)
    m = torch.zeros(DIM, dtype=torch.float64)
    for end in (3, 6, 9, 12):
        deltas = []
        for i in range(4):
            change, slow = seen[i, end - 1]
            last = PROBLEM.gradient(slow + change, batches[i][end - 1])
            deltas.append(change - LR * last)
        m = 0.5 * m + 0.7 * sum(deltas) / 4
        before = sum(seen[i, end - 1][1] for i in range(4)) / 4
        assert close(sum(seen[i, end] for i in range(4)) / 4, before + m)


def test_without_gradients_all_come_together_at_the_mean():
    """From different starts, with a rate of 1 and no momentum, a pair has its mean: distances only shrink."""
    quiet = LeastSquares()
    quiet.a.zero_()
    starts = [quiet.start * (i + 1) for i in range(8)]
    mean = sum(starts) / 8
    simulation = quiet.simulation(
        noloco(interval=1, rate=1.0, momentum=0.0), [[(0,)] * 40] * 8, starts=starts, seed=2
    )
    distances = []
    simulation.run(
        on_step=lambda me, now: (
            distances.append(float((weights(simulation) - mean).norm())) if me.id == 7 else None
        )
    )
    assert close(weights(simulation).mean(0), mean)
    assert all(later <= before * (1 + 1e-12) for before, later in pairwise(distances))
    assert distances[-1] < 1e-3 * distances[0]


# What is sent


@pytest.mark.parametrize(("send", "values"), [("both", 2 * DIM), ("sum", DIM)])
def test_bytes_are_the_formula_and_there_is_no_round(send, values):
    """16 d / interval for 4 bytes a value, half of it sent; here they are of 8."""
    records = []
    simulation = PROBLEM.simulation(
        noloco(interval=5, send=send),
        PROBLEM.batches(4, 20),
        network=NETWORKS["1gbit"],
        observers=[records.append],
    )
    simulation.run()
    sent = [record for record in records if isinstance(record, Sent)]
    assert [record.nbytes for record in sent] == [8 * values + 256] * (4 * 20 // 5)
    assert sum(isinstance(record, Received) for record in records) == len(sent)
    assert not any(isinstance(record, Reduced | Dropped) for record in records)


@pytest.mark.parametrize(
    "build",
    [
        lambda: noloco(interval=0),
        lambda: noloco(rate=0),
        lambda: noloco(momentum=1),
        lambda: noloco(send="weights"),
    ],
)
def test_what_cannot_be_is_refused(build):
    with pytest.raises(UsageError):
        build()
