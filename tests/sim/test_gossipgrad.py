"""Gossip by a schedule of partners, against plain loops over its matrices."""

import pytest
import torch

from fast.errors import UsageError
from fast.parts import Exponential, Hypercube, Shuffled
from fast.sim import NETWORKS
from fast.strategies.presets import gossipgrad
from fast.testing.topology import mixing_matrix
from fast.trace import Sent

from .problem import DIM, LeastSquares, RandomCompute, close, equal, random_network, weights
from .schedules import FEW_AND_MANY, counts_of, run_watched

PROBLEM = LeastSquares()
HYPERCUBE = Hypercube(one_peer=True)


def partners_of(topology, size, step, seed):
    """Whom each worker hears: places by the dealt permutation, then by distance or digit."""
    digits = (size - 1).bit_length()
    dealt, bit = Shuffled(topology, seed), 1 << step % digits
    place = [dealt._deal(size, step)[0][worker] for worker in range(size)]
    if isinstance(topology, Hypercube):
        return [place.index(place[worker] ^ bit) for worker in range(size)]
    return [place.index((place[worker] - bit) % size) for worker in range(size)]


@pytest.mark.parametrize(
    ("topology", "size"),
    [(Exponential(), 3), (Exponential(), 6), (Exponential(), 8), (HYPERCUBE, 8)],
    ids=repr,
)
@pytest.mark.parametrize("seed", [0, 7])
def test_it_averages_with_the_partner_of_the_step_and_takes_the_step_at_the_old_weights(topology, size, seed):
    batches = PROBLEM.batches(size, 13)
    simulation = PROBLEM.simulation(
        gossipgrad(topology=topology, seed=seed), batches,
        compute=RandomCompute(), network=random_network(size, 1), momentum=0.5,
    )  # fmt: skip
    simulation.run()
    x, v = [PROBLEM.start] * size, [torch.zeros(DIM, dtype=torch.float64)] * size
    for step in range(13):
        heard = partners_of(topology, size, step, seed)
        v = [0.5 * v[i] + PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)]
        x = [(x[i] + x[heard[i]]) / 2 - 0.05 * v[i] for i in range(size)]
    assert close(weights(simulation), torch.stack(x))


def test_alone_it_is_plain_sgd_bit_for_bit():
    batches = PROBLEM.batches(1, 12)
    simulation = PROBLEM.simulation(gossipgrad(), batches)
    simulation.run()
    w = PROBLEM.start
    for batch in batches[0]:
        w = w - 0.05 * PROBLEM.gradient(w, batch)
    assert equal(weights(simulation)[0], w)


@pytest.mark.parametrize("topology", [Exponential(), HYPERCUBE], ids=repr)
def test_without_gradients_each_deal_ends_in_the_exact_mean(topology):
    starts = list(torch.randn(8, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    simulation = PROBLEM.simulation(gossipgrad(topology=topology), [[(0,)] * 4] * 8, lr=0.0, starts=starts)
    mean = torch.stack(starts).mean(0).expand(8, DIM)
    simulation.run(pause_after=2)
    assert not close(weights(simulation), mean, 0.1)
    simulation.run(pause_after=3)
    assert close(weights(simulation), mean)


def test_one_letter_per_worker_and_step():
    sent = []
    simulation = PROBLEM.simulation(
        gossipgrad(), PROBLEM.batches(8, 11), network=NETWORKS["1gbit"], observers=[sent.append]
    )
    simulation.run(pause_after=10)
    sent = [record for record in sent if isinstance(record, Sent)]
    assert [sum(record.who == i for record in sent) for i in range(8)] == [11] * 8  # at the start too
    assert {record.nbytes for record in sent} == {8 * DIM + 256}


@pytest.mark.parametrize("seeds", FEW_AND_MANY)
def test_no_schedule_locks_up_or_loses_a_letter(seeds):
    for seed in seeds:
        run_watched(gossipgrad(seed=seed), counts_of(seed), seed)


def test_times_change_no_bit_when_somebody_leaves():
    ends = []
    for seed in range(4):
        simulation = PROBLEM.simulation(
            gossipgrad(), PROBLEM.batches(5, [30, 4, 30, 9, 30]),
            compute=RandomCompute(), network=random_network(5, seed), seed=seed,
        )  # fmt: skip
        simulation.run()
        ends.append(weights(simulation))
    assert all(equal(end, ends[0]) for end in ends)


def test_the_mean_moves_by_the_mean_gradient():
    """B51: every round's matrix is doubly stochastic."""
    size, batches, log = 6, PROBLEM.batches(6, 9), []
    simulation = PROBLEM.simulation(gossipgrad(), batches, log=log)
    for step in range(9):
        before = weights(simulation).mean(0)
        simulation.run(pause_after=step + 1)
        gradient = torch.stack(log[-size:]).mean(0)
        assert close(weights(simulation).mean(0), before - 0.05 * gradient)
        w = mixing_matrix(simulation.strategy.topology, size, step)
        assert close(w.sum(0), torch.ones(size, dtype=torch.float64)) and close(w.sum(1), w.sum(0))


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="needs a power of two"):
        gossipgrad(topology=HYPERCUBE).check(6)
    with pytest.raises(UsageError, match=r"shuffled\(seed=-1\)"):
        gossipgrad(seed=-1)
