"""The advice: what is compared, who wins and why, and where rule and prediction part."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fast.core import Strategy
from fast.errors import UsageError
from fast.lab import Simulated
from fast.lab.planner import advisor
from fast.lab.planner.advisor import Advice, advise, option_of
from fast.lab.planner.candidates import ELASTIC_STEPS, LIKE, LOCAL_STEPS, OUTER_STEPS, calls_of, power_of_two
from fast.lab.planner.efficiency import samples_factor
from fast.lab.planner.facts import facts_of
from fast.lab.planner.prediction import Prediction, Refused
from fast.lab.planner.rules import matches
from fast.lab.planner.situation import Needs, Situation
from fast.lab.planner.vetoes import veto_of
from fast.lab.sizes import Sizes
from fast.loop.loading import strategy_from
from fast.strategies.calls import arguments_of
from fast.strategies.catalogue import catalogue
from fast.view import Layout


def plan(
    parameters: float = 25e6, step: str = "0.2s", workers: int = 8, network: str = "10gbit",
    needs: Needs | None = None, **words: object,
) -> Situation:  # fmt: skip
    world = Simulated(network, step, **words)  # type: ignore[arg-type]
    return Situation.of(Sizes.of_parameters(parameters), workers, world, needs)


def predicted(step_s: float, **figures: object) -> Prediction:
    known = {
        "sent_bytes": 1e6, "server_bytes": 0.0, "busiest_bytes": 2e6, "computing": 0.5, "staleness": None,
        "period": 1, "workers": 8, "steps": 24, **figures,
    }  # fmt: skip
    return Prediction(step_s=step_s, **known)  # type: ignore[arg-type]


Predicting = Callable[[dict[str, float]], None]


@pytest.fixture
def predicting(monkeypatch: pytest.MonkeyPatch) -> Predicting:
    """Time per step by preset (1 s for all others, negative: refused), and samples are worth the same everywhere."""

    def install(steps_s: dict[str, float]) -> None:
        def predict(strategy: Strategy, situation: Situation) -> Prediction:
            step_s = steps_s.get(repr(strategy).partition("(")[0], 1.0)
            if step_s < 0:
                raise Refused("nothing is known of it")
            return predicted(step_s)

        monkeypatch.setattr(advisor, "predict", predict)
        monkeypatch.setattr(advisor, "samples_factor", lambda *_: 1.0)

    return install


def names(advice: Advice) -> list[str]:
    return [each.name for each in advice.ranked]


# What is compared


@pytest.mark.parametrize(
    ("wanted", "power"), [(-1.0, 2), (2.0, 2), (2.1, 4), (63.0, 64), (64.0, 64), (65.0, 64), (1e9, 64)]
)
def test_intervals_are_powers_of_two(wanted: float, power: int) -> None:
    assert power_of_two(wanted, 2, 64) == power


def calls(situation: Situation) -> dict[str, str]:
    return {call: name for name, call in calls_of(situation, facts_of(situation))}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parameters=st.sampled_from([1e3, 1e6, 25e6, 1e9]),
    workers=st.integers(2, 200),
    network=st.sampled_from(["loopback", "1gbit", "10gbit", "infiniband", "wan", "wifi"]),
    step=st.sampled_from(["1ms", "0.2s", "30s"]),
    straggler=st.sampled_from([None, "4x", "5x@0.1"]),
    hostile=st.integers(0, 3),
    reproducible=st.booleans(),
    iid=st.booleans(),
)
def test_every_call_can_be_built_and_run_on_so_many_workers(
    parameters: float, workers: int, network: str, step: str, straggler: str | None, hostile: int,
    reproducible: bool, iid: bool,
) -> None:  # fmt: skip
    hostile = min(hostile, max(0, (workers - 3) // 2))
    needs = Needs(reproducible=reproducible, hostile=hostile, iid=iid)
    situation = plan(parameters, step, workers, network, needs, straggler=straggler)
    found = calls(situation)
    assert 12 <= len(found) <= 18
    assert set(found.values()) <= set(catalogue()) - set(LIKE) | {"tree_easgd"}
    allowed = []
    for call, name in found.items():
        option = option_of(name, call)
        option.strategy.check(workers)
        allowed.append(veto_of(option, situation) is None)
    assert any(allowed)


@settings(max_examples=40)
@given(st.floats(1e-6, 1e6))
def test_an_interval_brings_the_exchange_down_to_a_fifth_of_computing(step_s: float) -> None:
    situation = plan(25e6, f"{step_s}s", 16, "1gbit")
    facts = facts_of(situation)
    bounds = {"local_sgd": ("tau", LOCAL_STEPS), "slowmo": ("tau", LOCAL_STEPS), "easgd": ("tau", ELASTIC_STEPS),
              "diloco": ("interval", OUTER_STEPS), "noloco": ("interval", OUTER_STEPS)}  # fmt: skip
    for call, name in calls(situation).items():
        if name not in bounds:
            continue
        key, (least, most) = bounds[name]
        interval = int(arguments_of(call)[key])
        assert math.log2(interval).is_integer() and least <= interval <= most
        if name != "easgd" and interval < most:
            assert facts.rho / interval <= 0.2 * 1.000001
        if name != "easgd" and interval > least:
            assert facts.rho / (interval / 2) > 0.2 * 0.999999


def test_compression_is_compared_where_the_exchange_costs_something() -> None:
    assert "pytorch(codec=ef_sign())" in calls(plan(25e6, "0.2s", 16, "1gbit"))
    assert "pytorch(bucket_mb=None, codec=ef_sign())" in calls(plan(25e6, "0.2s", 64, "1gbit"))
    assert not any("codec" in call for call in calls(plan(25e6, "0.2s", 65, "1gbit")))
    assert not any("codec" in call for call in calls(plan(1e6, "2s", 8, "10gbit")))


def test_a_model_with_matrices_is_compressed_by_their_shapes() -> None:
    sizes = Sizes("a layer", Layout.of([("weight", (64, 32)), ("bias", (64,))], torch.float32))
    situation = Situation.of(sizes, 8, Simulated("wan", "1ms"))
    assert "pytorch(codec=power_sgd(2))" in calls(situation)


def test_backups_are_a_twentieth_of_the_workers_and_only_where_somebody_is_late() -> None:
    late = calls(plan(1e5, workers=50, straggler="5x@0.1"))
    assert "tensorflow(backups=3, servers=1)" in late
    assert not any(name == "tensorflow" for name in calls(plan(1e5, workers=50)).values())


def test_there_are_shards_where_one_link_cant_carry_all() -> None:
    """Sixteen models of 32 ms over one link are 0.512 s: four shards are busy for 0.128 s each."""
    assert "dc_asgd(servers=4)" in calls(plan(1e6, "0.3s", 16, "1gbit"))
    assert "dc_asgd(servers=16)" in calls(plan(25e6, "0.2s", 16, "1gbit"))
    assert "dc_asgd(servers=1)" in calls(plan(1e5, "0.2s", 16, "1gbit"))


def test_a_tree_is_compared_where_one_link_cant_carry_all() -> None:
    """Three models of 3.2 ms in 8 steps are nothing beside a step of 50 ms; three of 0.8 s are."""
    assert not any(name == "tree_easgd" for name in calls(plan(1e5, "0.2s", 16, "1gbit")).values())
    assert "tree_easgd(up=8, down=8)" in calls(plan(1e5, "0.05s", 16, "1gbit"))
    assert "tree_easgd(up=64, down=64)" in calls(plan(25e6, "0.2s", 16, "1gbit"))


def test_a_torus_is_compared_where_links_carry_four_models_in_a_step() -> None:
    """A model takes 32 ms."""
    assert "torus" in calls(plan(1e6, "0.13s", 16, "1gbit"))
    assert "torus" not in calls(plan(1e6, "0.12s", 16, "1gbit"))


def test_hostile_workers_meet_krum() -> None:
    found = calls(plan(1e5, needs=Needs(hostile=2)))
    assert "allreduce(rule=multi_krum(2))" in found and "ssp(bound=0, rule=multi_krum(2))" in found
    assert "tensorflow(backups=1, rule=multi_krum(2))" in found
    tight = calls(plan(1e5, workers=7, needs=Needs(hostile=2)))
    assert not any(name == "tensorflow" for name in tight.values())


# Who wins


def test_the_least_predicted_time_wins(predicting: Predicting) -> None:
    predicting({"gosgd": 0.4, "local_sgd": 0.5, "allreduce": 2.0})
    advice = advise(plan(), what_ifs=False)
    assert names(advice)[:2] == ["gosgd", "local_sgd"] and names(advice)[-1] == "allreduce"
    assert [each.time for each in advice.ranked[:2]] == pytest.approx([0.2, 0.25])
    assert advice.ranked[-1].time == advice.baseline.time == 1.0
    assert [each.time for each in advice.ranked] == sorted(each.time for each in advice.ranked)


def test_time_is_steps_times_samples(monkeypatch: pytest.MonkeyPatch, predicting: Predicting) -> None:
    predicting({"gosgd": 0.4, "local_sgd": 0.5, "allreduce": 1.0})
    monkeypatch.setattr(
        advisor, "samples_factor", lambda strategy, *_: 3.0 if repr(strategy).startswith("gosgd") else 1.0
    )
    advice = advise(plan(), what_ifs=False)
    assert names(advice)[0] == "local_sgd"
    (gosgd,) = [each for each in advice.ranked if each.name == "gosgd"]
    assert gosgd.time == pytest.approx(1.2) and gosgd.time_s == pytest.approx(1.2)
    assert gosgd.why.startswith("3 x the samples: ")


def test_where_predictions_are_close_the_rule_decides_and_then_what_has_less_to_tune(
    predicting: Predicting,
) -> None:
    predicting({"gosgd": 0.5, "local_sgd": 0.51, "dpsgd": 0.52, "slowmo": 0.505, "diloco": 0.53})
    advice = advise(medium := plan(), what_ifs=False)
    assert advice.rule.id == "R4" and medium.workers == 8
    assert names(advice)[:4] == ["local_sgd", "gosgd", "slowmo", "dpsgd"]
    assert [each.why for each in advice.ranked[1:3]] == [
        "as fast, but more to tune",
        "as fast, but not the rule's choice",
    ]


def test_with_little_tuning_what_has_nothing_to_tune_may_take_half_as_long_again(
    predicting: Predicting,
) -> None:
    needs = Needs(tuning="low")
    predicting({"local_sgd": 1.0, "allreduce": 1.4})
    for step_s, first in ((1.4, "pytorch"), (1.6, "local_sgd")):
        others = dict.fromkeys(
            ("allreduce", "pytorch", "bigdl", "ssp", "dc_asgd", "slowmo", "diloco"), step_s
        )
        predicting({**dict.fromkeys(catalogue(), 9.0), **others, "local_sgd": 1.0})
        assert names(advise(plan(needs=needs), what_ifs=False))[0] == first


def test_the_advice_says_where_rule_and_prediction_part(predicting: Predicting) -> None:
    predicting({"gosgd": 0.1, "pytorch": 0.5})
    advice = advise(plan(), what_ifs=False)
    assert advice.rule.id == "R4" and not advice.agrees
    assert advice.expected is not None and advice.expected.name == "pytorch"
    predicting({"pytorch": 0.5})
    assert advise(plan(), what_ifs=False).agrees


def test_a_rule_of_which_everything_is_vetoed_doesnt_decide(predicting: Predicting) -> None:
    """Slow machines ask for asynchronous training, which isn't reproducible; ssp(bound=0) is no answer to them."""
    predicting({})
    slow = plan(1e6, straggler="4x", needs=Needs(reproducible=True))
    advice = advise(slow, what_ifs=False)
    assert advice.rule.id == "R3" and advice.expected is None and not advice.agrees
    assert "ssp(bound=0, servers=1)" in {each.call for each in advice.ranked}
    unreliable = plan(25e6, needs=Needs(unreliable=True, iid=False))
    advice = advise(unreliable, what_ifs=False)
    assert advice.rule.id == "R4" and "R8" in {rule.id for rule in advice.rules}


