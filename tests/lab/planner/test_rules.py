"""The taxonomy as rules: the table, every rule and every veto, and the examples of the literature's numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fast.lab import Simulated
from fast.lab.planner.advisor import option_of
from fast.lab.planner.candidates import LIKE
from fast.lab.planner.facts import facts_of
from fast.lab.planner.rules import RULES, matches
from fast.lab.planner.situation import Needs, Situation
from fast.lab.planner.techniques import TECHNIQUES
from fast.lab.planner.vetoes import VETOES, veto_of
from fast.lab.sizes import Sizes
from fast.strategies.catalogue import catalogue

TABLE = """
technique           large  model  rate           overlap  tuning  resilience  reproducing
MP                  no     yes    higher         1        3       1           0
MP+pipeline         no     yes    lower          2        4       2           2
DP+central+sync     no     no     higher         1        1       1           1
DP+central+async    yes    no     lower          3        2       3           3
DP+decentral+sync   yes    no     likely_lower   1        2       2           1
DP+decentral+async  yes    no     lower          2        3       3           3
"""


def plan(
    parameters: float = 25e6, step: str = "0.2s", workers: int = 16, network: str = "10gbit",
    needs: Needs | None = None, **words: object,
) -> Situation:  # fmt: skip
    world = Simulated(network, step, **words)  # type: ignore[arg-type]
    return Situation.of(Sizes.of_parameters(parameters), workers, world, needs)


def rules_of(situation: Situation) -> list[str]:
    return [match.id for match in matches(situation, facts_of(situation))]


# The table


def test_the_table_is_the_taxonomys() -> None:
    _, *rows = [line.split() for line in TABLE.strip().splitlines()]
    assert list(TECHNIQUES) == [row[0] for row in rows]
    for name, large, model, rate, *marks in rows:
        row = TECHNIQUES[name].to_json()
        assert row["needs_large_balanced_data"] is (large == "yes")
        assert row["needs_balanced_model"] is (model == "yes")
        assert row["opt_lr_as_cluster_grows"] == rate.replace("_", " ")
        found = [row[key] for key in ("overlap_complexity", "hyperparam_complexity", "resilience")]
        assert [*found, row["reproducibility_difficulty"]] == list(map(int, marks))
        assert row["offered"] is (not name.startswith("MP"))


@pytest.mark.parametrize(
    ("call", "technique"),
    [
        ("allreduce", "DP+central+sync"),
        ("tensorflow(backups=1)", "DP+central+sync"),
        ("ssp(bound=0)", "DP+central+sync"),
        ("ssp(bound=3)", "DP+central+async"),
        ("dc_asgd", "DP+central+async"),
        ("local_sgd", "DP+decentral+sync"),
        ("easgd(synchronous=True)", "DP+decentral+sync"),
        ("easgd", "DP+decentral+async"),
        ("gosgd", "DP+decentral+async"),
    ],
)
def test_a_call_has_its_technique(call: str, technique: str) -> None:
    assert option_of(call.partition("(")[0], call).technique is TECHNIQUES[technique]


def test_only_presets_are_named() -> None:
    known = set(catalogue())
    named = {name for rule in RULES for name in rule.presets}
    assert named <= known, named - known
    assert set(LIKE) | set(LIKE.values()) <= known and not set(LIKE) & set(LIKE.values())


def test_the_page_says_which_stand_for_which() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/plan.md").read_text(encoding="utf-8")
    table = page.partition("| compared | stands for |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", line) for line in table.splitlines()]
    said = {name: stand for stand, *names in (row for row in rows if row) for name in names if name in LIKE}
    assert said == LIKE
    assert {name for row in rows for name in row} == set(catalogue())


def test_everything_has_a_source() -> None:
    assert all(each.source and (" 20" in each.source) for each in (*RULES, *VETOES))
    assert {rule.id for rule in RULES} == {f"R{number}" for number in range(1, 12)}
    assert {veto.id for veto in VETOES} == {"V1", "V2", "V3", "V4", "V5", "R8", "R9"}


# The examples


@pytest.mark.parametrize(
    ("parameters", "network", "step", "exchange_ms", "rule"),
    [
        (25.6e6, "1gbit", "0.2s", 1547.9, "R5"),
        (6.8e6, "10gbit", "0.25s", 44.0, "R1"),
        (132.9e6, "infiniband", "0.2s", 204.3, "R4"),
    ],
    ids=["ResNet-50", "GoogLeNet", "VGG-A"],
)
def test_the_examples(parameters: float, network: str, step: str, exchange_ms: float, rule: str) -> None:
    """Sixteen workers; the exchange in milliseconds is that of the papers' table, a server shard in every worker."""
    situation = plan(parameters, step, 16, network)
    facts = facts_of(situation)
    assert facts.pattern == "sharded server"
    assert facts.moving_s * 1e3 == pytest.approx(exchange_ms, rel=1e-3)
    assert facts.rho == pytest.approx(exchange_ms / 1e3 / situation.step_s, rel=0.01)
    assert rules_of(situation)[0] == rule


