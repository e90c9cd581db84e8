"""Elastic averaging on a tree of workers, against plain loops in float64."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.core import Letter
from fast.errors import UsageError
from fast.parts import Tree
from fast.sim.checkers import Checkers
from fast.sim.faults import Director, parse_scenario
from fast.strategies.decentral.elastic_tree import fold_pulls
from fast.strategies.presets import easgd, tree_easgd
from fast.trace import Sent, Waited

from .problem import DIM, LeastSquares, RandomCompute, RoundRobin, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.01


def apart(size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(DIM, generator=generator, dtype=torch.float64) for _ in range(size)]


# Values


def in_turns(batches, *, branching, up, down, alpha):
    """Workers one after another; each letter waits by itself until its reader's next turn."""
    size = len(batches)
    x = [PROBLEM.start] * size
    waiting = [[] for _ in range(size)]
    for step in range(len(batches[0])):
        for i in range(size):
            g = PROBLEM.gradient(x[i], batches[i][step])
            for _, y in sorted(waiting[i], key=lambda letter: letter[0]):
                x[i] = x[i] - alpha * (x[i] - y)
            waiting[i] = []
            x[i] = x[i] - LR * g
            if (step + 1) % up(i) == 0 and i > 0:
                waiting[(i - 1) // branching].append((i, x[i]))
            for child in range(branching * i + 1, min(branching * i + branching + 1, size)):
                if (step + 1) % down(i) == 0:
                    waiting[child].append((i, x[i]))
    return torch.stack(x)


@pytest.mark.parametrize(
    ("branching", "up", "down", "alpha"),
    [
        (2, 1, 1, None),
        (2, 3, 5, None),
        (3, 2, 4, 0.5),
        (1, 2, 3, 0.1),
        (2, [7, 3, 1], [2, 4], 0.3),
        (2, lambda place: 1 + place, lambda place: 7 - place, 0.3),
    ],
    ids=["every", "apart", "three", "line", "by level", "by place"],
)
def test_it_is_the_plain_loop(branching, up, down, alpha):
    def at(interval):
        if isinstance(interval, int):
            return lambda place: interval
        if callable(interval):
            return interval
        levels = {place: (0 if place == 0 else 1 if place < 3 else 2) for place in range(7)}
        return lambda place: interval[min(levels[place], len(interval) - 1)]

    batches = PROBLEM.batches(7, 20)
    strategy = tree_easgd(branching=branching, up=up, down=down, alpha=alpha)
    longer = [[*own, (0, 1)] for own in batches]  # so that nobody has left
    simulation = PROBLEM.simulation(strategy, longer, lr=LR, compute=RoundRobin())
    simulation.run(pause_after=20)
    used = 0.9 / (branching + 1) if alpha is None else alpha
    assert close(
        weights(simulation), in_turns(batches, branching=branching, up=at(up), down=at(down), alpha=used)
    )


def slow(worker: int):
    """One who takes ten times as long as the others, so that letters fold while they wait."""

    class Slow:
        def duration_ns(self, who, workers, step, seed):
            return 1_000_000 * (10 if who == worker else 1) + who

    return Slow()


def test_letters_that_wait_together_pull_one_after_the_other():
    """The root reads once while its child sends ten times; nothing but the child's ten letters moves it."""
    starts, alpha = apart(2), 0.3
    simulation = PROBLEM.simulation(
        tree_easgd(up=1, down=1000, alpha=alpha),
        PROBLEM.batches(2, [2, 21]),
        lr=LR,
        starts=starts,
        compute=slow(0),
    )
    x, y, batches = starts[0], starts[1], PROBLEM.batches(2, [2, 21])
    sent = []
    for batch in batches[1]:
        y = y - LR * PROBLEM.gradient(y, batch)
        sent.append(y)
    for first, last, batch in ((0, 9, batches[0][0]), (9, 19, batches[0][1])):
        g = PROBLEM.gradient(x, batch)
        for own in sent[first:last]:
            x = x - alpha * (x - own)
        x = x - LR * g
    simulation.run()  # what the child sends after the root has left is dropped
    assert close(simulation.me(0).weights, x)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-5, 5), min_size=2, max_size=6),
    alphas=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=6, max_size=6),
)
def test_folding_pulls_as_far_as_one_after_the_other(values, alphas):
    x = torch.full((3,), 2.0, dtype=torch.float64)
    letters = [
        Letter(0, "replica", torch.full_like(x, value), (n,), note={"alpha": alpha})
        for n, (value, alpha) in enumerate(zip(values, alphas, strict=False))
    ]
    one_by_one, folded = x, letters[0]
    for letter in letters:
        one_by_one = one_by_one.lerp(letter.tensor, letter.note["alpha"])
    for letter in letters[1:]:
        folded = fold_pulls(folded, letter)
    assert close(x.lerp(folded.tensor, folded.note["alpha"]), one_by_one)
    assert folded.steps == tuple(range(len(letters)))


