"""Closed forms against the simulator: the same pattern as a program, on tensors without values.

Where hosts have nothing in common but the interface that each sends and receives through, both agree within one
per cent. Where they part, the tests here say by how much, and why.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fast.collectives import cost
from fast.core.world import Link
from fast.lab.planner.closed_forms import UPDATE_BYTES_PER_S, Exchange
from fast.lab.planner.exchanging import exchange_s
from fast.lab.sizes import Sizes
from fast.loop.loading import strategy_from
from fast.sim import Network

SIZES = Sizes.of_parameters(1_000_000)
NBYTES = 4_000_000
RATE, LATENCY_S, HEADER_BYTES = 1.25e9, 10e-6, 256
T = NBYTES / RATE
U = NBYTES / UPDATE_BYTES_PER_S
WITHIN = 0.01


def simulated(
    call: str, workers: int, *, latency_s: float = 0.0, shared: bool = True, **options: float
) -> float:
    network = Network(RATE, latency_s, shared=shared)
    steps = int(options.pop("steps", 1))
    return exchange_s(strategy_from(call), SIZES, workers=workers, network=network, steps=steps, **options)


def with_update(call: str, workers: int, **options: float) -> float:
    return simulated(call, workers, update_bytes_per_s=UPDATE_BYTES_PER_S, **options)


def closed(pattern: str, workers: int) -> float:
    """Adding takes no time in the simulator, unless a calibration says so."""
    return Exchange(T, 0.0, U).seconds(pattern, workers)


def test_the_model_has_the_bytes_that_are_reckoned_with() -> None:
    assert SIZES.layout.nbytes == NBYTES


# Patterns of the taxonomy


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 15])
@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        ("naive server", "ssp(0)"),
        ("naive server", "tensorflow(backups=0)"),
        ("binomial server", "firecaffe"),
        ("sharded server", "bigdl"),
        ("sharded server", "caffeonspark"),
        ("sharded server", "mxnet"),
        ("ring", "allreduce(algorithm='ring')"),
        ("ring", "allreduce"),
    ],
)
def test_patterns_take_as_long_as_the_closed_forms_say(pattern: str, call: str, workers: int) -> None:
    """A plain mean is a formula in the simulator, too: that of the ring's bytes."""
    assert with_update(call, workers) == pytest.approx(closed(pattern, workers), rel=WITHIN)


@pytest.mark.parametrize("call", ["ssp(inf)", "downpour"])
def test_one_asynchronous_worker(call: str) -> None:
    assert with_update(call, 1) == pytest.approx(closed("async one", 1), rel=WITHIN)


@pytest.mark.parametrize(("call", "workers"), [("ssp(inf)", 3), ("ssp(inf)", 8), ("downpour", 5)])
def test_many_asynchronous_workers(call: str, workers: int) -> None:
    """In the long run the optimizer's step hides behind the next worker's gradient: n T, of which n T + U is
    the last worker's of a single round. At the very end somebody waits for its update and its weights."""
    steps, round_s = 40, closed("async all", workers) - U
    assert with_update(call, workers, steps=steps) == pytest.approx(round_s + (T + U) / steps, rel=2e-3)
    free = simulated(call, workers, steps=steps)
    assert free == pytest.approx(Exchange(T, 0.0, 0.0).seconds("async all", workers) + T / steps, rel=2e-3)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_doubling_of_a_power_of_two(workers: int) -> None:
    call = "allreduce(algorithm='doubling')"
    assert with_update(call, workers) == pytest.approx(closed("doubling", workers), rel=WITHIN)


@pytest.mark.parametrize(("workers", "hops", "taxonomy"), [(3, 3, 2), (5, 4, 3), (7, 4, 3), (9, 5, 4)])
def test_doubling_of_other_numbers_has_a_hop_more(workers: int, hops: int, taxonomy: int) -> None:
    """The surplus hands its terms to the largest power of two, and gets the sums back: ⌊log2 n⌋ + 2 hops, where the
    taxonomy counts ⌈log2 n⌉. The survey's model, as it is in `cost`, counts them."""
    found = with_update("allreduce(algorithm='doubling')", workers)
    assert found == pytest.approx(hops * T + U, rel=WITHIN)
    assert cost.doubling(workers, NBYTES, Link(0.0, RATE)) == pytest.approx(hops * T)
    assert closed("doubling", workers) == pytest.approx(taxonomy * T + U)


