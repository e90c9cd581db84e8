"""Predictions: every preset has one or a reason why not; bytes are those of its formula, times those of the model."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fast.adapters.sizes import layout_of
from fast.core import Me, Strategy
from fast.errors import UsageError
from fast.lab.planner import prediction
from fast.lab.planner.closed_forms import Exchange
from fast.lab.planner.prediction import Prediction, Refused, predict
from fast.lab.planner.rhythm import period_of
from fast.lab.planner.situation import Situation
from fast.lab.settings import Simulated
from fast.lab.sizes import Sizes, simulate_sizes
from fast.loop.loading import strategy_from
from fast.sim import Cluster, Compute, Network, Simulation
from fast.sim.cluster import Hosts, cluster_of
from table import ALIKE, CALLS

D, HEADER_BYTES, STEP_S, RATE = 160_000, 256, 0.02, 125e6
"""Values of a model, a multiple of what memory is aligned to."""
BARE = Sizes.of_parameters(D)
PLAIN = Cluster(Compute(STEP_S), Network(RATE, 0.0, shared=True))


def small_network() -> Sizes:
    """Matrices and their rows are known, for codecs and factors that need them."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        layout = layout_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return Sizes("small", layout, 2, (0.1,), {"0.weight": 1, "2.weight": 1})


def predicted(call: str, workers: int = 8, cluster: Cluster = PLAIN, sizes: Sizes = BARE) -> Prediction:
    return predict(strategy_from(call), Situation(sizes, workers, cluster))


# Every preset

REFUSED = {
    "local_sgd(tau=7, moments='average')": "needs the values of a tensor",
    "gossip(p=0.3, moments='average')": "needs the values of a tensor",
    "hogwild": "needs workers that share one host's memory",
}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is seen, in less time."""
    for name, events in (("_SETTLED", 300), ("_LONG", 1_200), ("_EVENTS", 4_000)):
        monkeypatch.setattr(prediction, name, events)


@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=[pytest.mark.long] * (call in ALIKE)) for call in CALLS]
)
def test_every_preset_is_predicted_or_refused_with_a_reason(call: str) -> None:
    cluster, sizes = cluster_of(None, network="1gbit", step="20ms"), small_network()
    if call in REFUSED:
        with pytest.raises(Refused, match=REFUSED[call]):
            predicted(call, 5, cluster, sizes)
        return
    found = predicted(call, 5, cluster, sizes)
    assert 0.02 * (1 - 1e-9) < found.step_s < 0.022, "no step is faster than its gradient"
    assert found.computing * found.step_s == pytest.approx(0.02, rel=0.05)
    assert (found.sent_bytes > 0) == (call != "one_shot")
    assert (found.server_bytes > 0) == (strategy_from(call).servers(5) > 0)
    assert found.busiest_bytes >= found.sent_bytes
    assert json.loads(json.dumps(found.to_json()))["step_s"] == found.step_s


def test_hogwild_is_predicted_where_it_can_be() -> None:
    cluster = cluster_of(None, network="1gbit", step="20ms", hosts="all")
    assert predicted("hogwild", 5, cluster, small_network()).step_s >= 0.02


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("sfb", "depends on the shapes of the model's matrices"),
        ("torus(codec=threshold(0.1))", "as many values as lie beyond its threshold"),
        ("tensorflow(backups=9)", "none is left"),
    ],
)
def test_what_sizes_do_not_say_is_refused(call: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        predicted(call)


class ReadsWeights(Strategy):
    async def step(self, me: Me) -> None:
        if float(torch.linalg.vector_norm(me.weights)) > 1:
            me.apply(me.gradient)


class Breaks(Strategy):
    async def step(self, me: Me) -> None:
        raise RuntimeError("something else")


def test_a_refusal_is_the_users_and_other_errors_stay_what_they_are() -> None:
    situation = Situation(BARE, 2, PLAIN)
    with pytest.raises(UsageError, match="needs the values of a tensor"):
        predict(ReadsWeights(), situation)
    with pytest.raises(RuntimeError, match="something else"):
        predict(Breaks(), situation)


def test_two_steps_that_take_too_many_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 workers that each write to everybody twice a step."""
    monkeypatch.setattr(prediction, "_TOO_MANY", 3_000)
    with pytest.raises(Refused, match=r"two steps of .* on 40 workers are more than 3,000 events"):
        predicted("allreduce(algorithm='direct')", 40)


# Bytes per worker and step, against formulas


