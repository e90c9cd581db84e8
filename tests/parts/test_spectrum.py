"""Mixing matrices and their spectral gap: against formulas, and against what mixing really does."""

from __future__ import annotations

from math import ceil, cos, inf, pi

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.parts import (
    Bipartite,
    Channels,
    Exponential,
    Full,
    Grid,
    Hypercube,
    RandomRegular,
    Ring,
    Rotating,
    Star,
    Topology,
    Torus,
    Tree,
)
from fast.parts.topology.spectrum import LARGEST, mixing_matrix, push_matrix, second_eigenvalue, spectrum_of
from fast.view import View

UNDIRECTED = [
    Ring(), Torus(), Grid(), Star(), Tree(), Tree(arity=1), Bipartite(), Full(), Hypercube(),
    RandomRegular(degree=4), Channels([(0, 1), (1, 2), (2, 3), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7)]),
]  # fmt: skip
CHANGING = [
    Hypercube(one_peer=True),
    RandomRegular(degree=2, changing=True),
    Rotating([Ring(), Star()]),
    Rotating([Star(), Tree(), Hypercube(one_peer=True)]),
]
DIRECTED = [
    Exponential(),
    Exponential(one_peer=False),
    Channels(one_way=[(i, (i + 1) % 8) for i in range(8)]),
]
UNBALANCED = Channels(one_way=[(0, 1), (0, 2), (1, 2), (2, 3), (3, 0), (1, 3)])


# B48: what every mixing matrix is


@pytest.mark.parametrize("topology", [*UNDIRECTED, *CHANGING], ids=repr)
def test_mixing_is_symmetric_and_doubly_stochastic(topology: Topology) -> None:
    for round_ in range(topology.period(8)):
        w = mixing_matrix(topology, 8, round_).numpy()
        assert (w >= 0).all()
        assert np.array_equal(w, w.T)
        np.testing.assert_allclose(w.sum(0), 1, rtol=0, atol=1e-14)
        np.testing.assert_allclose(w.sum(1), 1, rtol=0, atol=1e-14)


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_so_it_is_on_any_graph(size: int, seed: int) -> None:
    """Also on one that falls apart."""
    drawn = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(size) for j in range(i) if drawn.random() < 0.4]
    w = mixing_matrix(Channels(pairs), size).numpy()
    assert (w >= 0).all() and np.array_equal(w, w.T)
    np.testing.assert_allclose(w.sum(0), 1, rtol=0, atol=1e-14)


@pytest.mark.parametrize("topology", [*DIRECTED, UNBALANCED], ids=repr)
def test_the_shares_of_push_sum_add_up_by_column(topology: Topology) -> None:
    size = 4 if topology is UNBALANCED else 8
    shares = push_matrix(topology, size).numpy()
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(0), 1, rtol=0, atol=1e-14)
    rows = np.abs(shares.sum(1) - 1).max()
    assert (rows > 0.1) == (topology is UNBALANCED)  # there only columns do


@pytest.mark.parametrize("topology", UNDIRECTED[:-1], ids=repr)
def test_without_a_worker_it_is_doubly_stochastic_again(topology: Topology) -> None:
    """B70: whoever has left, the others' weights are made anew from the graph that is left."""
    for leaver in range(8):
        view = View(1, tuple(who for who in range(8) if who != leaver))
        w = np.zeros((8, 8))
        for place, who in enumerate(view.workers):
            for other, weight in topology.neighbours(place, view, 0).items():
                w[who, other] = weight
            w[who, who] = 1 - w[who].sum()
        assert (w >= 0).all() and np.array_equal(w, w.T)
        assert w.sum(0) == pytest.approx([float(who != leaver) for who in range(8)], abs=1e-14)


# B49: eigenvalues


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16, 31])
def test_ring(size: int) -> None:
    waves = [(1 + 2 * cos(2 * pi * k / size)) / 3 for k in range(1, size)] if size > 2 else [0.0]
    found = spectrum_of(Ring(), size)
    assert (found.workers, found.rounds) == (size, 1)
    assert found.factor == pytest.approx(max(map(abs, waves)), abs=1e-12)
    assert found.gap == pytest.approx(1 - max(map(abs, waves)), abs=1e-12)


def test_the_two_figures() -> None:
    assert spectrum_of(Ring(), 8).factor == pytest.approx(0.8047, abs=5e-5)
    assert spectrum_of(Torus(4, 4), 16).factor == pytest.approx(0.6, abs=1e-12)


@pytest.mark.parametrize("topology", [*UNDIRECTED, *CHANGING, *DIRECTED], ids=repr)
def test_it_is_the_second_eigenvalue_of_the_product(topology: Topology) -> None:
    """By numpy, of matrices written down from the topology's own weights."""
    view, found = View(0, tuple(range(8))), spectrum_of(topology, 8)
    product = np.eye(8)
    for round_ in range(found.rounds):
        w = np.zeros((8, 8))
        for place in range(8):
            for other, weight in topology.neighbours(place, view, round_).items():
                w[place, other] = weight
            w[place, place] = 1 - w[place].sum()
        product = w @ product
    expected = sorted(np.abs(np.linalg.eigvals(product)))[-2]
    assert found.second == pytest.approx(expected, abs=1e-9)
    assert found.rounds == 1 or found.rounds % topology.period(8) == 0