# Every rule


FAST, SLOW = {"parameters": 1e6, "network": "10gbit"}, {"parameters": 25e6, "network": "1gbit"}
MEDIUM = {"parameters": 25e6, "network": "10gbit"}


@pytest.mark.parametrize(
    ("rule", "situation"),
    [
        ("R1", plan(**FAST)),
        ("R2", plan(**FAST, straggler="5x@0.1")),
        ("R2", plan(**FAST, spread=0.5)),
        ("R3", plan(**FAST, straggler="4x")),
        ("R3", plan(**FAST, speeds="0-11:1,12-15:0.5", spread=0.5)),
        ("R4", plan(**MEDIUM)),
        ("R5", plan(**SLOW)),
        ("R6", plan(1e4, "10ms", 16, "wan")),
        ("R8", plan(**SLOW, needs=Needs(unreliable=True))),
        ("R9", plan(**SLOW, needs=Needs(hostile=2))),
        ("R9", plan(**SLOW, needs=Needs(hostile=2, unreliable=True))),
    ],
)
def test_the_rule_that_decides(rule: str, situation: Situation) -> None:
    assert rules_of(situation)[0] == rule


def test_a_latency_that_nobody_notices_decides_nothing() -> None:
    assert rules_of(plan(1e4, "10s", 16, "wan"))[0] == "R1"


@pytest.mark.parametrize("rho", [0.2, 2.0])
def test_rules_change_at_their_thresholds(rho: float) -> None:
    """The step is chosen so that the exchange is just below and just above so many times as long."""
    below, above = (
        plan(**SLOW, step=f"{facts_of(plan(**SLOW)).exchange_s / (rho * factor)}s")
        for factor in (0.999, 1.001)
    )
    order = ["R1", "R4", "R5"]
    assert order.index(rules_of(above)[0]) == order.index(rules_of(below)[0]) + 1


@pytest.mark.parametrize(("factor", "rule"), [(1.29, "R1"), (1.31, "R3")])
def test_how_late_a_worker_may_be(factor: float, rule: str) -> None:
    assert rules_of(plan(**FAST, straggler=f"{factor}x"))[0] == rule


def test_a_master_is_the_bottleneck_when_all_models_take_longer_than_a_step() -> None:
    """16 x 40 ms over 1 Gbit/s are 0.64 s."""
    assert "R7" in rules_of(plan(1.25e6, "0.6s", 16, "1gbit"))
    assert "R7" not in rules_of(plan(1.25e6, "0.7s", 16, "1gbit"))


def test_many_workers_are_warned_of_gossip() -> None:
    assert "R10" in rules_of(plan(workers=33)) and "R10" not in rules_of(plan(workers=32))


@pytest.mark.parametrize(
    ("workers", "crossover"), [(4, 4.0), (8, 2.4), (16, 4 / (4 - 15 / 8)), (64, 6 / (6 - 63 / 32))]
)
def test_the_way_of_a_mean_changes_where_the_closed_forms_cross(workers: int, crossover: float) -> None:
    """log2 P / (log2 P - 2 (P - 1) / P) times the latency is what the model has to take over a link."""
    for times, algorithm in ((0.98, "doubling"), (1.02, "rabenseifner")):
        latency_s = 0.032 / (times * crossover)
        facts = facts_of(plan(1e6, "0.2s", workers, f"1gbit,{latency_s}s"))
        assert facts.algorithm == algorithm
        assert facts.to_json()["algorithm"] == algorithm and facts.algorithm_s > facts.transmit_s


@pytest.mark.parametrize("situation", [plan(**FAST), plan(**SLOW), plan(needs=Needs(hostile=1))])
def test_accuracy_is_always_what_counts(situation: Situation) -> None:
    assert rules_of(situation)[-1] == "R11"


