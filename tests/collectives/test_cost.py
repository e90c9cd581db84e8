"""The cost models: exact values, the reference table, and where one algorithm overtakes another."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.collectives import cost
from fast.collectives.cost import Sparsity, choose, choose_sparse
from fast.collectives.sums import SUMS, Choice
from fast.core.world import Link

UNIT = Link(1.0, 1.0)
TEN_GBIT = Link(50e-6, 1.25e9)


def test_exact_values():
    """P = 8, L = 1, G = 1, 8 bytes."""
    found = {name: each(8, 8, UNIT) for name, each in cost.COSTS.items()}
    assert found == {
        "tree": 54, "doubling": 27, "ring": 28, "rabenseifner": 20, "direct": 16, "exchange": 57,
    }  # fmt: skip
    assert cost.lower_bound(8, 8, UNIT) == 17


@pytest.mark.parametrize(
    ("members", "nbytes", "tree", "doubling", "ring", "rabenseifner", "lower"),
    [
        (8, 4e3, 0.3192, 0.1596, 0.7056, 0.3056, 0.1556),
        (8, 4e6, 19.5, 9.75, 6.3, 5.9, 5.75),
        (8, 102.4e6, 491.82, 245.91, 144.06, 143.66, 143.51),
        (64, 4e3, 0.6384, 0.3192, 6.3063, 0.6063, 0.3063),
        (64, 4e6, 39.0, 19.5, 12.6, 6.9, 6.6),
    ],
)
def test_the_reference_table(members, nbytes, tree, doubling, ring, rabenseifner, lower):
    """In milliseconds, 50 microseconds and 10 gigabit per second."""
    expected = {"tree": tree, "doubling": doubling, "ring": ring, "rabenseifner": rabenseifner}
    for name, milliseconds in expected.items():
        assert cost.COSTS[name](members, nbytes, TEN_GBIT) * 1e3 == pytest.approx(
            milliseconds, abs=6e-5, rel=1e-6
        )
    assert cost.lower_bound(members, nbytes, TEN_GBIT) * 1e3 == pytest.approx(lower, abs=6e-5, rel=1e-6)


@pytest.mark.parametrize(("members", "x"), [(4, 4.0), (8, 2.4), (16, 1.88), (64, 1.49)])
def test_doubling_gives_way_to_rabenseifner(members, x):
    """x = n G / L = log2 P / (log2 P - 2 (P - 1) / P)."""
    hops = math.log2(members)
    exact = hops / (hops - 2 * (members - 1) / members)
    assert exact == pytest.approx(x, abs=6e-3)
    pair = ("doubling", "rabenseifner")
    assert choose(pair, members, exact * 0.999, UNIT) == "doubling"
    assert choose(pair, members, exact * 1.001, UNIT) == "rabenseifner"


@pytest.mark.parametrize(("members", "x"), [(4, 8.0), (8, 8.8), (16, 12.2), (64, 29.8)])
def test_doubling_gives_way_to_the_ring(members, x):
    """x = (2 (P - 1) - log2 P) / (log2 P - 2 (P - 1) / P)."""
    hops = math.log2(members)
    exact = (2 * (members - 1) - hops) / (hops - 2 * (members - 1) / members)
    assert exact == pytest.approx(x, abs=6e-2)
    pair = ("doubling", "ring")
    assert choose(pair, members, exact * 0.999, UNIT) == "doubling"
    assert choose(pair, members, exact * 1.001, UNIT) == "ring"


def test_two_members_make_a_ring_of_rabenseifner():
    for nbytes in (0, 5, 1e6):
        assert cost.ring(2, nbytes, UNIT) == cost.rabenseifner(2, nbytes, UNIT)


def test_without_latency_ring_rabenseifner_and_direct_are_one():
    for members in (2, 4, 8, 64):
        link = Link(0.0, 10.0)
        expected = 2 * (members - 1) / members * 30 / 10
        for name in ("ring", "rabenseifner", "direct"):
            assert cost.COSTS[name](members, 30, link) == pytest.approx(expected)


@given(st.integers(1, 300), st.integers(0, 10**9), st.floats(0, 1), st.floats(1, 1e10))
def test_nothing_costs_less_than_nothing_and_alone_it_is_free(members, nbytes, latency_s, rate):
    link = Link(latency_s, rate)
    for each in cost.COSTS.values():
        assert each(members, nbytes, link) >= 0
        assert each(1, nbytes, link) == 0
    moved = 2 * (members - 1) / members * nbytes / rate
    for name in ("ring", "rabenseifner", "direct", "tree"):
        assert cost.COSTS[name](members, nbytes, link) >= moved * (1 - 1e-9)


@given(st.integers(2, 300), st.integers(0, 10**9), st.floats(0, 1), st.floats(1, 1e10), st.booleans())
def test_what_is_chosen_is_the_cheapest_of_what_is_allowed(members, nbytes, latency_s, rate, any_order):
    link = Link(latency_s, rate)
    name = Choice(link, any_order=any_order).of(members, nbytes)
    allowed = [each for each in cost.COSTS if any_order or SUMS[each].canonical]
    assert name in allowed
    chosen = SUMS[name].cost(members, nbytes, link)
    assert chosen == min(SUMS[each].cost(members, nbytes, link) for each in allowed)


def test_the_direct_exchange_starts_where_one_hop_gets_too_long():
    """2 L + 2 n G (P-1)/P < L + n G (P-1)  <=>  n G / L > 1 / ((P-1) (1 - 2/P))."""
    for members in (3, 4, 8, 50):
        x = 1 / ((members - 1) * (1 - 2 / members))
        assert Choice(UNIT).of(members, math.floor(x)) in ("exchange", "direct")
        assert choose(("direct", "exchange"), members, x * 0.999, UNIT) == "exchange"
        assert choose(("direct", "exchange"), members, x * 1.001, UNIT) == "direct"
    assert choose(("direct", "exchange"), 2, 1e12, UNIT) == "exchange"


def test_a_name_is_a_name_whatever_it_costs():
    assert Choice(UNIT, "tree").of(8, 100) == "tree"
    assert Choice(UNIT, "ring", any_order=False).of(2, 1) == "ring"


# Sparse


def tensors(sent, size, packed_bytes=None):
    return Sparsity(8 * sent if packed_bytes is None else packed_bytes, sent, size, 4, 4)


def test_the_size_of_a_union_of_random_indices():
    assert tensors(10, 1000).nbytes(1) == pytest.approx(80)
    assert tensors(10, 1000).nbytes(2) == pytest.approx(8 * (10 + 10 - 0.1))
    assert tensors(900, 1000).nbytes(4) == 4000, "never more than all values"
    assert tensors(0, 0).nbytes(3) == 0


def test_what_sparse_sums_cost():
    few = tensors(10, 1_000_000)
    assert cost.sparse_exchange(4, few, UNIT) == 1 + 3 * 80
    assert cost.sparse_doubling(4, few, UNIT) == pytest.approx(2 + 80 + 160, rel=1e-4)
    assert cost.sparse_split(4, few, UNIT) == pytest.approx(2 + 3 / 4 * (80 + 320), rel=1e-4)
    assert cost.sparse_doubling(5, few, UNIT) == pytest.approx(4 + 80 + 160 + 80 + 400, rel=1e-4)
    assert {each(1, few, UNIT) for each in cost.SPARSE_COSTS.values()} == {0}


def test_many_pairs_are_split_and_few_exchanged():
    assert choose_sparse(16, tensors(10, 1_000_000), TEN_GBIT) == "exchange"
    assert choose_sparse(16, tensors(250_000, 1_000_000), TEN_GBIT) == "sparse_split"
