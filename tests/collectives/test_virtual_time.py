"""In the simulated world rounds take the time that the cost models say, and give what they give elsewhere."""

from __future__ import annotations

import pytest
import torch

from fast.collectives import cost
from fast.core import Strategy
from fast.core.world import Link
from fast.parts.codecs.eight_bit import Int8
from fast.parts.codecs.feedback import ErrorFeedback
from fast.parts.codecs.low_rank import Factored
from fast.parts.codecs.selections import TopK
from fast.sim import Network
from sim.problem import LeastSquares

PROBLEM = LeastSquares()
NETWORK = Network(1e6, 1e-3)
LINK = Link(NETWORK.latency_s, NETWORK.rate_bytes_per_s)
HEADER_BYTES = 256


class Once(Strategy):
    """A strategy of one function."""

    def __init__(self, ask):
        self.ask = ask

    async def step(self, me):
        await self.ask(me)


def simulated(ask, counts):
    """What each worker's `ask` gives in its steps, and how long each took in virtual time."""
    results = {}

    async def measured(me):
        began = me.world.now()
        found = await ask(me)
        results.setdefault(me.id, []).append((found.clone(), (me.world.now() - began) * 1e-9))

    PROBLEM.simulation(Once(measured), PROBLEM.batches(len(counts), counts), network=NETWORK).run()
    return results


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "doubling", "rabenseifner", "tree"])
def test_a_sum_takes_as_long_as_the_model_says(size, name):
    """Besides one hop in which everybody says that it is there, and a header on each letter."""
    length = 8000
    letters = {"ring": 2 * (size - 1), "tree": 2, "doubling": 1, "rabenseifner": 2}[name]
    hops = letters if name == "ring" else letters * (size.bit_length() - 1)

    async def ask(me):
        return await me.mean(torch.full((length,), float(me.id)), algorithm=name)

    found = simulated(ask, [1] * size)
    expected = (
        LINK.latency_s
        + cost.COSTS[name](size, 4 * length, LINK)
        + (hops + 1) * HEADER_BYTES / LINK.rate_bytes_per_s
    )
    assert max(took for ((_, took),) in found.values()) == pytest.approx(expected, rel=1e-6)
    assert all(result.tolist() == [(size - 1) / 2] * length for ((result, _),) in found.values())


@pytest.mark.parametrize("name", ["ring", "doubling", "rabenseifner", "tree", "direct", "exchange"])
def test_who_has_taken_its_last_step_is_left_out(name):
    """Unequal numbers of steps: each mean is that of those who are still there."""
    counts = [3, 1, 4, 2, 4]

    async def ask(me):
        return await me.mean(torch.full((30,), 2.0**me.id), algorithm=name)

    found = simulated(ask, counts)
    for step in range(4):
        there = [k for k, count in enumerate(counts) if count > step]
        for k in there:
            expected = sum(2.0**j for j in there) / len(there)
            assert found[k][step][0].tolist() == pytest.approx([expected] * 30)


@pytest.mark.parametrize(
    "codec", [Int8(), TopK(0.3), ErrorFeedback(TopK(0.3)), ErrorFeedback(Int8()), Factored(1)], ids=repr
)
@pytest.mark.parametrize("order", ["canonical", "any"])
def test_codecs_in_virtual_time(codec, order):
    """Everybody has the same bits in every step; what arrives in the first is the mean, if anything does."""

    async def ask(me):
        return await me.mean(torch.full((6, 50), 1.0 + me.id), codec=codec, order=order)

    found = simulated(ask, [2, 2, 2])
    for step in range(2):
        results = [found[k][step][0] for k in range(3)]
        assert all(torch.equal(result, results[0]) for result in results)
    first = found[0][0][0]
    assert first.count_nonzero() >= 90
    assert torch.allclose(first[first != 0], torch.tensor(2.0), atol=0.05)
