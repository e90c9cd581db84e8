"""Bytes per worker and step of the decentral strategies, for several numbers of workers: what their pages say.

b is one copy of the model ("4 d" on the pages, where values have 4 bytes), h the header of a letter.
"""

from __future__ import annotations

import pytest

from fast.loop.loading import strategy_from
from fast.trace import Meter

from .problem import DIM, LeastSquares

PROBLEM = LeastSquares()
STEPS, b, h = 12, 8 * DIM, 256
SIZES = (2, 3, 5, 8)


def sent(call, size, steps=STEPS):
    """By every participant until all workers have taken so many steps, and before any of them leaves."""
    strategy = strategy_from(call)
    meters = [Meter() for _ in range(size + strategy.servers(size))]
    observers = [lambda record: meters[record.who](record)]
    simulation = PROBLEM.simulation(
        strategy, PROBLEM.batches(size, steps + 1), momentum=0.9, observers=observers
    )
    simulation.run(pause_after=steps)
    assert all(worker.me.steps == steps for worker in simulation.workers)
    return [meter.bytes_sent for meter in meters]


def mean_bytes(size):
    """Of one round among all: 2 (P - 1) / P copies, without headers."""
    return 2 * (size - 1) * b // size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("call", "rounds"),
    [
        ("allreduce", STEPS),
        ("local_sgd(tau=4)", STEPS / 4),
        ("local_sgd(tau=4, moments='average')", 2 * STEPS / 4),
        ("post_local_sgd(tau=4, after=8)", 8 + 1),
        ("slowmo(tau=3)", STEPS / 3),
        ("diloco(interval=6)", STEPS / 6),
        ("streaming_diloco(fragments=1, interval=4, overlap=0)", STEPS / 4),
        ("one_shot", 0),
    ],
)
def test_rounds_among_all(call, rounds, size):
    """8 d (P - 1) / P for each."""
    assert sent(call, size) == [rounds * mean_bytes(size)] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "call", ["sparknet(tau=4)", "easgd(tau=4)", "easgd(tau=4, synchronous=True)", "eamsgd(tau=4)"]
)
def test_through_a_server(call, size):
    """4 d / tau up from each worker, and as much down to each."""
    each = STEPS / 4 * (b + h)
    assert sent(call, size) == [each] * size + [size * each]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("call", "extra"), [("dpsgd", 1), ("dpsgd(moments='correct')", 1), ("choco(codec=None)", 0)]
)
def test_on_a_ring(call, extra, size):
    """4 d to each of two neighbours; of two workers each has one. What is sent ahead of the first step counts too."""
    neighbours = 2 if size > 2 else 1
    assert sent(call, size) == [(STEPS + extra) * neighbours * (b + h)] * size


@pytest.mark.parametrize(("size", "neighbours"), [(2, 1), (3, 2), (4, 2), (6, 3), (8, 3), (9, 4), (16, 4)])
def test_on_a_torus(size, neighbours):
    """16 d with four neighbours; one that is reached twice, where a side is two or one long, counts once."""
    assert sent("torus", size) == [STEPS * neighbours * (b + h)] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("call", "extra", "copies"),
    [
        ("sgp", 0, 1),
        ("sgp(moments='average')", 0, 2),
        ("osgp", 1, 1),
        ("gossipgrad", 1, 1),
        ("gosgd(p=1)", 0, 1),
    ],
)
def test_to_one_other_in_every_step(call, extra, copies, size):
    assert sent(call, size) == [(STEPS + extra) * (copies * b + h)] * size


@pytest.mark.parametrize("size", SIZES)
def test_gossip_sends_with_its_probability(size):
    """4 d p in the mean: within 5 standard deviations."""
    steps, p = 150, 0.25
    letters = sum(sent(f"gosgd(p={p})", size, steps)) / (b + h)
    assert letters == int(letters)
    assert abs(letters - size * steps * p) < 5 * (size * steps * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("size", SIZES)
def test_pairs_that_never_wait_send_at_most_one_letter_a_step_in_the_mean(size):
    """Each exchange is a letter there and one back; how often there is one depends on when answers come."""
    total = sum(sent("ad_psgd", size))
    assert total % (b + h) == 0
    assert 0 < total <= size * (STEPS + 1) * (b + h)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("call", "copies"), [("noloco(interval=4)", 2), ("noloco(interval=4, send='sum')", 1)]
)
def test_random_pairs(call, copies, size):
    """8 d / interval sent, and as much received; of an odd number one stays alone in each round."""
    found = sent(call, size)
    assert sum(found) == STEPS / 4 * (size - size % 2) * (copies * b + h)
    assert size % 2 or len(set(found)) == 1


@pytest.mark.parametrize("size", SIZES)
def test_up_and_down_a_tree(size):
    """4 d / up, and 4 d / down for each child: places 2 i + 1 and 2 i + 2."""
    children = [len({2 * i + 1, 2 * i + 2} & set(range(size))) for i in range(size)]
    letters = [(STEPS / 2 if i else 0) + STEPS / 3 * children[i] for i in range(size)]
    assert sent("tree_easgd(up=2, down=3)", size) == [count * (b + h) for count in letters]
