"""GoSGD: shares and weighted sums under random schedules, and that it is what `gossip` is."""

import pytest
import torch

from fast.errors import UsageError
from fast.sim import TraceHash
from fast.sim.checkers.sums import SumOfWeights
from fast.strategies.presets import gosgd, gossip

from .problem import LeastSquares, RandomCompute, close, equal, random_network, weights
from .schedules import FEW_AND_MANY, counts_of, run_watched

PROBLEM = LeastSquares()


@pytest.mark.parametrize("seeds", FEW_AND_MANY)
def test_no_schedule_loses_a_share_or_what_it_stands_for(seeds):
    """B56: all shares add up to 1 (watched by the strategy's own promise), and so do share times weights to what they
    were, letters that have folded while they waited included."""
    for seed in seeds:
        sums = SumOfWeights(lambda me: me.state.share * me.weights, lambda x: x.note["share"] * x.tensor)
        run_watched(gosgd(p=0.7), counts_of(seed), seed, sums)


def trained(strategy, **options):
    trace = TraceHash()
    simulation = PROBLEM.simulation(
        strategy, PROBLEM.batches(4, 15), compute=RandomCompute(), network=random_network(4, 2), seed=2,
        observers=[trace], **options,
    )  # fmt: skip
    simulation.run()
    return weights(simulation), trace.hexdigest()


def test_it_is_gossip_bit_for_bit():
    (ours, trace), (theirs, other) = trained(gosgd(p=0.4)), trained(gossip(p=0.4))
    assert equal(ours, theirs) and trace == other


def test_without_gossip_it_is_independent_sgd():
    ends, _ = trained(gosgd(p=0))
    for i, own in enumerate(PROBLEM.batches(4, 15)):
        w = PROBLEM.start
        for batch in own:
            w = w - 0.05 * PROBLEM.gradient(w, batch)
        assert close(ends[i], w)
    assert not torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("p", [-0.1, 1.1, True, "often"])
def test_p_is_a_probability(p):
    with pytest.raises(UsageError, match=r"gosgd\(p=.*from 0 to 1"):
        gosgd(p=p)