@pytest.mark.parametrize(
    ("call", "workers", "sent", "served"),
    [
        ("allreduce", 8, 8 * D * 7 / 8, 0),
        ("allreduce(algorithm='ring')", 8, 8 * D * 7 / 8 + (14 + 7) * HEADER_BYTES, 0),
        ("allreduce(codec=top_k(0.01))", 8, 7 * (8 * D // 100 + HEADER_BYTES), 0),
        ("dpsgd", 8, 2 * (4 * D + HEADER_BYTES), 0),
        ("torus", 16, 4 * (4 * D + HEADER_BYTES), 0),
        ("gossipgrad", 8, 4 * D + HEADER_BYTES, 0),
        ("local_sgd(tau=5)", 8, 8 * D * 7 / 8 / 5, 0),
        ("diloco(interval=30)", 8, 8 * D * 7 / 8 / 30, 0),
        ("noloco(interval=20)", 8, 8 * D / 20 + 2 * HEADER_BYTES / 20, 0),
        ("easgd(tau=4)", 8, 4 * D / 4, 4 * D / 4),
        ("ssp(2)", 8, 4 * D + HEADER_BYTES, 4 * D + HEADER_BYTES),
        ("downpour(fetch=3, push=2)", 8, 4 * D / 2, 4 * D / 3),
        ("bigdl", 8, 4 * D + 8 * HEADER_BYTES, 4 * D + 8 * HEADER_BYTES),
    ],
)
def test_bytes_are_those_of_the_formula(
    call: str, workers: int, sent: float, served: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "_SETTLED", 2_000)
    found = predicted(call, workers)
    assert found.sent_bytes == pytest.approx(sent, rel=0.01)
    assert found.server_bytes == pytest.approx(served, rel=0.01)


def test_it_does_not_matter_whose_step_ends_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over slow links who is far from worker 0 on the ring is ahead of it; of few steps one more counts much."""
    monkeypatch.setattr(prediction, "_SETTLED", 2_000)
    monkeypatch.setattr(prediction, "_LONG", 8_000)
    slow = cluster_of(None, network="1gbit", step="200ms")
    found = predicted("dpsgd", 64, slow, Sizes.of_parameters(25e6))
    assert found.steps < 6
    assert found.sent_bytes == pytest.approx(8 * 25e6, rel=0.01)


def test_random_talk_is_right_in_the_mean() -> None:
    """4 d p bytes; some hundred letters were seen."""
    found = predicted("gosgd(p=0.3)", 16)
    assert found.sent_bytes == pytest.approx(0.3 * (4 * D + HEADER_BYTES), rel=0.1)
    assert found.period is None and found.workers == 16


@pytest.mark.parametrize(
    ("call", "period"),
    [
        ("allreduce", 1),
        ("local_sgd(tau=7)", 7),
        ("downpour(fetch=3, push=2)", 6),
        ("streaming_diloco(fragments=2, interval=10, overlap=3)", 10),
        ("diloco(interval=100)", 100),
        ("post_local_sgd(tau=6, after=20)", 6),
        ("one_shot", None),
    ],
)
def test_the_rhythm_is_heard(call: str, period: int | None) -> None:
    found = predicted(call, 4)
    assert found.period == period
    if period is not None:
        assert found.steps >= period and found.steps % period == 0


def test_the_busiest_is_the_server() -> None:
    """Of a single server all gradients in, all weights out; of a ring nobody more than the others."""
    one = predicted("ssp(0)", 8)
    assert one.busiest_bytes == pytest.approx(8 * 2 * (4 * D + HEADER_BYTES), rel=0.01)
    ring = predicted("allreduce", 8)
    assert ring.busiest_bytes == pytest.approx(2 * ring.sent_bytes)


# Times, against the closed forms


def test_a_step_takes_its_gradient_and_its_exchange() -> None:
    exchange = Exchange(4 * D / RATE, 0.0, 0.0)
    for call, pattern in (("allreduce", "ring"), ("bigdl", "sharded server")):
        found = predicted(call)
        expected = STEP_S + exchange.seconds(pattern, 8)
        assert found.step_s == pytest.approx(expected, rel=0.01)
        assert found.computing == pytest.approx(STEP_S / expected, rel=0.01)
        assert found.staleness in (None, 0)


def test_a_naive_server_is_never_idle_in_the_long_run() -> None:
    """2 n T is one exchange from a standing start. The first worker computes and pushes again while the last ones
    still wait for their weights, so step after step takes (n + 1) T beside the gradient."""
    for workers in (4, 8):
        found = predicted("ssp(0)", workers)
        assert found.step_s == pytest.approx(STEP_S + (workers + 1) * 4 * D / RATE, rel=0.01)


def test_local_steps_share_one_exchange() -> None:
    found, exchange = predicted("local_sgd(tau=5)"), Exchange(4 * D / RATE, 0.0, 0.0)
    assert found.step_s == pytest.approx(STEP_S + exchange.seconds("ring", 8) / 5, rel=1e-3)
    assert predicted("one_shot").step_s == pytest.approx(STEP_S)


def test_workers_of_unlike_speed() -> None:
    """In lock-step everybody is as slow as the slowest; without a bound the others go on, and a step of all
    workers together is worth the harmonic mean."""
    slow = replace(
        PLAIN, network=Network(1e12, 0.0), compute=replace(PLAIN.compute, workers_s={3: 4 * STEP_S})
    )
    together = predicted("allreduce", 4, slow)
    assert together.step_s == pytest.approx(4 * STEP_S, rel=0.01)
    assert together.computing == pytest.approx((3 + 4) / 16, rel=0.01)
    free = predicted("ssp(inf)", 4, slow)
    assert free.step_s == pytest.approx(STEP_S * 4 / (3 + 1 / 4), rel=0.05)
    assert free.computing == pytest.approx(1.0, rel=0.02)
    assert free.staleness == 1, "the three others push at the same time: 0, 1 and 2"


@pytest.mark.long
def test_it_is_what_a_longer_simulation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is periodic: random steps, a server in demand."""
    monkeypatch.undo()
    world = Simulated("1gbit", "20ms", "5x@0.1", spread=0.3)
    situation = Situation.of(BARE, 8, world)
    for call in ("ssp(3)", "ad_psgd", "easgd(tau=4)"):
        found = predict(strategy_from(call), situation)
        long = simulate_sizes(BARE, strategy_from(call), workers=8, steps=800, world=world)
        assert found.step_s == pytest.approx(long.step_s, rel=0.1)
        assert found.sent_bytes == pytest.approx(long.step_bytes, rel=0.05)
        assert found.computing == pytest.approx(long.shares["computing"], rel=0.1)


def test_the_same_seed_predicts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_EVENTS", 1_000)
    strategy, situation = strategy_from("gosgd(p=0.3)"), Situation(BARE, 4, PLAIN)
    assert predict(strategy, situation) == predict(strategy, situation)
    assert predict(strategy, situation) != predict(strategy, situation, seed=1)


@pytest.mark.parametrize(("frozen", "expected"), [(0, ["freeze", "collect", "unfreeze"]), (5, ["collect"])])
def test_a_prediction_clears_up_after_itself_and_looks_at_nothing_else(
    monkeypatch: pytest.MonkeyPatch, frozen: int, expected: list[str]
) -> None:
    """A look at all that torch has made takes a quarter of a second, and a plan has dozens of predictions. What its
    caller has frozen stays so."""
    made: list[weakref.ref[Simulation]] = []
    done: list[str] = []
    collect = gc.collect

    def make(*args: Any, **options: Any) -> Simulation:
        simulation = Simulation(*args, **options)
        made.append(weakref.ref(simulation))
        return simulation

    monkeypatch.setattr(prediction, "Simulation", make)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: done.append("unfreeze"))
    monkeypatch.setattr(gc, "collect", lambda: (done.append("collect"), collect()))
    predicted("allreduce", 20)
    assert done == expected and gc.isenabled()
    assert [each() for each in made] == [None]


def test_many_workers_that_rarely_talk_are_watched_in_smaller_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("_EVENTS", 4_000), ("_EVENTS_EACH", 10), ("_FEW", 4)):
        monkeypatch.setattr(prediction, name, value)
    found = predicted("diloco(interval=50)", 32)
    assert found.period == 50 and found.workers == 8
    assert found.sent_bytes == pytest.approx(8 * D * 7 / 8 / 50, rel=0.01)