@pytest.mark.parametrize(
    "topology", [Ring(), Grid(), Star(), Tree(), Bipartite(), Rotating([Ring(), Star()])], ids=repr
)
def test_a_disagreement_shrinks_as_predicted(topology: Topology) -> None:
    """In the long run, by the factor in each round: between a thousandth and a ten-millionth of it."""
    size, found = 8, spectrum_of(topology, 8)
    x = torch.randn(size, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    late, later = (ceil(found.rounds_until(left) / found.rounds) * found.rounds for left in (1e-3, 1e-7))
    apart = []
    for round_ in range(later):
        x = mixing_matrix(topology, size, round_) @ x
        apart.append(float((x - x.mean(0)).norm()))
    assert apart[later - 1] / apart[late - 1] == pytest.approx(found.after(later - late), rel=0.02)


def test_some_agree_at_once() -> None:
    assert spectrum_of(Full(), 7).factor == 0.0
    assert spectrum_of(Hypercube(one_peer=True), 16).factor == 0.0
    assert spectrum_of(Exponential(), 8).factor == 0.0
    assert spectrum_of(Hypercube(one_peer=True), 16).rounds_until(0.1) == 4
    assert spectrum_of(Ring(), 1).factor == 0.0
    cosines = cos(pi / 6) * cos(pi / 3) * cos(pi / 3)  # |1 + e^(i angle)| / 2 for distances 1, 2 and 4 of 6
    assert spectrum_of(Exponential(), 6).factor == pytest.approx(cosines ** (1 / 3))


def test_what_falls_apart_never_agrees() -> None:
    found = spectrum_of(Channels([(0, 1), (2, 3)]), 4)
    assert (found.factor, found.gap, found.rounds_until(0.5)) == (1.0, 0.0, inf)
    assert spectrum_of(RandomRegular(degree=2), 7).gap > 0


def test_what_swings_is_as_slow_as_what_creeps() -> None:
    """Everybody on the other side is heard, so the sign changes: 1/5 - 4/5."""
    assert spectrum_of(Bipartite(), 8).factor == pytest.approx(3 / 5)


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.2])
def test_going_only_a_part_of_the_way(gamma: float) -> None:
    """1 - gamma (1 - lambda) for each eigenvalue; on the bipartite graph those are 1, 1/5 (six times) and -3/5."""
    expected = max(abs(1 - gamma * (1 - value)) for value in (1 / 5, -3 / 5))
    assert spectrum_of(Bipartite(), 8, gamma=gamma).factor == pytest.approx(expected)


def test_push_sum_has_the_spectrum_of_its_shares() -> None:
    """z = x / w comes to the mean by the second eigenvalue of the shares."""
    found = spectrum_of(UNBALANCED, 4)
    values = sorted(np.abs(np.linalg.eigvals(push_matrix(UNBALANCED, 4).numpy())))
    assert found.factor == pytest.approx(values[-2])
    shares, x, w = (
        push_matrix(UNBALANCED, 4),
        torch.tensor([3.0, 5.0, 7.0, 11.0]).double(),
        torch.ones(4).double(),
    )
    for _ in range(20):
        x, w = shares @ x, shares @ w
    assert (x / w).tolist() == pytest.approx([6.5] * 4, abs=20 * found.after(20))


def test_push_sum_has_it_also_where_there_are_mixing_weights() -> None:
    """The middle of a star gives everybody a fifth, the others give it a half and keep one: that is 1/2 for the
    differences between them. By mixing weights they would keep four fifths."""
    assert spectrum_of(Star(), 5, push=True).factor == pytest.approx(1 / 2)
    assert spectrum_of(Star(), 5).factor == pytest.approx(4 / 5)
    turns = Rotating([Star(), UNBALANCED])
    product = np.linalg.matrix_power(push_matrix(UNBALANCED, 4).numpy() @ push_matrix(Star(), 4).numpy(), 8)
    found = spectrum_of(turns, 4, push=True)
    assert (found.rounds, found.second) == (16, pytest.approx(sorted(np.abs(np.linalg.eigvals(product)))[-2]))


def test_what_is_left_and_when() -> None:
    found = spectrum_of(Torus(4, 4), 16)
    assert found.after(3) == pytest.approx(0.216)
    assert found.rounds_until(0.216 + 1e-9) == 3
    assert found.rounds_until(0.1) == 5  # 0.6^4 = 0.13, 0.6^5 = 0.078


def test_too_many_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 2000 are allowed"):
        spectrum_of(Ring(), LARGEST + 1)


def test_one_worker_has_no_second_eigenvalue() -> None:
    assert second_eigenvalue(torch.ones(1, 1)) == 0.0
