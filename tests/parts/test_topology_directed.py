"""Directed topologies: the exponential graph, one-way channels, and push-sum in plain numpy."""

from __future__ import annotations

from math import floor, log2

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.parts import Channels, Exponential, Full, Graph, Hypercube, Ring, Rotating, Star, Topology, Torus
from fast.testing import check_topology, mixing_matrix
from fast.testing.topology import contraction, push_matrix
from fast.view import View

# The one-peer exponential graph


def test_exponential_of_eight() -> None:
    """Steps of 1, 2 and 4 and then 1 again; a fourth step of 8 would end where it began."""
    told = [[Exponential().told(i, 8, t) for i in range(8)] for t in range(4)]
    assert told == [
        [(1,), (2,), (3,), (4,), (5,), (6,), (7,), (0,)],
        [(2,), (3,), (4,), (5,), (6,), (7,), (0,), (1,)],
        [(4,), (5,), (6,), (7,), (0,), (1,), (2,), (3,)],
        [(1,), (2,), (3,), (4,), (5,), (6,), (7,), (0,)],
    ]
    heard = [[Exponential().links(i, 8, t) for i in range(8)] for t in range(3)]
    assert heard == [
        [(7,), (0,), (1,), (2,), (3,), (4,), (5,), (6,)],
        [(6,), (7,), (0,), (1,), (2,), (3,), (4,), (5,)],
        [(4,), (5,), (6,), (7,), (0,), (1,), (2,), (3,)],
    ]
    assert Exponential().period(8) == 3


@pytest.mark.parametrize("size", range(2, 66))
def test_exponential_by_the_formula(size: int) -> None:
    k = floor(log2(size - 1)) + 1
    assert Exponential().period(size) == k
    for t in range(2 * k):
        for i in range(size):
            assert Exponential().told(i, size, t) == ((i + 2 ** (t % k)) % size,)


def test_exponential_of_few() -> None:
    assert Exponential().links(0, 1, 5) == Exponential().told(0, 1, 5) == ()
    assert Exponential().period(1) == 1
    assert [Exponential().links(i, 2, t) for t in range(2) for i in range(2)] == [(1,), (0,)] * 2
    assert [Exponential().describe(size) for size in (1, 2, 9)] == [
        "exponential graph of 1",
        "exponential graph of 2: each tells the one 1 further on",
        "exponential graph of 9: each tells the one 1, 2, 4, 8 further on in turn",
    ]


def test_exponential_with_all_its_peers() -> None:
    every = Exponential(one_peer=False)
    assert every.told(3, 8, 17) == (4, 5, 7)
    assert every.links(3, 8, 17) == (1, 2, 7)
    assert set(every.neighbours(3, View(0, tuple(range(8))), 0).values()) == {1 / 4}


@pytest.mark.parametrize(("size", "exact"), [(2, True), (8, True), (16, True), (6, False), (12, False)])
def test_exponential_makes_the_exact_mean_of_a_power_of_two(size: int, exact: bool) -> None:
    product = np.eye(size)
    for t in range(Exponential().period(size)):
        product = mixing_matrix(Exponential(), size, t).numpy() @ product
    assert np.allclose(product, 1 / size, rtol=0, atol=1e-15) == exact


def test_exponential_mixes_with_halves() -> None:
    view = View(4, (10, 20, 30, 40))
    assert Exponential().neighbours(0, view, 1) == {30: 1 / 2}
    assert Exponential().audience(1, view, 0) == {30: 1 / 2}
    assert Exponential().heard(1, view, 0) == (10,)


# One-way channels


def test_one_way_channels() -> None:
    mixed = Channels([(0, 1)]).attach(1, 2, one_way=True).attach(2, 0, one_way=True)
    assert mixed.directed
    assert [mixed.links(i, 3, 0) for i in range(3)] == [(1, 2), (0,), (1,)]
    assert [mixed.told(i, 3, 0) for i in range(3)] == [(1,), (0, 2), (0,)]
    assert mixed.audience(1, View(0, (5, 6, 7)), 0) == {5: 1 / 3, 7: 1 / 3}
    check_topology(mixed, sizes=[3])


def test_there_and_back_is_both_ways() -> None:
    both = Channels(one_way=[(0, 1), (1, 0)])
    assert not both.directed
    assert repr(both) == "channels([(0, 1)])"


def test_a_one_way_ring_stays_one_when_workers_leave() -> None:
    ring = Channels(one_way=[(i, (i + 1) % 6) for i in range(6)])
    for size in range(3, 7):
        assert [ring.told(i, size, 0) for i in range(size)] == [((i + 1) % size,) for i in range(size)]
    assert not any(ring.links(0, 1, 0))
    check_topology(ring, sizes=[6])


def test_graph_with_arcs() -> None:
    """By an arc (u, v), v hears u."""
    topology = Graph(networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")]))
    assert topology.directed
    assert repr(topology) == "channels([(0, 2)], one_way=[(0, 1), (1, 2)])"
    assert [topology.links(i, 3, 0) for i in range(3)] == [(2,), (0,), (0, 1)]
    assert not Graph(networkx.DiGraph([(0, 1), (1, 0)])).directed


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 10), st.integers(0, 1000))
def test_kit_on_directed_graphs(size: int, seed: int) -> None:
    """Any strongly connected graph, and what is left of it when workers leave."""
    graph = networkx.gnp_random_graph(size, 0.3, seed=seed, directed=True)
    networkx.add_cycle(graph, range(size))
    check_topology(Graph(graph), sizes=[size])


