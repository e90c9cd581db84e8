"""How many samples a strategy needs: its kind, the formula; and what the benchmark that fits it does."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.collectives import cost
from fast.core import Me, Strategy
from fast.core.world import Link
from fast.lab import Budget, load_task
from fast.lab.planner.efficiency import (
    KINDS,
    LOSSES,
    Features,
    Loss,
    factor_of,
    features_of,
    interval_of,
    kind_of,
    samples_factor,
)
from fast.lab.planner.prediction import Prediction
from fast.loop.loading import strategy_from
from fast.sim import parse_network
from fast.strategies.catalogue import catalogue


def script(name: str) -> ModuleType:
    folder = str(Path(__file__).resolve().parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


bench = script("advisor")
situations, trainings = script("advising.situations"), script("advising.trainings")
answers, notes_of, fitting = script("advising.answers"), script("advising.notes"), script("advising.fitting")


MODEL_BYTES = 1
"""As much as is sent in a step of what is predicted here."""


def prediction(staleness: int | None = None, period: int | None = 1) -> Prediction:
    return Prediction(0.1, 1.0, 0.0, 2.0, 0.5, staleness, period, 8, 24)


def offered(*calls: str, step_s: float = 0.1) -> list[object]:
    return [answers.Offer(call, call, replace(prediction(0), step_s=step_s)) for call in calls]


# Kinds

KNOWN = {
    "allreduce": "lock-step",
    "pytorch": "lock-step",
    "bigdl": "lock-step",
    "firecaffe": "lock-step",
    "tensorflow(backups=1)": "lock-step",
    "ssp(bound=0)": "lock-step",
    "pytorch(codec=ef_sign())": "packed",
    "bigdl(codec=fp16)": "packed",
    "ssp(bound=3)": "late",
    "dc_asgd": "late",
    "downpour": "late",
    "mxnet('dist_async')": "late",
    "local_sgd": "averaged",
    "slowmo": "averaged",
    "diloco": "averaged",
    "easgd(synchronous=True)": "averaged",
    "dpsgd": "neighbours",
    "choco": "neighbours",
    "sgp": "in turn",
    "gossipgrad": "in turn",
    "torus": "hearsay",
    "easgd": "adrift",
    "gosgd": "adrift",
    "ad_psgd": "adrift",
}


@pytest.mark.parametrize(("call", "kind"), KNOWN.items())
def test_a_strategy_is_of_one_kind(call: str, kind: str) -> None:
    assert kind_of(strategy_from(call)) == kind


@pytest.mark.parametrize("name", catalogue())
def test_every_preset_has_a_factor(name: str) -> None:
    found = samples_factor(catalogue()[name](), prediction(3), 8, MODEL_BYTES)
    assert 0 < found < math.inf


class Alone(Strategy):
    """A strategy that is no preset, and says nothing of itself."""

    async def step(self, me: Me) -> None:
        me.apply(me.gradient)


class Agreeing(Alone):
    synchronous = True
    replicas_agree = True


def test_what_is_no_preset_is_known_by_its_promises() -> None:
    assert kind_of(Alone()) == "adrift"
    assert kind_of(Agreeing()) == "lock-step"
    assert interval_of(Alone(), 7) == 7, "no argument says it, so it is what was seen"


@pytest.mark.parametrize(
    ("call", "interval"),
    [
        ("local_sgd(tau=16)", 16),
        ("diloco(interval=64)", 64),
        ("tree_easgd(up=4, down=8)", 4),
        ("gosgd(p=0.1)", 10),
        ("sgp", 1),
        ("ssp(bound=3)", 1),
        ("parameter_server(tau=3)", 1),
        ("downpour(fetch=5, push=5)", 5),
    ],
)
def test_steps_between_exchanges(call: str, interval: float) -> None:
    assert features_of(strategy_from(call), 8).interval == pytest.approx(interval)


def test_who_exchanges_when_the_link_is_free_does_so_rarely_over_a_slow_one() -> None:
    def interval(call: str, sent: float) -> float:
        return features_of(strategy_from(call), 8, sent=sent).interval

    assert interval("ad_psgd", 0.05) == pytest.approx(20)
    assert interval("ad_psgd", 1.0) == 1
    assert interval("gosgd(p=0.1)", 0.1) == pytest.approx(10)
    assert interval("allreduce", 0.05) == 1, "with a slow link its steps take longer"
    assert interval("local_sgd(tau=4)", 0.05) == 4
    slow = samples_factor(strategy_from("ad_psgd"), prediction(), 8, 20 * MODEL_BYTES)
    assert slow > samples_factor(strategy_from("ad_psgd"), prediction(), 8, MODEL_BYTES)


# The formula


def test_lock_step_needs_what_it_needs() -> None:
    for call in ("allreduce", "bigdl", "pytorch", "ssp(bound=0)"):
        assert samples_factor(strategy_from(call), prediction(0), 32, MODEL_BYTES) == 1.0


def test_gradients_that_are_thrown_away_are_seen_for_nothing() -> None:
    assert samples_factor(strategy_from("tensorflow(backups=1)"), prediction(0), 5, MODEL_BYTES) == 5 / 4
    assert samples_factor(strategy_from("tensorflow(backups=0)"), prediction(0), 5, MODEL_BYTES) == 1.0


def test_the_formula() -> None:
    losses = {"late": Loss(0.5, 0.25, 0.125, -1.0)}
    found = factor_of(Features("late", 16, 3, 8), losses)  # type: ignore[arg-type]
    assert found == pytest.approx(2**0.5 * 16**0.25 * 4**0.125 * (8 / 4) ** -1.0)
    assert factor_of(Features("late", 1, 0, 32), losses) == 1.0, "never fewer than in lock-step"  # type: ignore[arg-type]


@given(
    st.sampled_from(KINDS),
    st.floats(1, 1e6),
    st.floats(0, 1e6),
    st.integers(2, 10**6),
)
def test_beyond_what_was_tried_the_nearest_counts(
    kind: str, interval: float, staleness: float, workers: int
) -> None:
    found = factor_of(Features(kind, interval, staleness, workers))  # type: ignore[arg-type]
    near = Features(kind, min(interval, 64), min(staleness, 64), min(max(workers, 4), 32))  # type: ignore[arg-type]
    assert found == factor_of(near)
    assert 1 <= found < 64


def test_every_kind_was_fitted() -> None:
    assert tuple(LOSSES) == KINDS and LOSSES["lock-step"] == Loss()


# The benchmark


def test_more_situations_begin_with_the_same_ones() -> None:
    assert situations.drawn(5, 0) == situations.drawn(12, 0)[:5]
    assert not set(map(str, situations.drawn(30, situations.CHECKED))) & set(
        map(str, situations.drawn(30, situations.FITTING))
    )
    assert {case.seed for case in situations.drawn(30, 0)}.isdisjoint(
        case.seed for case in situations.drawn(30, 1)
    )


def test_the_all_reduce_takes_as_long_as_was_drawn() -> None:
    for case in situations.drawn(20, 0):
        network = parse_network(case.network)
        link = Link(network.latency_s, network.rate_bytes_per_s)
        found = cost.direct(case.workers, situations.weights_bytes(), link) / situations.STEP_S
        assert found == pytest.approx(case.communication, rel=0.02)
        assert 0.019 < found < 51
        assert case.situation().workers == case.workers


def test_needs_are_drawn_too() -> None:
    drawn = situations.drawn(200, situations.CHECKED)
    assert {name for case in drawn for name in case.needs} == {
        "reproducible", "unreliable", "tuning", "hostile", "iid", "memory_bytes",
    }  # fmt: skip
    small = next(case for case in drawn if "memory_bytes" in case.needs).situation()
    assert small.fits and not small.fits_optimizer
    assert all(case.workers >= 5 for case in drawn if "hostile" in case.needs)
    assert all(case.workers <= 8 for case in drawn if "iid" in case.needs)
    assert {case.split for case in drawn} == {"iid", "dirichlet(0.3)"}


def test_data_that_differ_are_trained_apart() -> None:
    alike = situations.Case("x", 3, 4, 1.0, "1e6,0.001s")
    unlike = replace(alike, needs={"iid": False})
    assert notes_of.known_key("allreduce", alike) != notes_of.known_key("allreduce", unlike)
    assert trainings.verify(unlike, "allreduce", 1.0)


def test_shards_have_the_rate_of_one_server() -> None:
    base = strategy_from("allreduce").call
    one, many = (strategy_from(f"ssp(bound=3, servers={servers})").call for servers in (1, 16))
    assert trainings.tuned_as(many) == trainings.tuned_as(one) == one
    assert trainings.tuned_as(strategy_from("ssp(bound=0, servers=16)").call) == base
    assert trainings.tuned_as(strategy_from("local_sgd").call) == strategy_from("local_sgd").call


def test_no_rate_is_tried_for_longer_than_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    took, within = {2.0: 900, 1.0: 500, 0.5: 800}, dict[float, float]()

    def trained(job: object) -> tuple[object, float]:
        rate = job.rate  # type: ignore[attr-defined]
        within[rate] = job.within  # type: ignore[attr-defined]
        enough = took[rate] <= within[rate]
        return (trainings.Reached(1.0, 2, took[rate], False) if enough else None), 0.9

    monkeypatch.setattr(trainings, "trained", trained)
    assert trainings.tuned(("allreduce", 4)) == 1.0
    assert within == {2.0: math.inf, 1.0: 900, 0.5: 500}


def test_the_step_of_a_tick() -> None:
    """896 images on 16 workers with 32 each: a step of 512 and one of 384, and four ticks in an epoch of 896."""
    budget = Budget.of(load_task("digits"), 16, 2.0, ticks=8)
    assert [trainings.step_of(budget, tick) for tick in range(1, 9)] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("call", "straggler", "spread"),
    [("local_sgd(tau=2)", None, 0.3), ("sgp", "3x@0.2", None), ("bigdl", "2x", None)],
)
def test_lock_step_does_not_see_the_time(call: str, straggler: str | None, spread: float | None) -> None:
    case = situations.Case("x", 3, 4, 1.0, "1e6,0.001s", straggler, spread)
    assert trainings.verify(case, call, 1.0)


def test_what_does_not_go_in_lock_step_sees_it() -> None:
    case = situations.Case("x", 3, 4, 1.0, "1e6,0.001s", "4x", None)
    assert not trainings.is_lock_step("downpour") and not trainings.verify(case, "downpour", 1.0)


def test_who_is_too_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(situations.the_task()), "target", 0.6)
    case = situations.Case("0/7", 3, 4, 1.0, "1e7,0.001s", "4x", None)
    offers = tuple(offered("gossip(p=0.5)", "torus", step_s=0.02))

    def found(best: float, steps: int = 0) -> object:
        question = answers.Question(case, offers, {"torus": 0.25}, {}, steps)
        return answers._trained_here(question, offers[1], best)

    reached, score = trainings.trained(trainings.Training("torus", 4, 3, 0.25, case=case))
    assert reached is not None and score >= situations.the_task().target
    took = (reached.at_s + reached.apart * trainings.mean_s(case), reached.samples)
    assert found(math.inf) == found(reached.at_s) == took
    assert found(0.7 * reached.at_s) == took, "it might be the first choice"
    assert found(0.6 * reached.at_s) is None, "then it would be too late"
    assert found(reached.at_s, steps := math.floor(3 * reached.at_s / 0.02)) == took
    assert found(reached.at_s, steps + 1) is None, "half of these steps would be too many"


def test_the_fit_finds_what_was_put_in() -> None:
    true = {"late": Loss(0.3, 0.0, 0.2, 0.1), "averaged": Loss(0.5, 0.25, 0.0, 0.4)}
    rows = [
        fitting.Seen(
            features := Features(kind, interval, staleness, workers), math.log2(factor_of(features, true))
        )  # type: ignore[arg-type]
        for kind in true
        for interval in ((1,) if kind == "late" else (2, 8, 32))
        for staleness in ((1, 7, 31) if kind == "late" else (0,))
        for workers in (4, 8, 16, 32)
        for _ in range(50)
    ]
    found = fitting.fitted(rows)
    for kind, loss in true.items():
        assert found[kind].row == pytest.approx(loss.row, abs=0.01)
    assert found["adrift"] == LOSSES["adrift"], "of which nothing was seen"
    assert found["lock-step"] == Loss()


def test_who_was_given_up_counts_where_it_should_have_been_there() -> None:
    """Half of them took as many samples as lock-step; the others had not got there after four times as many."""
    features = Features("late", 1, 0, 4)
    known, given_up, hopeless = (
        [fitting.Seen(features, value, at_least)] * 10
        for value, at_least in ((0.0, False), (2.0, True), (-1.0, True))
    )
    assert fitting.fitted(known)["late"].constant == 0.0
    assert fitting.fitted([*known, *given_up])["late"].constant == 1.0
    assert fitting.fitted([*known, *hopeless])["late"].constant == 0.0, "it says nothing"


def test_who_is_first_and_who_was_best(tmp_path: Path) -> None:
    case = situations.Case("0/0", 0, 4, 1.0, "1gbit")
    calls = [strategy_from(each).call for each in ("local_sgd(tau=2)", "allreduce", "dc_asgd", "gosgd")]
    notes = notes_of.Notes(tmp_path / "found.json")
    notes.offers["0/0"] = offered(*calls)
    notes.rates["x"], notes.known["y"], notes.known["z"] = 0.5, trainings.Reached(1.0, 2, 3, True), None
    notes.found["0/0"] = dict(zip(calls, ((3.0, 10), (2.0, 10), None, (9.0, 10)), strict=True))
    row = bench.row_of(notes, case)
    assert (row.first, row.best, row.ratio, row.holds) == (calls[0], calls[1], 1.5, True)
    assert answers.ratio_of(calls[2], notes.found["0/0"]) == math.inf
    assert answers.ratio_of(calls[3], notes.found["0/0"]) == 4.5
    notes.keep()
    again = notes_of.Notes.of(notes.file)
    assert (again.rates, again.known, again.found) == (notes.rates, notes.known, notes.found)


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """local_sgd needs twice the samples of allreduce, and is first by its steps; dc_asgd never got there."""
    case, base = situations.Case("0/0", 0, 4, 1.0, "1gbit"), strategy_from("allreduce").call
    calls = [strategy_from("local_sgd(tau=2)").call, base, strategy_from("dc_asgd").call]
    notes = notes_of.Notes(None, offers={"0/0": offered(*calls)})
    notes.known[notes_of.known_key(base, case)] = trainings.Reached(1.0, 2, 100, False)
    notes.found["0/0"] = {calls[0]: (3.2, 200), base: (2.0, 100), calls[2]: None}
    row = bench.row_of(notes, case)
    bench.show([row])
    bench.show_fit(notes, [case])
    shown = capsys.readouterr().out
    assert "In 0 of 1 situations (0.0%)" in shown and "1.60 x" in shown
    assert "local_sgd(tau=2) where allreduce was best" in shown
    assert "# 1 trainings, off by" in shown and '"averaged": Loss(constant=' in shown
    summary = bench.summary_of([row])
    assert (summary["share"], summary["rows"][0]["ratio"]) == (0.0, 1.6)
    twice, _, late = fitting.observations(notes, [case])
    assert twice.value == 1.0 and not twice.at_least, "twice as many is one doubling"
    assert late.at_least and late.value == pytest.approx(math.log2(1.5 * 2.0 / 0.1 / 2))


def test_predictions_are_kept_and_the_advice_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = situations.Case("0/0", 0, 4, 1.0, "1gbit")
    known = {"allreduce": prediction(0)}
    notes = notes_of.Notes(tmp_path / "found.json", {"0/0": known}, {"0/0": offered("allreduce")}, {"x": 1.0})
    notes.keep()
    again = notes_of.Notes.of(notes.file)
    assert again.predictions == {"0/0": known} and again.offers == {} and again.rates == {"x": 1.0}
    (same,) = [each for each in answers.advised((case, known)) if each.asked == "allreduce"]
    assert same.prediction == known["allreduce"] and same.call == strategy_from("allreduce").call
    monkeypatch.setattr(notes_of, "RATES", (1.0,))
    with pytest.raises(SystemExit, match="name another file"):
        notes_of.Notes.of(notes.file)