# Collectives of the survey


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("name", "members"),
    [
        *((name, members) for name in ("ring", "doubling", "rabenseifner", "tree") for members in (2, 4, 8)),
        ("ring", 3),
        ("ring", 7),
    ],
)
def test_collectives_take_as_long_as_the_model_says(name: str, members: int, shared: bool) -> None:
    """And one latency more: in an empty letter everybody says first that it is there. Headers are below 0.2 %."""
    call = f"allreduce(algorithm={name!r})"
    expected = cost.COSTS[name](members, NBYTES, Link(LATENCY_S, RATE))
    found = simulated(call, members, latency_s=LATENCY_S, shared=shared)
    assert found == pytest.approx(expected + LATENCY_S, rel=2e-3)
    assert found == pytest.approx(expected, rel=WITHIN)


@pytest.mark.parametrize(
    ("name", "members", "shared", "more"),
    [
        ("doubling", 3, True, 0),
        ("doubling", 7, True, 0),
        ("doubling", 7, False, 0),
        ("rabenseifner", 3, True, 0),
        ("rabenseifner", 7, False, 0),
        ("tree", 3, True, 0),
        ("tree", 7, True, 0),
        ("tree", 3, False, -2),
        ("tree", 7, False, -2),
        ("doubling", 3, False, -1),
        ("rabenseifner", 7, True, 0.5),
    ],
)
def test_other_numbers_than_powers_of_two(name: str, members: int, shared: bool, more: float) -> None:
    """The hops that the model counts, and so many times T more.

    On links of their own nobody waits its turn at an interface: a tree of 3 or 7 is a level less deep than its root
    has children, and of 3 who double the one without a surplus has sent before it is needed. Through one interface
    that is a drawback: of 7 the fourth has nobody to wait for, sends its half at once, and it meets a whole
    tensor of the surplus on its way in.
    """
    expected = cost.COSTS[name](members, NBYTES, Link(LATENCY_S, RATE)) + more * T
    found = simulated(f"allreduce(algorithm={name!r})", members, latency_s=LATENCY_S, shared=shared)
    assert found == pytest.approx(expected, rel=WITHIN)


@pytest.mark.parametrize("members", [2, 3, 4, 7, 8])
def test_the_direct_exchange(members: int) -> None:
    """No letter goes ahead, as the first ones go to everybody anyway. The model has one interface per host; on
    links of their own all P - 1 slices move at once."""
    call, model = "allreduce(algorithm='direct')", cost.direct(members, NBYTES, Link(LATENCY_S, RATE))
    assert simulated(call, members, latency_s=LATENCY_S) == pytest.approx(model, rel=2e-3)
    own = simulated(call, members, latency_s=LATENCY_S, shared=False)
    assert own == pytest.approx(2 * LATENCY_S + 2 * T / members, rel=2e-3)
    plain = simulated("allreduce", members, latency_s=LATENCY_S)
    assert plain == pytest.approx(model, rel=1e-6), "a plain mean is that formula"


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_the_exchange_in_one_hop(members: int) -> None:
    """Likewise."""
    call, model = "allreduce(algorithm='exchange')", cost.exchange(members, NBYTES, Link(LATENCY_S, RATE))
    assert simulated(call, members, latency_s=LATENCY_S) == pytest.approx(model, rel=2e-3)
    own = simulated(call, members, latency_s=LATENCY_S, shared=False)
    assert own == pytest.approx(LATENCY_S + T, rel=2e-3)


def test_messages_that_cost_something_come_on_top() -> None:
    """A ring of 8 hands over 2 (P - 1) letters one after another, and before them everybody's empty ones."""
    message_s = 20e-6
    free = simulated("allreduce(algorithm='ring')", 8)
    network = Network(RATE, 0.0, shared=True, message_s=message_s)
    found = exchange_s(strategy_from("allreduce(algorithm='ring')"), SIZES, workers=8, network=network)
    assert found - free == pytest.approx((14 + 7) * message_s, rel=0.05)


# The page


def script() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "docs" / "make_cost_tables.py"
    spec = importlib.util.spec_from_file_location("make_cost_tables", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["make_cost_tables"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_on_the_page_are_those_of_today() -> None:
    made = script()
    text = made.PAGE.read_text(encoding="utf-8")
    assert made.with_tables(text) == text, "run: python docs/make_cost_tables.py"