class Onward(Topology):
    """As somebody would write a directed topology who says only what must be said."""

    directed = True

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return tuple(sorted({(index - 1) % size, (index - 3) % size} - {index}))


def test_who_is_told_follows_from_who_is_heard() -> None:
    assert Onward().told(2, 8, 0) == (3, 5)
    check_topology(Onward())


# Plain mixing


def test_plain_mixing_of_an_unbalanced_graph_is_refused() -> None:
    """0 tells two and hears one, so its row is 1/3 + 1/2."""
    graph = Channels(one_way=[(0, 1), (0, 2), (1, 2), (2, 0)])  # 0 and 2 hear each other
    with pytest.raises(UsageError, match=r"2 of them one way: the weights of place 0 add up to 0\.833"):
        graph.neighbours(0, View(0, (0, 1, 2)), 0)
    with pytest.raises(UsageError, match="Use a strategy with push-sum"):
        mixing_matrix(graph, 3)


def test_plain_mixing_of_a_balanced_graph_is_allowed() -> None:
    """Everybody tells two and hears two, so the shares are weights as well."""
    balanced = Channels(one_way=[(i, (i + step) % 7) for i in range(7) for step in (1, 3)])
    expected = np.zeros((7, 7))
    for i in range(7):
        expected[i, [i, (i - 1) % 7, (i - 3) % 7]] = 1 / 3
    np.testing.assert_allclose(mixing_matrix(balanced, 7).numpy(), expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(push_matrix(balanced, 7).numpy(), expected, rtol=0, atol=1e-15)


# Push-sum


def push_sum(topology: Topology, x: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """x and w after so many rounds: each parts both among itself and its audience."""
    size, w = len(x), np.ones(len(x))
    view = View(0, tuple(range(size)))
    for round_ in range(rounds):
        new_x, new_w = np.zeros_like(x), np.zeros_like(w)
        for i in range(size):
            shares = topology.audience(i, view, round_)
            kept = 1 - sum(shares.values())
            for j, share in {**shares, i: kept}.items():
                new_x[j] += share * x[i]
                new_w[j] += share * w[i]
        x, w = new_x, new_w
    return x, w


def directed_graph() -> Topology:
    """Twelve places, about three arcs each at random, and a cycle so that everybody is reached."""
    graph = networkx.gnp_random_graph(12, 0.25, seed=5, directed=True)
    networkx.add_cycle(graph, range(12))
    return Graph(graph)


def test_push_sum_finds_the_mean_where_plain_shares_do_not() -> None:
    start = np.random.default_rng(1).normal(3, 1, 12)
    x, w = push_sum(directed_graph(), start, 200)
    np.testing.assert_allclose(x / w, start.mean(), rtol=1e-12)
    assert np.abs(x - start.mean()).max() > 0.5
    assert np.ptp(w) > 0.3


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_push_sum_loses_nothing_on_the_way(rounds: int) -> None:
    start = np.random.default_rng(2).normal(3, 1, 12)
    x, w = push_sum(directed_graph(), start, rounds)
    assert x.sum() == pytest.approx(start.sum(), rel=1e-14)
    assert w.sum() == pytest.approx(12, rel=1e-14)
    assert (w > 0).all()


def test_push_sum_on_a_star() -> None:
    """Channels both ways, unequal degrees: the shares aren't mixing weights, and z still finds the mean."""
    start = np.arange(6.0)
    x, w = push_sum(Star(), start, 300)
    np.testing.assert_allclose(x / w, 2.5, rtol=1e-12)
    assert np.ptp(w) > 1


@pytest.mark.parametrize(
    "topology",
    [Exponential(), Exponential(one_peer=False), Ring(), Torus(), Hypercube(one_peer=True), Full(),
     Rotating([Ring(), Exponential()])],
    ids=repr,
)  # fmt: skip
def test_push_sum_is_plain_mixing_where_everybody_tells_as_many_as_it_hears(topology: Topology) -> None:
    """All w stay 1, and x follows W x."""
    x = plain = np.random.default_rng(3).normal(size=8)
    for round_ in range(6):
        plain = mixing_matrix(topology, 8, round_).numpy() @ plain
    x, w = push_sum(topology, x, 6)
    np.testing.assert_allclose(w, 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(x, plain, rtol=0, atol=1e-14)


def test_push_sum_on_what_is_left_of_a_graph() -> None:
    """Workers leave: the shares are made anew and still part everything."""
    for size in range(2, 12):
        columns = push_matrix(directed_graph(), size).numpy().sum(0)
        np.testing.assert_allclose(columns, 1, rtol=0, atol=1e-15)
        start = np.arange(float(size))
        x, w = push_sum(directed_graph(), start, 300)
        np.testing.assert_allclose(x / w, start.mean(), rtol=1e-9)


def test_contraction_of_those_that_take_turns() -> None:
    assert contraction(Exponential(), 8) == pytest.approx(0, abs=1e-4)
    assert contraction(Hypercube(one_peer=True), 8) == pytest.approx(0, abs=1e-4)
    assert 0.3 < contraction(Exponential(), 6) < 0.8
