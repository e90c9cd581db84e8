"""Compressed gossip against plain loops over matrices: its equations, its mean, its consensus."""

import pytest
import torch

from fast.codecs import int8, scaled_sign, sign, top_k
from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.parts import Ring, Torus
from fast.parts.topology import Exponential
from fast.strategies.presets import choco
from fast.testing.topology import mixing_matrix
from fast.trace import Sent

from .problem import LeastSquares, RandomCompute, random_network, weights

PROBLEM = LeastSquares()
ALL = top_k(1.0)
"""A codec that changes nothing."""


def close(a, b, tolerance=1e-12):
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("topology", [Ring(), Torus()], ids=repr)
def test_without_compression_it_is_adapt_then_combine(size, topology):
    batches = PROBLEM.batches(size, 12)
    simulation = PROBLEM.simulation(
        choco(codec=ALL, gamma=1.0, topology=topology), batches,
        compute=RandomCompute(), network=random_network(size, 1),
    )  # fmt: skip
    simulation.run()
    mixing, x = mixing_matrix(topology, size), PROBLEM.start.repeat(size, 1)
    for step in range(12):
        g = torch.stack([PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)])
        x = mixing @ (x - 0.05 * g)
    assert close(weights(simulation), x)


def compressed(values, kept):
    """The largest values of each row, the rest 0."""
    places = values.abs().topk(kept, dim=1).indices
    return torch.zeros_like(values).scatter(1, places, values.gather(1, places))


def test_with_compression_it_is_the_papers_loop():
    size, gamma, steps = 5, 0.3, 25
    batches = PROBLEM.batches(size, steps)
    simulation = PROBLEM.simulation(choco(codec=top_k(0.2), gamma=gamma), batches)
    simulation.run()
    mixing, x = mixing_matrix(Ring(), size), PROBLEM.start.repeat(size, 1)
    known = x.clone()
    for step in range(steps):
        x = x - 0.05 * torch.stack([PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)])
        known = known + compressed(x - known, 4)
        x = x + gamma * (mixing @ known - known)
    assert close(weights(simulation), x)


CODECS = {"all": ALL, "top": top_k(0.1), "rounded": int8(), "sign": scaled_sign(), "plain sign": sign()}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_mean_moves_by_the_mean_gradient_whatever_is_compressed(codec):
    """B65: the gossip step itself never moves the mean of the replicas."""
    size = 6
    batches = PROBLEM.batches(size, 15)
    log, means = [], [PROBLEM.start]
    simulation = PROBLEM.simulation(choco(codec=codec, gamma=0.2), batches, log=log)

    def look(me, now):
        if len({worker.me.steps for worker in simulation.workers}) == 1:
            means.append(weights(simulation).mean(0))

    simulation.run(on_step=look)
    assert len(means) == 16
    for step in range(15):
        gradient = torch.stack(log[step * size : (step + 1) * size]).mean(0)
        assert close(means[step + 1], means[step] - 0.05 * gradient, 1e-9)


def test_a_tenth_of_the_values_is_enough_for_consensus():
    """Replicas that were pulled apart come together again, as closely as one likes."""
    size, apart, after = 4, 8, 500
    start = PROBLEM.start

    class Pulled(LeastSquares):
        def gradient(self, weights, batch):
            seed = stream_seed(0, *batch)
            return (
                torch.randn(20, generator=torch.Generator().manual_seed(seed % 2**31)).double()
                * len(batch)
                / 2
            )

    problem = Pulled()
    batches = [rows + [()] * after for rows in problem.batches(size, apart)]
    distances = []
    simulation = problem.simulation(choco(codec=top_k(0.1), gamma=0.1), batches, starts=[start] * size)
    simulation.run(
        on_step=lambda me, now: distances.append(
            float((weights(simulation) - weights(simulation).mean(0)).norm())
        )
    )
    assert max(distances[: apart * size]) > 0.1
    assert distances[-1] < 1e-9 * max(distances)


@pytest.mark.parametrize("gamma", [0, -0.1, 1.5, True, "1"])
def test_the_consensus_step_is_checked(gamma):
    with pytest.raises(UsageError, match="the consensus step"):
        choco(gamma=gamma)


def test_a_topology_that_changes_is_refused():
    with pytest.raises(UsageError, match="undirected"):
        choco(topology=Exponential())


@pytest.mark.parametrize("topology", [Ring(), Torus()], ids=repr)
def test_neighbours_know_each_other_exactly_whoever_has_left(topology):
    """On a torus that shrinks, neighbours part and meet again; then they tell each other anew."""
    counts = [40, 4, 40, 9, 40, 14, 40, 40, 19, 40, 24, 40]
    simulation = PROBLEM.simulation(
        choco(codec=top_k(0.3), gamma=0.2, topology=topology), PROBLEM.batches(12, counts, size=1)
    )
    simulation.run(pause_after=39)
    there = [worker.me for worker in simulation.workers if not worker.left]
    assert len(there) == 7
    for me in there:
        assert set(me.state.of) <= {other.id for other in there}
        for other in there:
            if other.id in me.state.of:
                assert torch.equal(me.state.of[other.id], other.state.own)


def test_without_a_codec_everything_is_sent_as_it_is():
    batches, sent = PROBLEM.batches(4, 6), []

    def watch(record):
        if isinstance(record, Sent):
            sent.append(record.nbytes / len(record.to))

    plain = PROBLEM.simulation(choco(codec=None, gamma=1.0), batches, observers=[watch])
    everything = PROBLEM.simulation(choco(codec=ALL, gamma=1.0), batches)
    for simulation in (plain, everything):
        simulation.run()
    assert close(weights(plain), weights(everything))
    assert set(sent) == {8 * 20 + 256}
    assert choco(codec=None).call == "choco(codec=None, gamma=0.2, topology=ring(), moments='keep')"
