"""The closed forms: exact values, the reference tables to their printed digits, and what must hold of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.collectives import cost
from fast.collectives.limits import (
    crossover,
    crossover_bytes,
    dense_values,
    factor_values,
    factors_pay_below,
    gossip_steps,
    latency_bound_s,
    rate_bound_s,
    reduction_depth,
    reduction_steps,
    reduction_work,
)
from fast.core.world import Link
from fast.errors import UsageError
from fast.lab.planner.closed_forms import (
    PATTERNS,
    WHOLE,
    Exchange,
    local_bytes,
    server_bytes,
    spread_bytes,
)

NAMES = (
    "naive server", "binomial server", "scatter server", "async one", "async all", "sharded server", "doubling", "ring",
)  # fmt: skip
TABLE_NAMES = (
    "naive server", "binomial server", "scatter server", "sharded server", "doubling", "ring", "async all",
)  # fmt: skip
MODELS = {"ResNet-50": 25.6e6, "VGG-A": 132.9e6, "GoogLeNet": 6.8e6}
LINKS = {"1GbE": 125e6, "10GbE": 1.25e9, "IB": 7e9}
UNIT = Link(1.0, 1.0)
durations = st.floats(0, 100)


# The taxonomy


@pytest.mark.parametrize(
    ("workers", "seconds", "expected"),
    [
        (4, (8, 1, 2), (69, 52, 30.75, 18, 34, 13.25, 20, 14.75)),
        (8, (1, 0.1, 0.2), (16.9, 8.5, 4.0375, 2.2, 8.2, 1.8625, 3.5, 2.0375)),
    ],
)
def test_exact_values(workers: int, seconds: tuple[float, float, float], expected: tuple[float, ...]) -> None:
    found = [PATTERNS[name](workers, *seconds) for name in NAMES]
    assert found == pytest.approx(list(expected), rel=1e-12)
    assert set(NAMES) == set(PATTERNS)


@pytest.mark.parametrize(
    ("model", "net", "workers", "milliseconds"),
    [
        ("ResNet-50", "1GbE", 4, "6629.9 4982.0 2922.0 1247.9 1705.2 1283.6 3324.5"),
        ("ResNet-50", "1GbE", 16, "26405 8277.8 3231.0 1547.9 3362.6 1592.6 13154.9"),
        ("ResNet-50", "10GbE", 16, "2812.2 905.0 374.1 165.5 413.5 210.2 1358.4"),
        ("ResNet-50", "IB", 16, "658.9 232.1 113.3 39.4 144.3 84.1 281.7"),
        ("VGG-A", "1GbE", 16, "137080 42974 16774 8035.9 17457 8268.0 68292"),
        ("VGG-A", "IB", 16, "3420.4 1205.0 588.2 204.3 749.4 436.4 1462.6"),
        ("GoogLeNet", "10GbE", 16, "747.0 240.4 99.4 44.0 109.8 55.8 360.8"),
    ],
)
def test_the_table_in_milliseconds(model: str, net: str, workers: int, milliseconds: str) -> None:
    """To the last digit that is printed, of which one (658.849) was rounded twice: float32, adding at 10 GiB/s,
    updating at 2 GiB/s."""
    exchange = Exchange.of(4 * MODELS[model], LINKS[net])
    for name, printed in zip(TABLE_NAMES, milliseconds.split(), strict=True):
        half_ms = 0.51 * 10.0 ** -len(printed.partition(".")[2])
        assert exchange.seconds(name, workers) * 1e3 == pytest.approx(float(printed), abs=half_ms), name


@given(st.integers(2, 5000), durations, durations, durations)
def test_what_must_hold_of_the_patterns(workers: int, t: float, r: float, u: float) -> None:
    """A shard's owner updates a part only; and without latency doubling never beats the ring."""
    found = {name: each(workers, t, r, u) for name, each in PATTERNS.items()}
    slack = 1e-9 * (1 + found["naive server"])
    assert found["sharded server"] <= found["ring"] + slack
    assert found["ring"] <= found["doubling"] + slack
    assert found["ring"] <= found["scatter server"] + slack
    assert found["async one"] <= found["async all"] + slack
    assert Exchange(t, r, u).fastest(workers)[1] == min(found[name] for name in WHOLE)


def test_two_workers_double_in_the_time_of_a_ring_if_adding_is_free() -> None:
    assert PATTERNS["doubling"](2, 3.0, 0.0, 1.0) == PATTERNS["ring"](2, 3.0, 0.0, 1.0) == 4.0
    assert PATTERNS["doubling"](2, 3.0, 1.0, 1.0) == PATTERNS["ring"](2, 3.0, 1.0, 1.0) + 0.5


def test_rings_are_flat_in_the_workers_and_a_naive_server_is_linear() -> None:
    few, many = Exchange(1.0, 0.1, 0.2), 10_000
    for name in ("ring", "sharded server"):
        assert few.seconds(name, many) < 2 * few.seconds(name, 2)
    steps = [few.seconds("naive server", n + 1) - few.seconds("naive server", n) for n in (2, 50, 999)]
    assert steps == pytest.approx([2.1] * 3)


def test_bytes_through_the_busiest_interface() -> None:
    assert (server_bytes(4, 100), spread_bytes(4, 100), local_bytes(100, 8)) == (800, 150, 12.5)


@pytest.mark.parametrize(
    ("nbytes", "rates"),
    [(-1, (1,)), (math.nan, (1,)), (math.inf, (1,)), (1, (0,)), (1, (-2,)), (1, (math.nan,))],
)
def test_what_can_not_be_is_refused(nbytes: float, rates: tuple[float]) -> None:
    with pytest.raises(UsageError, match="can't be: 0 bytes or more, and rates above 0"):
        Exchange.of(nbytes, *rates)


