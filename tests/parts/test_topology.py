"""Topologies: the kit, then what is special about each."""

from __future__ import annotations

from math import cos, pi

import pytest
import torch

from fast.errors import UsageError
from fast.parts import TOPOLOGIES, Channels, Full, Ring, Topology, Torus
from fast.testing import check_topology, mixing_matrix
from fast.view import View


@pytest.mark.parametrize(
    "topology", [Ring(), Full(), Torus(), Torus(rows=2), Torus(columns=3), Torus(rows=3, columns=4)], ids=repr
)
def test_kit(topology: Topology) -> None:
    check_topology(topology)


def test_kit_on_channels() -> None:
    check_topology(Channels([(0, 1), (1, 2), (3, 1)]), sizes=[4])
    check_topology(Channels([(0, 1)]), sizes=[3], connected=False)


def eigenvalues(topology: Topology, size: int) -> torch.Tensor:
    """Of the mixing matrix, largest first."""
    return torch.linalg.eigvalsh(mixing_matrix(topology, size)).flip(0)


@pytest.mark.parametrize("size", [3, 5, 8, 16])
def test_ring_eigenvalues(size: int) -> None:
    expected = sorted(((1 + 2 * cos(2 * pi * k / size)) / 3 for k in range(size)), reverse=True)
    assert eigenvalues(Ring(), size).tolist() == pytest.approx(expected, abs=1e-12)


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


def test_names_of_the_command_line() -> None:
    assert {name: build().__class__ for name, build in TOPOLOGIES.items()} == {
        "ring": Ring, "full": Full, "torus": Torus, "channels": Channels,
    }  # fmt: skip


class OneWay(Topology):
    """0 -> 1 -> 2 -> 0."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return ((index + 1) % size,)


class Forgetful(Topology):
    """Answers differently each time."""

    def __init__(self) -> None:
        self.asked = 0

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        self.asked += 1
        return tuple(i for i in range(size) if i != index) if self.asked <= size else ()


class Greedy(Ring):
    """Takes everything from each neighbour and keeps a negative rest."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        return {view.workers[i]: 1.0 for i in self.links(index, len(view.workers), round_)}


class ById(Ring):
    """Confuses ids with places."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        return dict.fromkeys(self.links(index, len(view.workers), round_), 1 / 3)


class Lopsided(Ring):
    """Rows add up to 1, columns don't."""

    def neighbours(self, index: int, view: View, round_: int) -> dict[int, float]:
        return {view.workers[i]: 0.1 + 0.05 * index for i in self.links(index, len(view.workers), round_)}


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (OneWay(), "doesn't hear"),
        (Forgetful(), "pure"),
        (Greedy(), "negative"),
        (ById(), "function of places"),
        (Lopsided(), "columns add up"),
        (Channels([(0, 1)]), "falls apart"),
        (Torus(rows=7), "refuses every number"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Topology) else "",
)
def test_the_kit_has_teeth(broken: Topology, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_topology(broken, sizes=[5])
