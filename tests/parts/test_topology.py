"""Topologies: the kit, then what is special about each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import cos, pi

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.parts import (
    TOPOLOGIES,
    Bipartite,
    Channels,
    Exponential,
    Full,
    Graph,
    Grid,
    Hypercube,
    RandomRegular,
    Ring,
    Rotating,
    Shuffled,
    Star,
    Topology,
    Torus,
    Tree,
)
from fast.parts.topology.random_regular import random_regular
from fast.strategies.expression import parse_strategy
from fast.testing import check_topology, mixing_matrix
from fast.testing.topology import contraction
from fast.view import View

READY = [
    Ring(), Full(), Star(), Bipartite(),
    Torus(), Torus(rows=2), Torus(columns=3), Torus(rows=3, columns=4), Grid(), Grid(rows=3, columns=4),
    Tree(), Tree(arity=1), Tree(arity=3),
    Hypercube(), Hypercube(one_peer=True), Exponential(), Exponential(one_peer=False),
    RandomRegular(), RandomRegular(degree=4, seed=7), RandomRegular(degree=2, changing=True),
    Rotating([Ring()]), Rotating([Star(), Hypercube(one_peer=True)]), Rotating([Exponential(), Tree()]),
]  # fmt: skip


@pytest.mark.parametrize("topology", READY, ids=repr)
def test_kit(topology: Topology) -> None:
    check_topology(topology)


def test_kit_on_channels() -> None:
    check_topology(Channels([(0, 1), (1, 2), (3, 1)]), sizes=[4])
    check_topology(Channels([(0, 1)]), sizes=[3], connected=False)


# Against other people's graphs


def graph_of(topology: Topology, size: int, round_: int = 0) -> networkx.Graph:
    graph = networkx.Graph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from((i, j) for i in range(size) for j in topology.links(i, size, round_))
    return graph


def edges_of(graph: networkx.Graph) -> set[tuple[int, int]]:
    """By place, for labels of any kind in their own order."""
    place = {label: number for number, label in enumerate(sorted(graph.nodes))}
    return {(min(place[a], place[b]), max(place[a], place[b])) for a, b in graph.edges}


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        *[(Ring(), networkx.cycle_graph(size)) for size in (3, 4, 9)],
        *[(Full(), networkx.complete_graph(size)) for size in (1, 2, 7)],
        *[(Star(), networkx.star_graph(size - 1)) for size in (1, 2, 8)],
        *[
            (Grid(r, c), networkx.grid_2d_graph(r, c))
            for r, c in ((1, 1), (1, 5), (3, 4), (4, 3), (2, 2), (5, 1))
        ],
        *[(Torus(r, c), networkx.grid_2d_graph(r, c, periodic=True)) for r, c in ((3, 3), (3, 5), (4, 4))],
        *[(Tree(r), networkx.balanced_tree(r, h)) for r, h in ((2, 0), (2, 3), (3, 2), (1, 4))],
        *[(Tree(r), networkx.full_rary_tree(r, size)) for r, size in ((2, 6), (3, 8), (4, 2))],
        *[(Hypercube(), networkx.hypercube_graph(n)) for n in (1, 2, 3, 4)],
    ],
    ids=lambda value: repr(value) if isinstance(value, Topology) else len(value),
)
def test_it_is_the_graph_of_that_name(topology: Topology, expected: networkx.Graph) -> None:
    topology.check(len(expected))
    assert edges_of(graph_of(topology, len(expected))) == edges_of(expected)


@pytest.mark.parametrize("size", range(1, 12))
def test_bipartite_is_the_complete_one_whatever_the_size(size: int) -> None:
    graph = graph_of(Bipartite(), size)
    assert edges_of(graph) == {(a, b) for a, b in combinations(range(size), 2) if (a + b) % 2 == 1}
    assert networkx.is_bipartite(graph)


@pytest.mark.parametrize("topology", [Ring(), Torus(), Grid(), Star(), Tree(), Hypercube(), Full()], ids=repr)
def test_mixing_weights_are_those_of_metropolis_and_hastings(topology: Topology) -> None:
    """From the degrees of the graph, in plain loops."""
    graph = graph_of(topology, 16)
    expected = np.zeros((16, 16))
    for a, b in graph.edges:
        expected[a, b] = expected[b, a] = 1 / (1 + max(graph.degree[a], graph.degree[b]))
    for a in range(16):
        expected[a, a] = 1 - expected[a].sum()
    np.testing.assert_allclose(mixing_matrix(topology, 16).numpy(), expected, rtol=0, atol=1e-15)


# Ring, torus, full


def eigenvalues(topology: Topology, size: int) -> torch.Tensor:
    """Of the mixing matrix, largest first."""
    return torch.linalg.eigvalsh(mixing_matrix(topology, size)).flip(0)


@pytest.mark.parametrize("size", [3, 5, 8, 16])
def test_ring_eigenvalues(size: int) -> None:
    expected = sorted(((1 + 2 * cos(2 * pi * k / size)) / 3 for k in range(size)), reverse=True)
    assert eigenvalues(Ring(), size).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 5), (4, 4)])
def test_torus_eigenvalues(rows: int, columns: int) -> None:
    expected = sorted(
        (
            (1 + 2 * cos(2 * pi * a / rows) + 2 * cos(2 * pi * b / columns)) / 5
            for a in range(rows)
            for b in range(columns)
        ),
        reverse=True,
    )
    assert eigenvalues(Torus(rows, columns), rows * columns).tolist() == pytest.approx(expected, abs=1e-12)


def test_disagreement_decays_by_the_second_eigenvalue() -> None:
    """Zero gradient, the slowest wave around a ring of 8: every round multiplies it by 0.8047."""
    x = [cos(2 * pi * place / 8) for place in range(8)]
    start, view = list(x), View(0, tuple(range(8)))
    for round_ in range(20):
        edges = [Ring().neighbours(place, view, round_) for place in range(8)]
        x = [x[i] + sum(w * (x[j] - x[i]) for j, w in edges[i].items()) for i in range(8)]
    assert x == pytest.approx([0.8047378541243649**20 * value for value in start], abs=1e-12)


@pytest.mark.parametrize("topology", [Ring(), Torus(), Star(), Bipartite(), Tree(), Full()], ids=repr)
def test_contraction_is_the_second_eigenvalue(topology: Topology) -> None:
    expected = sorted(abs(value) for value in eigenvalues(topology, 16).tolist())[-2]
    assert contraction(topology, 16) == pytest.approx(expected, abs=1e-12)


def test_second_eigenvalues() -> None:
    assert float(eigenvalues(Ring(), 8)[1]) == pytest.approx(0.8047, abs=5e-5)
    assert float(eigenvalues(Torus(), 16)[1]) == pytest.approx(0.6, abs=1e-12)


def test_full_mixes_at_once() -> None:
    assert torch.allclose(mixing_matrix(Full(), 7), torch.full((7, 7), 1 / 7, dtype=torch.float64))


@pytest.mark.parametrize(
    ("size", "sides"),
    [
        (1, (1, 1)),
        (2, (1, 2)),
        (4, (2, 2)),
        (6, (2, 3)),
        (7, (1, 7)),
        (12, (3, 4)),
        (13, (1, 13)),
        (16, (4, 4)),
    ],
)
def test_torus_is_as_square_as_it_can_be(size: int, sides: tuple[int, int]) -> None:
    assert Torus().sides(size) == sides


def test_torus_of_six() -> None:
    """2 x 3: up and down are the same neighbour, which counts once.

    0 1 2
    3 4 5
    """
    assert [Torus().links(i, 6, 0) for i in range(6)] == [
        (1, 2, 3), (0, 2, 4), (0, 1, 5), (0, 4, 5), (1, 3, 5), (2, 3, 4),
    ]  # fmt: skip
    assert set(Torus().neighbours(0, View(0, tuple(range(6))), 0).values()) == {1 / 4}


def test_torus_of_twelve() -> None:
    """3 x 4, by hand for a corner and for a place inside.

    0 1  2  3
    4 5  6  7
    8 9 10 11
    """
    assert Torus().links(0, 12, 0) == (1, 3, 4, 8)
    assert Torus().links(5, 12, 0) == (1, 4, 6, 9)
    assert set(Torus().neighbours(5, View(0, tuple(range(12))), 0).values()) == {1 / 5}


def test_torus_with_a_side_of_two_has_half_the_edges_of_that_side() -> None:
    assert [len(Torus(rows=2).links(i, 4, 0)) for i in range(4)] == [2, 2, 2, 2]
    assert Torus(rows=2).links(0, 4, 0) == (1, 2)


@pytest.mark.parametrize("size", [2, 3, 5, 7, 11, 13])
def test_torus_of_a_prime_is_a_ring(size: int) -> None:
    assert [Torus().links(i, size, 0) for i in range(size)] == [Ring().links(i, size, 0) for i in range(size)]
    assert ("ring" in Torus().describe(size)) == (size > 3)


def test_torus_alone() -> None:
    assert Torus().links(0, 1, 0) == ()


def test_torus_refuses_sides_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="doesn't hold 7 workers"):
        Torus(rows=2).check(7)
    with pytest.raises(UsageError, match="doesn't hold 6 workers"):
        Torus(rows=2, columns=2).check(6)
    with pytest.raises(UsageError, match="rows=0 is empty"):
        Torus(rows=0)
    Torus(rows=2, columns=3).check(6)


def test_torus_with_given_sides() -> None:
    assert Torus(rows=2).sides(8) == (2, 4)
    assert Torus(columns=2).sides(8) == (4, 2)
    assert Torus(rows=8, columns=1).sides(8) == (8, 1)


def test_torus_re_knits_itself_when_a_worker_is_gone() -> None:
    """Given sides no longer fit after a departure; then the grid is as square as it can be."""
    assert Torus(rows=2, columns=3).sides(5) == (1, 5)
    after = View(0, (10, 20, 30, 40, 50, 60)).without([30])
    assert set(Torus(rows=2, columns=3).neighbours(2, after, 0)) == {20, 50}


def test_torus_says_why_it_is_a_ring() -> None:
    assert Torus().describe(7) == "torus of 1 x 7: 7 has no other divisors, so the workers form a ring"
    assert Torus(rows=1).describe(8) == "torus of 1 x 8: the workers form a ring"
    assert Grid(columns=1).describe(8) == "grid of 8 x 1: the workers form a line"


def test_grid_refuses_what_torus_refuses() -> None:
    with pytest.raises(UsageError, match=r"grid\(rows=2, columns=None\) doesn't hold 7 workers"):
        Grid(rows=2).check(7)
    with pytest.raises(UsageError, match="a grid with columns=0 is empty"):
        Grid(columns=0)
    with pytest.raises(UsageError, match=r"a grid with rows=2\.5 can't be"):
        Grid(rows=2.5)  # type: ignore[arg-type]


# Tree and star


def test_tree_levels() -> None:
    assert [Tree().describe(size).rpartition(", ")[2] for size in (1, 2, 3, 4, 7, 8)] == [
        "1 levels", "2 levels", "2 levels", "3 levels", "3 levels", "4 levels",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="arity=0"):
        Tree(arity=0)
    with pytest.raises(UsageError, match="arity=True"):
        Tree(arity=True)


# Hypercube


def test_hypercube_takes_powers_of_two() -> None:
    for size in (1, 2, 4, 8, 1024):
        Hypercube().check(size)
    with pytest.raises(UsageError, match=r"there are 6 workers\. Start 4 or 8, or take"):
        Hypercube().check(6)


@pytest.mark.parametrize("size", range(1, 18))
def test_hypercube_with_corners_missing(size: int) -> None:
    """All that differ in one digit and are there."""
    for place in range(size):
        expected = tuple(other for other in range(size) if (place ^ other).bit_count() == 1)
        assert Hypercube().links(place, size, 5) == expected


def test_one_peer_hypercube_of_eight() -> None:
    partners = [[Hypercube(one_peer=True).links(i, 8, t) for i in range(8)] for t in range(4)]
    assert partners == [
        [(1,), (0,), (3,), (2,), (5,), (4,), (7,), (6,)],
        [(2,), (3,), (0,), (1,), (6,), (7,), (4,), (5,)],
        [(4,), (5,), (6,), (7,), (0,), (1,), (2,), (3,)],
        [(1,), (0,), (3,), (2,), (5,), (4,), (7,), (6,)],
    ]


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_one_peer_hypercube_makes_the_exact_mean(size: int) -> None:
    product = torch.eye(size, dtype=torch.float64)
    for round_ in range(5, 5 + Hypercube(one_peer=True).period(size)):
        product = mixing_matrix(Hypercube(one_peer=True), size, round_) @ product
    assert torch.allclose(product, torch.full_like(product, 1 / size), rtol=0, atol=1e-15)


# Random regular


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(2, 12), st.integers(0, 5), st.integers(0, 3))
def test_random_regular(size: int, degree: int, seed: int, round_: int) -> None:
    """Everybody has the degree, or one place one less, or everybody hears everybody; connected."""
    graph = graph_of(RandomRegular(degree, seed, changing=True), size, round_)
    possible = min(degree, size - 1)
    short = possible * size % 2
    assert sorted(dict(graph.degree).values()) == [possible - 1] * short + [possible] * (size - short)
    assert networkx.is_connected(graph)


def test_random_regular_is_the_same_everywhere() -> None:
    """Workers of different machines must draw the same graph, so it may never change."""
    assert [RandomRegular().links(i, 8, 0) for i in range(8)] == [
        (5, 6, 7), (2, 4, 5), (1, 4, 6), (4, 5, 7), (1, 2, 3), (0, 1, 3), (0, 2, 7), (0, 3, 6),
    ]  # fmt: skip


def test_random_regular_depends_on_seed_size_and_round() -> None:
    def graphs(**arguments: int | bool) -> list[frozenset[tuple[int, int]]]:
        topology = RandomRegular(degree=4, **arguments)  # type: ignore[arg-type]
        return [frozenset(edges_of(graph_of(topology, 20, round_))) for round_ in range(4)]

    assert len(set(graphs())) == 1
    assert len({*graphs(seed=0), *graphs(seed=1), *graphs(seed=2)}) == 3
    assert len({*graphs(changing=True), *graphs(seed=1, changing=True)}) == 8
    assert graphs(changing=True) == graphs(changing=True)


def test_random_regular_prefers_no_pair() -> None:
    """Over 600 rounds each of the 28 pairs of 8 places has 3/7 of them, within five deviations."""
    topology = RandomRegular(degree=3, changing=True)
    counts = dict.fromkeys(combinations(range(8), 2), 0)
    for round_ in range(600):
        for edge in edges_of(graph_of(topology, 8, round_)):
            counts[edge] += 1
    deviation = (600 * 3 / 7 * 4 / 7) ** 0.5
    assert all(abs(count - 600 * 3 / 7) < 5 * deviation for count in counts.values()), counts


def test_random_regular_is_drawn_once_per_round() -> None:
    """A thousand workers ask, each for itself and for the degrees of its neighbours."""
    topology, view = RandomRegular(degree=4, seed=12345, changing=True), View(0, tuple(range(1000)))
    before = random_regular.cache_info().misses
    for round_ in range(3):
        for index in range(1000):
            topology.neighbours(index, view, round_)
    assert random_regular.cache_info().misses - before == 3


def test_random_regular_mixes_better_than_a_torus_of_its_degree() -> None:
    assert contraction(RandomRegular(degree=4), 100) < 0.88 < 0.92 < contraction(Torus(), 100)


def test_random_regular_refuses_what_can_not_be() -> None:
    with pytest.raises(UsageError, match="half a channel"):
        RandomRegular(degree=3).check(9)
    with pytest.raises(UsageError, match="needs more than 4 workers, and there are 4"):
        RandomRegular(degree=4).check(4)
    with pytest.raises(UsageError, match=r"degree=1\): a whole number from 2 on"):
        RandomRegular(degree=1)
    with pytest.raises(UsageError, match=r"seed=0\.5"):
        RandomRegular(seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="changing=1"):
        RandomRegular(changing=1)  # type: ignore[arg-type]
    RandomRegular(degree=4).check(9)
    RandomRegular(degree=3).check(4)
    RandomRegular().check(1)


# Channels and graphs


def test_channels_mixing_weights_follow_the_larger_degree() -> None:
    """A star of three: its middle has degree 2, so every weight is 1/3."""
    star = Channels().attach(0, 1).attach(2, 0)
    assert star.neighbours(0, View(0, (5, 6, 7)), 0) == {6: 1 / 3, 7: 1 / 3}
    assert star.neighbours(1, View(0, (5, 6, 7)), 0) == {5: 1 / 3}
    assert star.neighbours(1, View(1, (5, 6)), 0) == {5: 1 / 2}


def test_channels_count_once_and_have_no_direction() -> None:
    assert repr(Channels([(1, 0), (0, 1)])) == "channels([(0, 1)])"


def test_channels_refuse_what_joins_nothing() -> None:
    with pytest.raises(UsageError, match="two different places"):
        Channels().attach(1, 1)
    with pytest.raises(UsageError, match="two different places"):
        Channels().attach(-1, 1)
    with pytest.raises(UsageError, match=r"place 5, and there are only 3 workers"):
        Channels([(0, 5)]).check(3)


@pytest.mark.parametrize(
    ("whole", "left"),
    [
        ([(i, (i + 1) % 6) for i in range(6)], [(0, 1), (1, 2), (2, 3), (0, 3)]),
        ([(i, i + 1) for i in range(5)], [(0, 1), (1, 2), (2, 3)]),
        ([(5, i) for i in range(5)], [(0, 1), (0, 2), (0, 3)]),
        ([(0, 5), (1, 5), (4, 2), (4, 3), (4, 5)], [(0, 1), (0, 2), (0, 3)]),
    ],
    ids=["ring", "line", "star", "two stars"],
)
def test_channels_of_leavers_are_taken_over(
    whole: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    """The last two of six places go."""
    assert edges_of(graph_of(Channels(whole), 4)) == {(min(edge), max(edge)) for edge in left}


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_what_hung_together_still_does(size: int, seed: int) -> None:
    graph = networkx.gnp_random_graph(size, 0.3, seed=seed)
    for left in range(1, size):
        assert networkx.number_connected_components(
            graph_of(Graph(graph), left)
        ) <= networkx.number_connected_components(graph)


def test_channels_describe_themselves() -> None:
    line = Channels([(0, 1), (1, 2)])
    assert line.describe(3) == "2 channels among 3"
    assert line.describe(5) == "2 channels among 5; 2 workers hear nobody"
    assert line.describe(2) == "1 channel among 2"
    assert line.attach(2, 0, one_way=True).describe(3) == "3 channels among 3, 1 of them one way"
    assert Channels().describe(1) == "0 channels among 1"


def test_channels_are_looked_up_not_searched() -> None:
    """A ring of a thousand by hand gives each its two neighbours; it is wired once."""
    ring = Channels([(i, (i + 1) % 1000) for i in range(1000)])
    view = View(0, tuple(range(1000)))
    expected = [Ring().neighbours(i, view, 0) for i in range(1000)]
    assert [ring.neighbours(i, view, 0) for i in range(1000)] == expected


def test_a_channel_may_go_far_without_cost() -> None:
    far = Channels([(0, 10**9), (10**9, 1)])
    assert [far.links(i, 2, 0) for i in range(2)] == [(1,), (0,)]
    with pytest.raises(UsageError, match="place 1000000000"):
        far.check(2)


def test_channels_refuse_what_is_no_place() -> None:
    with pytest.raises(UsageError, match=r"attach\('a', 1\) names no places"):
        Channels().attach("a", 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="names no places"):
        Channels([(True, 2)])


@pytest.mark.parametrize(
    "graph",
    [networkx.petersen_graph(), networkx.grid_2d_graph(3, 4), networkx.path_graph(["c", "a", "b"])],
    ids=["petersen", "grid", "letters"],
)
def test_graph(graph: networkx.Graph) -> None:
    topology = Graph(graph)
    topology.check(len(graph))
    check_topology(topology, sizes=[len(graph)])
    assert edges_of(graph_of(topology, len(graph))) == edges_of(graph)
    again = parse_strategy(f"dpsgd(topology={topology!r})").topology
    assert repr(again) == repr(topology)
    assert again is not None
    assert edges_of(graph_of(again, len(graph))) == edges_of(graph)


def test_graph_leaves_out_what_says_nothing() -> None:
    graph = networkx.MultiGraph([(0, 1), (0, 1), (1, 1)])
    graph.add_edge(1, 2, weight=0.7)
    assert repr(Graph(graph)) == "channels([(0, 1), (1, 2)])"


def test_graph_refuses_what_has_no_places() -> None:
    with pytest.raises(UsageError, match="needs a graph of networkx and got"):
        Graph([(0, 1)])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="can't be sorted"):
        Graph(networkx.Graph([("a", 1)]))
    with pytest.raises(UsageError, match="the graph has 10 places, and there are 8 workers; start 10"):
        Graph(networkx.petersen_graph()).check(8)


# Rotating and changing


def test_which_ones_change() -> None:
    changing = [repr(topology) for topology in READY if topology.changing]
    assert changing == [
        "hypercube(one_peer=True)",
        "exponential(one_peer=True)",
        "random_regular(degree=2, seed=0, changing=True)",
        "rotating([star(), hypercube(one_peer=True)])",
        "rotating([exponential(one_peer=True), tree(arity=2)])",
    ]
    assert Rotating([Hypercube(one_peer=True)]).changing
    assert not Graph(networkx.petersen_graph()).changing


def test_rotating_takes_turns() -> None:
    """The second of two is asked in every other round, and counts its own rounds."""
    turns = Rotating([Ring(), Hypercube(one_peer=True)])
    assert [turns.links(0, 8, t) for t in range(8)] == [
        (1, 7), (1,), (1, 7), (2,), (1, 7), (4,), (1, 7), (1,),
    ]  # fmt: skip
    assert turns.period(8) == 6
    assert turns.neighbours(0, View(0, tuple(range(10, 18))), 3) == {12: 1 / 2}
    assert turns.describe(8) == "in turn: ring of 8; hypercube of 8 in 3 dimensions, one of them per round"


def test_rotating_joins_what_none_of_them_joins() -> None:
    pairs = Rotating([Channels([(0, 1), (2, 3)]), Channels([(1, 2), (0, 3)])])
    check_topology(pairs, sizes=[4], departures=False)
    assert contraction(pairs, 4) == pytest.approx(0, abs=1e-7)


def test_rotating_refuses() -> None:
    with pytest.raises(UsageError, match="rotating needs topologies to take turns"):
        Rotating([])
    with pytest.raises(UsageError, match="and got 'ring'"):
        Rotating(["ring"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="needs a power of two"):
        Rotating([Ring(), Hypercube()]).check(6)


# As text

WRITTEN: Mapping[str, Topology] = {
    "ring()": Ring(),
    "torus(rows=None, columns=None)": Torus(),
    "grid(rows=2, columns=None)": Grid(rows=2),
    "star()": Star(),
    "tree(arity=3)": Tree(arity=3),
    "full()": Full(),
    "hypercube(one_peer=True)": Hypercube(one_peer=True),
    "exponential(one_peer=True)": Exponential(),
    "random_regular(degree=4, seed=0, changing=True)": RandomRegular(degree=4, changing=True),
    "bipartite()": Bipartite(),
    "shuffled(topology=hypercube(one_peer=True), seed=3)": Shuffled(Hypercube(one_peer=True), 3),
    "channels([(0, 1), (1, 2)], one_way=[(2, 0)])": Channels([(2, 1), (0, 1)], one_way=[(2, 0)]),
    "rotating([ring(), hypercube(one_peer=False)])": Rotating([Ring(), Hypercube()]),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_text_reads_back(text: str) -> None:
    assert repr(WRITTEN[text]) == text
    read = parse_strategy(f"dpsgd(topology={text})").topology
    assert type(read) is type(WRITTEN[text])
    assert repr(read) == text


def test_names_of_the_command_line() -> None:
    assert {text.partition("(")[0] for text in WRITTEN} == set(TOPOLOGIES)
    for name, topology in TOPOLOGIES.items():
        if name != "rotating":
            assert type(parse_strategy(f"dpsgd(topology={name})").topology) is topology


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ring", "ring of 8"),
        ("torus", "torus of 2 x 4"),
        ("grid", "grid of 2 x 4"),
        ("star", "star of 8 with the first worker in the middle"),
        ("tree", "tree of 8 with up to 2 children each, 4 levels"),
        ("full", "full graph of 8: everybody hears everybody"),
        ("hypercube", "hypercube of 8 in 3 dimensions"),
        ("exponential", "exponential graph of 8: each tells the one 1, 2, 4 further on in turn"),
        ("random_regular", "random graph of 8 with 3 neighbours each, seed 0"),
        (
            "random_regular(changing=True)",
            "random graph of 8 with 3 neighbours each, another one every round",
        ),
        ("bipartite", "two sides of 4 and 4: even places hear the odd ones, odd the even ones"),
    ],
)
def test_described_in_words(text: str, words: str) -> None:
    topology = parse_strategy(f"dpsgd(topology={text})").topology
    assert topology is not None
    assert topology.describe(8) == words