def test_a_thousand_workers() -> None:
    found = predicted("allreduce", 1000)
    assert found.workers == 1000
    assert found.step_s == pytest.approx(
        STEP_S + Exchange(4 * D / RATE, 0, 0).seconds("ring", 1000), rel=1e-3
    )


def test_hosts_that_are_shared() -> None:
    """All on one host: letters never see the network."""
    crowd = replace(PLAIN, network=replace(PLAIN.network, hosts=Hosts(each=None)))
    assert predicted("ssp(0)", 8, crowd).step_s < 0.5 * predicted("ssp(0)", 8).step_s + 0.5 * STEP_S


# Periods


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.lists(st.integers(0, 3), max_size=9))
def test_a_repeated_pattern_is_found(pattern: list[int], before: list[int]) -> None:
    sent = before + pattern * 12
    found = period_of(sent, 12)
    if not any(pattern):
        assert found is None
        return
    assert found is not None and len(pattern) % found == 0
    assert pattern == (pattern[:found] * len(pattern))[: len(pattern)]


def test_what_happens_by_chance_is_no_rhythm() -> None:
    """Two letters of worker 0 at the distance of two others are no pattern that all workers follow."""
    for seed in range(3):
        found = predict(strategy_from("gosgd(p=0.02)"), Situation(BARE, 8, PLAIN), seed=seed)
        assert found.period is None and found.steps > 300


def test_one_repetition_is_not_believed() -> None:
    assert period_of([5, 0, 0, 5, 0, 0], 3) is None
    assert period_of([0, 5, 0, 5, 0, 5], 3) == 2
    assert period_of([0, 5, 0, 5, 0, 5], 7) is None, "too short to tell"
    assert period_of([], 1) is None