# B37


class Hull:
    """After every event: nobody, and no letter, is outside of where all began, coordinate by coordinate."""

    def __init__(self, starts):
        values = torch.stack(starts)
        self.low, self.high, self.events = values.amin(0) - 1e-12, values.amax(0) + 1e-12, 0

    def __call__(self, simulation):
        letters = [letter for _, letter in simulation.on_the_way()]
        for p in simulation.workers:
            letters += simulation.unread(p.me.id)
        for values in [p.me.weights for p in simulation.workers] + [letter.tensor for letter in letters]:
            assert bool(((self.low <= values) & (values <= self.high)).all())
        self.events += 1


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=2, max_size=7),
    branching=st.integers(1, 3),
    up=st.integers(1, 3),
    down=st.integers(1, 3),
    alpha=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_without_gradients_all_stay_between_the_lowest_and_the_highest(
    counts, branching, up, down, alpha, seed
):
    size = len(counts)
    starts = apart(size)
    hull = Hull(starts)
    simulation = PROBLEM.simulation(
        tree_easgd(branching, up, down, alpha),
        PROBLEM.batches(size, counts),
        lr=0.0,
        starts=starts,
        seed=seed,
        compute=RandomCompute(),
        network=random_network(size, seed),
    )
    simulation.run(after_event=hull)
    assert hull.events >= sum(counts)


def test_without_gradients_all_come_together():
    simulation = PROBLEM.simulation(
        tree_easgd(up=1, down=1), PROBLEM.batches(7, 101), lr=0.0, starts=apart(7), compute=RoundRobin()
    )
    simulation.run(pause_after=100)
    found = weights(simulation)
    assert close(found, found[:1].expand_as(found), 1e-2)


def test_a_tree_of_one_level_pulls_as_easgd_does():
    """B37: the root moves towards a child as the centre does, and the child towards the root as it is then, half of
    easgd's exchange each. Here child 1 sends, then the root sends back."""
    starts, alpha = apart(2), 0.3
    tree = PROBLEM.simulation(
        tree_easgd(branching=1, up=1, down=1, alpha=alpha),
        PROBLEM.batches(2, [2, 1]),
        lr=0.0,
        starts=starts,
        compute=slow(0),
    )
    tree.run()
    elastic = PROBLEM.simulation(easgd(tau=1, alpha=alpha), PROBLEM.batches(2, [0, 1]), lr=0.0, starts=starts)
    elastic.run()
    assert close(tree.me(0).weights, elastic.me(2).weights)
    assert equal(tree.me(1).weights, starts[1])  # it has left before the root's letter came


# Who is told, and when


def sends(strategy, counts, **options):
    sent = []

    def watch(record):
        if isinstance(record, Sent):
            sent.extend((record.who, to, record.step) for to in record.to)
            assert record.nbytes == len(record.to) * (8 * DIM + 256)

    size = len(counts)
    options = {"compute": RandomCompute(), "network": random_network(size, 4), **options}
    simulation = PROBLEM.simulation(
        strategy, PROBLEM.batches(size, counts), lr=LR, observers=[watch], **options
    )
    simulation.run(pause_after=min(counts))
    return sent