@pytest.mark.parametrize(
    ("needs", "ids"),
    [
        (Needs(iid=False), {"V2"}),
        (Needs(reproducible=True), {"V3"}),
        (Needs(tuning="low"), {"V4"}),
        (Needs(memory_bytes=300e6), {"V5"}),
        (Needs(unreliable=True), {"R8"}),
        (Needs(hostile=2), {"R9"}),
        (Needs(iid=False, memory_bytes=300e6), {"V2", "V5"}),
        (Needs(unreliable=True, iid=False, hostile=1), {"R9", "R8"}),
    ],
)
def test_what_is_vetoed_isnt_ranked(predicting: Predicting, needs: Needs, ids: set[str]) -> None:
    predicting({})
    advice = advise(plan(needs=needs), what_ifs=False)
    assert advice.best is not None and {each.id for each in advice.vetoed} == ids
    assert not {each.call for each in advice.vetoed} & {each.call for each in advice.ranked}
    assert all(each.reason and each.source for each in advice.vetoed)
    found = len(calls(plan(needs=needs)))
    assert len(advice.vetoed) + len(advice.ranked) == found


def test_a_what_if_that_cant_be_predicted_says_why(
    predicting: Predicting, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting({})
    own, known = plan(), advisor.predict

    def predict(strategy: Strategy, situation: Situation) -> Prediction:
        if situation.workers > own.workers:
            raise Refused("so many were never seen")
        return known(strategy, situation)

    monkeypatch.setattr(advisor, "predict", predict)
    advice = advise(own)
    assert advice.best is not None
    assert [each.words.partition(" ")[0] for each in advice.what_ifs] == ["the", "the"]
    ((words, reason),) = advice.unanswered
    assert words == "32 workers" and reason.endswith("so many were never seen")
    assert advice.to_json()["unanswered"] == [{"what": words, "reason": reason}]


def test_a_what_if_beyond_the_most_workers_says_so(predicting: Predicting) -> None:
    predicting({})
    ((words, reason),) = advise(plan(1e3, workers=8_000)).unanswered
    assert words == "32,000 workers" and "predictions end at 30,000" in reason


def test_what_was_predicted_before_isnt_predicted_again(
    predicting: Predicting, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting({"gosgd": 0.4})
    first = advise(plan(), what_ifs=False)
    asked, before = list[str](), advisor.predict

    def predict(strategy: Strategy, situation: Situation) -> Prediction:
        asked.append(strategy.call.partition("(")[0])
        return before(strategy, situation)

    monkeypatch.setattr(advisor, "predict", predict)
    known = {each.call: each.prediction for each in first.ranked if each.name != "sgp"}
    again = advise(plan(), what_ifs=False, known=known)
    assert asked == ["sgp"] and [each.call for each in again.ranked] == [each.call for each in first.ranked]


def test_a_rule_that_doesnt_decide_names_its_best(predicting: Predicting) -> None:
    predicting({"tree_easgd": 0.3, "slowmo": 0.4, "gosgd": 0.2})
    advice = advise(plan(25e6, "0.2s", 40, "1gbit"), what_ifs=False)
    best = {rule.id: each.name for rule in advice.rules if (each := advice.best_for(rule))}
    assert (best["R7"], best["R10"]) == ("tree_easgd", "slowmo") and "R11" not in best


def test_servers_with_shards_are_what_is_left_where_the_optimizer_doesnt_fit(predicting: Predicting) -> None:
    """The long intervals of R5 are all vetoed, so that R7 is the first with something that is allowed."""
    predicting({"ssp": 0.5})
    advice = advise(plan(25e6, "0.2s", 16, "1gbit", Needs(memory_bytes=300e6)), what_ifs=False)
    assert (
        advice.rule.id == "R7" and advice.best is not None and advice.best.call == "ssp(bound=3, servers=16)"
    )


def test_a_model_that_doesnt_fit_gets_a_technique_that_fast_doesnt_have(predicting: Predicting) -> None:
    predicting({})
    advice = advise(plan(needs=Needs(memory_bytes=100e6)))
    assert advice.best is None and advice.technique.name == "MP" and not advice.technique.offered
    assert {each.id for each in advice.vetoed} == {"V1"} and advice.what_ifs == ()
    assert json.loads(json.dumps(advice.to_json(), allow_nan=False))["best"] is None


def test_needs_that_leave_nothing_are_a_contradiction(
    predicting: Predicting, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting({})
    monkeypatch.setattr(advisor, "calls_of", lambda *_: [("allreduce", "allreduce"), ("gosgd", "gosgd")])
    with pytest.raises(UsageError, match=r"meets all these needs at once \(V2: .*; V5: .*\)"):
        advise(plan(needs=Needs(iid=False, memory_bytes=300e6)))


def test_what_cant_be_predicted_is_said(predicting: Predicting) -> None:
    predicting({"gosgd": -1})
    advice = advise(plan(), what_ifs=False)
    assert [reason for _, reason in advice.refused] == ["nothing is known of it"]
    assert "gosgd" not in names(advice)


def test_what_was_never_heard_isnt_believed(predicting: Predicting, monkeypatch: pytest.MonkeyPatch) -> None:
    predicting({})

    def predict(strategy: Strategy, situation: Situation) -> Prediction:
        silent = repr(strategy).startswith("diloco")
        return predicted(0.1 if silent else 1.0, sent_bytes=0.0 if silent else 1e6)

    monkeypatch.setattr(advisor, "predict", predict)
    advice = advise(plan(), what_ifs=False)
    assert [call for call, _ in advice.refused] == ["diloco(interval=32)"] and "diloco" not in names(advice)


def test_plain_allreduce_is_the_measure_also_where_it_isnt_allowed(predicting: Predicting) -> None:
    predicting({"allreduce": 0.5, "ssp": 0.25, "tensorflow": 2.0})
    advice = advise(plan(needs=Needs(hostile=2)), what_ifs=False)
    assert advice.baseline.call == "allreduce"
    assert {each.name: each.time for each in advice.ranked} == {
        "ssp": 0.5,
        "allreduce": 1.0,
        "tensorflow": 4.0,
    }


# What if


def test_what_would_change(predicting: Predicting) -> None:
    predicting({"allreduce": 0.5})
    advice = advise(plan(25e6, "0.2s", 8, "10gbit"))
    slower, faster, more = advice.what_ifs
    assert (slower.words, faster.words, more.words) == (
        "the network 10 times slower", "the network 10 times faster", "32 workers",
    )  # fmt: skip
    assert (slower.rule.id, faster.rule.id, more.rule.id) == ("R5", "R1", "R4")
    assert slower.facts.rho == pytest.approx(10 * advice.rho, rel=0.1)
    assert all(each.best.name == "allreduce" and each.before == 1.0 for each in advice.what_ifs)


def test_a_what_if_compares_with_the_plan(predicting: Predicting, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(strategy: Strategy, situation: Situation) -> Prediction:
        local = repr(strategy).startswith("local_sgd")
        slow = situation.rate_bytes_per_s < 1e9
        return predicted(1.0 if local else 5.0 if slow else 0.5)

    predicting({})
    monkeypatch.setattr(advisor, "predict", predict)
    advice = advise(plan())
    assert advice.best is not None and advice.best.name != "local_sgd"
    (slower, *_) = advice.what_ifs
    assert slower.best.name == "local_sgd" and slower.before == pytest.approx(5.0)


# With real predictions


def advised(monkeypatch: pytest.MonkeyPatch, situation: Situation, *names: str) -> Advice:
    """Of these presets only, as predictions take their time."""
    monkeypatch.setattr(
        advisor, "calls_of", lambda *given: [call for call in calls_of(*given) if call[0] in names]
    )
    return advise(situation, what_ifs=False)


@pytest.fixture(scope="module")
def slow_links() -> Advice:
    """ResNet-50 over 1 Gbit/s."""
    with pytest.MonkeyPatch.context() as patch:
        return advised(patch, plan(25.6e6, "0.2s", 16, "1gbit"), "allreduce", "local_sgd", "dpsgd")


def test_slow_links_ask_for_long_intervals(slow_links: Advice) -> None:
    assert slow_links.rule.id == "R5" and slow_links.best is not None and slow_links.agrees
    assert slow_links.best.call == "local_sgd(tau=64)" and slow_links.best.time < 0.3
    allreduce = slow_links.baseline
    assert allreduce.prediction.step_s == pytest.approx(0.2 + 2 * 15 / 16 * 102.4e6 / 125e6, rel=0.02)
    assert allreduce.prediction.computing == pytest.approx(0.2 / allreduce.prediction.step_s, rel=0.02)
    assert allreduce.prediction.sent_bytes == pytest.approx(2 * 15 / 16 * 102.4e6, rel=0.01)


def test_every_candidate_says_why_it_lost(slow_links: Advice) -> None:
    first, *rest = slow_links.ranked
    assert first.why == "first choice" and all(each.why for each in rest)
    (plain,) = [each.why for each in rest if each.call == "allreduce"]
    assert "x the step: " in plain and plain.endswith("x as much sent")


def test_an_advice_can_be_written_down(slow_links: Advice) -> None:
    data = json.loads(json.dumps(slow_links.to_json(), allow_nan=False))
    assert data["schema"] == 1 and data["kind"] == "plan" and data["best"] == slow_links.ranked[0].call
    assert [row["call"] for row in data["ranked"]] == [each.call for each in slow_links.ranked]
    row = data["ranked"][0]
    assert row["time"] == pytest.approx(
        row["prediction"]["step_s"] * row["samples"] / data["baseline"]["prediction"]["step_s"]
    )


def test_a_small_model_on_a_fast_network_stays_synchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    """GoogLeNet over 10 Gbit/s."""
    situation = plan(6.8e6, "0.25s", 16, "10gbit")
    advice = advised(monkeypatch, situation, "allreduce", "pytorch", "local_sgd", "dpsgd")
    assert advice.rule.id == "R1" and advice.agrees and advice.technique.name == "DP+central+sync"


def test_a_large_model_on_infiniband_is_overlapped_and_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """VGG-A, on fewer workers than in the example: the mean takes 114 ms, most of which hides behind backward."""
    situation = plan(132.9e6, "0.2s", 4, "infiniband")
    advice = advised(monkeypatch, situation, "allreduce", "pytorch")
    assert advice.rule.id == "R4" and advice.agrees
    packed, overlapped, plain = (
        next(each for each in advice.ranked if each.call == call)
        for call in ("pytorch(codec=ef_sign())", "pytorch", "allreduce")
    )
    assert packed.prediction.step_s < overlapped.prediction.step_s < 0.8 * plain.prediction.step_s
    assert packed.prediction.sent_bytes == pytest.approx(plain.prediction.sent_bytes / 32, rel=0.01)


@pytest.mark.parametrize(
    ("parameters", "step", "network", "rule", "best"),
    [
        (25.6e6, "0.2s", "1gbit", "R5", "pytorch(codec=ef_sign())"),
        (6.8e6, "0.25s", "10gbit", "R1", "pytorch"),
        (132.9e6, "0.2s", "infiniband", "R4", "pytorch"),
    ],
    ids=["ResNet-50", "GoogLeNet", "VGG-A"],
)
def test_the_examples_with_everything_that_is_compared(
    parameters: float, step: str, network: str, rule: str, best: str
) -> None:
    """On 16 workers: slow links, synchronous training, overlap and compression."""
    advice = advise(plan(parameters, step, 16, network), what_ifs=False)
    assert advice.rule.id == rule and advice.agrees and advice.best is not None and advice.best.call == best
    calls = [each.call for each in advice.ranked]
    assert len(calls) > 10
    if rule == "R5":
        assert {"local_sgd(tau=64)", "diloco(interval=64)"} <= set(calls[:8])
    if rule == "R4":
        assert calls[1] == "pytorch(codec=ef_sign())"


@pytest.mark.parametrize(("call", "asked"), [("pytorch", False), ("pytorch(codec=ef_sign())", True)])
def test_slow_links_ask_for_compression_not_for_overlap_alone(call: str, asked: bool) -> None:
    situation = plan(25.6e6, "0.2s", 16, "1gbit")
    (rule, *_) = matches(situation, facts_of(situation))
    assert rule.id == "R5" and rule.asks_for("pytorch", strategy_from(call)) is asked


def test_samples_of_the_baseline_are_one() -> None:
    option = option_of("allreduce", "allreduce")
    assert samples_factor(option.strategy, predicted(1.0), 8, 1_000_000) == 1.0