def test_sentences_carry_the_numbers() -> None:
    (match, *_) = matches(slow := plan(25.6e6, "0.2s", 16, "1gbit"), facts_of(slow))
    assert "1.55 s" in match.sentence and "7.7 times the 200 ms" in match.sentence
    assert json.loads(json.dumps(match.to_json()))["id"] == "R5"
    late = plan(**FAST, straggler="4x")
    assert "always 4 times slower" in matches(late, facts_of(late))[0].sentence


# Every veto


def forbidden(calls: str, **needs: object) -> dict[str, str | None]:
    """Which veto each call meets: for 25 million parameters, 400 MB with gradient and Adam's state."""
    situation = plan(needs=Needs(**needs))  # type: ignore[arg-type]
    options = {call: option_of(call.partition("(")[0], call) for call in calls.split()}
    found = {call: veto_of(option, situation) for call, option in options.items()}
    return {call: veto and veto.id for call, veto in found.items()}


def test_a_model_that_doesnt_fit_leaves_nothing() -> None:
    found = forbidden("allreduce local_sgd ssp gosgd bigdl", memory_bytes=100e6)
    assert set(found.values()) == {"V1"}


@pytest.mark.parametrize("needs", [{"iid": False}, {"small_data": True}])
def test_unlike_shards_leave_one_model_for_all_in_step(needs: dict[str, object]) -> None:
    found = forbidden("allreduce bigdl ssp(bound=0) tensorflow ssp dc_asgd local_sgd gosgd dpsgd", **needs)
    assert [call for call, veto in found.items() if veto is None] == [
        "allreduce", "bigdl", "ssp(bound=0)", "tensorflow",
    ]  # fmt: skip
    assert {veto for veto in found.values() if veto} == {"V2"}


def test_reproducible_is_what_waits_for_all_that_it_hears() -> None:
    found = forbidden("allreduce local_sgd dpsgd tensorflow ssp easgd gosgd ad_psgd", reproducible=True)
    assert [call for call, veto in found.items() if veto is None] == ["allreduce", "local_sgd", "dpsgd"]
    assert {veto for veto in found.values() if veto} == {"V3"}


@pytest.mark.parametrize(
    ("technique", "veto"), [("MP", None), ("DP+decentral+sync", None), ("MP+pipeline", "V3")]
)
def test_reproducible_is_what_the_table_calls_easy(technique: str, veto: str | None) -> None:
    option = replace(option_of("allreduce", "allreduce"), technique=TECHNIQUES[technique])
    found = veto_of(option, plan(needs=Needs(reproducible=True)))
    assert (found and found.id) == veto


def test_a_low_budget_for_tuning_leaves_out_what_has_most_to_tune() -> None:
    found = forbidden("allreduce local_sgd ssp gosgd easgd", tuning="low")
    assert found == {"allreduce": None, "local_sgd": None, "ssp": None, "gosgd": "V4", "easgd": "V4"}


def test_without_room_for_the_optimizer_it_runs_on_servers() -> None:
    found = forbidden("allreduce local_sgd easgd bigdl ssp", memory_bytes=300e6)
    assert found == {"allreduce": "V5", "local_sgd": "V5", "easgd": "V5", "bigdl": None, "ssp": None}


def test_hostile_workers_need_a_robust_rule() -> None:
    found = forbidden(
        "allreduce allreduce(rule=multi_krum(2)) ssp(bound=0,rule=median) local_sgd gosgd", hostile=2
    )
    assert [call for call, veto in found.items() if veto is None] == [
        "allreduce(rule=multi_krum(2))", "ssp(bound=0,rule=median)",
    ]  # fmt: skip
    assert {veto for veto in found.values() if veto} == {"R9"}


def test_on_unreliable_machines_nobody_waits_for_all() -> None:
    found = forbidden(
        "allreduce local_sgd pytorch(codec=ef_sign()) gosgd sgp noloco ssp dc_asgd", unreliable=True
    )
    assert [call for call, veto in found.items() if veto == "R8"] == [
        "allreduce", "local_sgd", "pytorch(codec=ef_sign())",
    ]  # fmt: skip
    together = forbidden("allreduce pytorch(codec=ef_sign())", unreliable=True, iid=False)
    assert together == {"allreduce": None, "pytorch(codec=ef_sign())": "R8"}