def test_unknown_patterns_and_nobody_are_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no pattern 'star'\. Known: naive server"):
        Exchange(1.0, 1.0, 1.0).seconds("star", 4)
    with pytest.raises(UsageError, match="among 0 workers"):
        Exchange(1.0, 1.0, 1.0).seconds("ring", 0)


# The survey, and where both meet


@given(st.sampled_from([2, 4, 8, 64, 1024]), st.floats(1, 1e9), st.floats(1, 1e10))
def test_without_latency_adding_and_updating_the_models_agree(
    members: int, nbytes: float, rate: float
) -> None:
    """The taxonomy's ring is the survey's pipeline and Rabenseifner's algorithm."""
    exchange, link = Exchange(nbytes / rate, 0.0, 0.0), Link(0.0, rate)
    expected = pytest.approx(2 * (members - 1) / members * nbytes / rate, rel=1e-9)
    assert exchange.seconds("ring", members) == expected
    assert cost.ring(members, nbytes, link) == expected
    assert cost.rabenseifner(members, nbytes, link) == expected
    assert exchange.seconds("doubling", members) == pytest.approx(cost.doubling(members, nbytes, link))


@pytest.mark.parametrize(("members", "tree_hops", "binomial_hops"), [(4, 2, 3), (8, 3, 4), (64, 6, 7)])
def test_a_server_is_one_more_in_the_tree(members: int, tree_hops: int, binomial_hops: int) -> None:
    assert cost.tree(members, 1.0, Link(0.0, 1.0)) == 2 * tree_hops
    assert PATTERNS["binomial server"](members, 1.0, 0.0, 0.0) == 2 * binomial_hops


@pytest.mark.parametrize(
    ("members", "to_rabenseifner", "to_ring"),
    [(4, 4.0, 8.0), (8, 2.4, 8.8), (16, 1.88, 12.2), (64, 1.49, 29.8)],
)
def test_crossovers(members: int, to_rabenseifner: float, to_ring: float) -> None:
    """As printed, as the closed forms say, and as the costs themselves do on both sides."""
    hops, moved = math.log2(members), 2 * (members - 1) / members
    exact = {
        "rabenseifner": hops / (hops - moved),
        "ring": (2 * (members - 1) - hops) / (hops - moved),
    }
    printed = {"rabenseifner": (to_rabenseifner, 6e-3), "ring": (to_ring, 6e-2)}
    for other, x in exact.items():
        found = crossover("doubling", other, members)
        assert found == pytest.approx(x, rel=1e-12)
        assert found == pytest.approx(printed[other][0], abs=printed[other][1])
        assert cost.choose(("doubling", other), members, found * 0.999, UNIT) == "doubling"
        assert cost.choose(("doubling", other), members, found * 1.001, UNIT) == other


@given(
    st.sampled_from(sorted(cost.COSTS)),
    st.sampled_from(sorted(cost.COSTS)),
    st.integers(2, 70),
    st.floats(1e-6, 1e-2),
    st.floats(1e6, 1e10),
)
def test_beyond_a_crossover_the_other_one_is_cheaper(
    small: str, large: str, members: int, latency_s: float, rate: float
) -> None:
    """For all algorithms and any number of members, power of two or not."""
    link = Link(latency_s, rate)
    nbytes = crossover_bytes(small, large, members, link)

    def cheaper(at: float) -> bool:
        """By more than rounding."""
        return cost.COSTS[large](members, at, link) < cost.COSTS[small](members, at, link) * (1 - 1e-9)

    if math.isinf(nbytes):
        assert not cheaper(1e15)
    else:
        assert cheaper(nbytes * 1.01 + 1e3)
        assert nbytes == 0 or not cheaper(nbytes * 0.99)


def test_two_members_never_leave_the_exchange() -> None:
    assert crossover("exchange", "direct", 2) == crossover("doubling", "ring", 2) == math.inf
    assert crossover("ring", "rabenseifner", 8) == 0.0, "the same bytes in fewer hops"
    assert crossover_bytes("ring", "rabenseifner", 8, Link(1.0, math.inf)) == 0.0


def test_lower_bounds() -> None:
    """P = 8, L = 1, G = 1, 8 bytes; nothing that adds without redundant work is below the last."""
    assert (latency_bound_s(8, UNIT), rate_bound_s(8, UNIT), cost.lower_bound(8, 8, UNIT)) == (3, 8, 17)
    for name in ("tree", "ring", "rabenseifner"):
        assert cost.COSTS[name](8, 8, UNIT) >= 17


def test_the_rest_of_the_survey() -> None:
    assert gossip_steps(1024) == pytest.approx(16.39)
    assert [reduction_work(n) for n in (1, 2, 9)] == [0, 1, 8]
    assert [reduction_depth(n) for n in (1, 2, 8, 9)] == [0, 1, 3, 4]
    assert reduction_steps(9, 4) == (2.0, 6.0) and reduction_steps(9, 1) == (4.0, 12.0)
    assert (factor_values(4, 32, 4096, 1000), dense_values(4, 4096, 1000)) == (652_288, 16_384_000)
    assert factors_pay_below(4096, 1000) == pytest.approx(803.77, abs=0.01)
    for samples in (803, 804):
        fewer = factor_values(4, samples, 4096, 1000) < dense_values(4, 4096, 1000)
        assert fewer == (samples < factors_pay_below(4096, 1000))


@given(st.integers(2, 200), st.integers(1, 50))
def test_a_reduction_on_p_processors_lies_between_its_bounds(count: int, processors: int) -> None:
    """Against the plain schedule: in each step every processor adds two of what is left."""
    left, steps = count, 0
    while left > 1:
        left -= min(processors, left // 2)
        steps += 1
    least, most = reduction_steps(count, processors)
    assert least <= steps <= most