def test_parents_and_children_each_at_their_intervals():
    """Places 1 and 2 are below the root, 3 and 4 below 1, 5 and 6 below 2."""
    sent = Counter((who, to) for who, to, _ in sends(tree_easgd(up=[5, 3, 2], down=4), [24] * 7))
    ups = {(1, 0): 8, (2, 0): 8, (3, 1): 12, (4, 1): 12, (5, 2): 12, (6, 2): 12}
    downs = dict.fromkeys([(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)], 6)
    assert sent == {**ups, **downs}


def test_nobody_ever_waits():
    waited = []

    def watch(record):
        if isinstance(record, Waited):
            waited.append(record)

    simulation = PROBLEM.simulation(
        tree_easgd(up=1, down=1), PROBLEM.batches(5, 12), lr=LR, observers=[watch],
        compute=RandomCompute(), network=random_network(5, 9),
    )  # fmt: skip
    simulation.run()
    assert not waited


def test_when_somebody_leaves_the_tree_is_knit_anew():
    """The root leaves after 5 steps: of workers 1 to 6 the first becomes the root, and so on."""
    sent = []

    def watch(record):
        if isinstance(record, Sent) and record.step >= 8:
            sent.extend((record.who, to) for to in record.to)

    simulation = PROBLEM.simulation(
        tree_easgd(up=1, down=1), PROBLEM.batches(7, [5] + [20] * 6), lr=LR, observers=[watch]
    )
    simulation.run(pause_after=20)
    needed = {(1 + a, 1 + b) for a in range(6) for b in Tree(2).links(a, 6, 0)}
    assert set(sent) == needed


def test_letters_may_be_lost_and_workers_come():
    strategy = tree_easgd(up=1, down=2)
    checkers = Checkers(strategy)
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(6, 40),
        lr=LR,
        observers=[checkers],
        faults=Director(
            parse_scenario(
                "letters travel as datagrams; 20% of letters are lost; worker 1 dies at 100ms; worker 5 joins at 200ms"
            ),
            1,
        ),
        absent=[5],
        spoil_letters=True,
    )
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    assert simulation.me(5).fresh and checkers.seen.dropped > 10
    optimum = torch.linalg.lstsq(PROBLEM.a, PROBLEM.b).solution
    start = float((PROBLEM.start - optimum).norm())
    assert all(float((p.me.weights - optimum).norm()) < start for p in simulation.workers if not p.dead)


def test_alone_it_is_plain_training_bit_for_bit():
    batches, w = PROBLEM.batches(1, 9), PROBLEM.start.clone()
    for batch in batches[0]:
        w -= LR * PROBLEM.gradient(w, batch)
    simulation = PROBLEM.simulation(tree_easgd(up=1, down=1), batches, lr=LR)
    simulation.run()
    assert equal(weights(simulation)[0], w)


# What can't be


@pytest.mark.parametrize(
    "wrong",
    [{"branching": 0}, {"up": 0}, {"down": [10, 0]}, {"up": []}, {"up": "x"}, {"down": 2.0}, {"alpha": 2}],
    ids=repr,
)
def test_what_can_not_be_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        tree_easgd(**wrong)


def test_what_a_function_gives_is_checked_before_anything_starts():
    tree_easgd(up=lambda place: place + 1, down=lambda place: 3).check(7)
    with pytest.raises(UsageError, match=r"up\(0\)=0\): a whole number from 1 on"):
        tree_easgd(up=lambda place: place).check(3)
    with pytest.raises(UsageError, match=r"down\(2\)=2\.5\): a whole number"):
        tree_easgd(down=lambda place: 1 if place < 2 else 2.5).check(3)
