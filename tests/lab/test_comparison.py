"""The comparison's figures, each against an independent reckoning."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fast.errors import UsageError
from fast.lab import Plan, Real, Result, Run, Simulated, compare, run_plan
from fast.lab.measures import Report, ServerReport, Tick, live_state
from fast.lab.results import judge
from fast.sim import Compute, parse_network, parse_straggler

HERE = Path(__file__).parent
OWN = f"{HERE / 'problems.py'}:Dropout"
BROKEN, DIVERGING = f"{HERE / 'ideas.py'}:Broken", f"{HERE / 'ideas.py'}:Diverging"
KEYS = {
    "strategy", "seed", "reached_target", "time_to_target_s", "final_score", "steps", "samples",
    "bytes_sent_per_worker", "mean_staleness", "max_staleness", "consensus_distance", "wait_fraction",
}  # fmt: skip


def simulated(strategies: str, **options: Any) -> dict[str, Any]:
    world = options.pop("world", Simulated())
    return compare(OWN, strategies, options.pop("workers", 3), world=world, **options).to_json()


def test_the_simulator_gives_the_same_json_twice() -> None:
    asked = "allreduce,local_sgd(tau=2),ssp,dpsgd,torus,gossip(p=0.3)"
    world = Simulated(parse_network("wan"), Compute(straggler=parse_straggler("3x@0.2")))
    first, second = (simulated(asked, epochs=3, seeds=[0, 1], world=world) for _ in range(2))
    assert json.dumps(first, allow_nan=False) == json.dumps(second, allow_nan=False)
    assert len(first["results"]) == 12
    assert first["results"][0] != first["results"][6] | {"seed": 0}, "another seed gives another run"


def test_the_json_has_its_keys_and_canonical_calls() -> None:
    data = simulated("local_sgd,torus", epochs=1, target=0.9)
    rows = data.pop("results")
    assert data == {"schema": 1, "task": OWN, "workers": 3, "world": "sim", "target": 0.9}
    assert [set(row) for row in rows] == [KEYS, KEYS]
    assert [row["strategy"] for row in rows] == [
        "local_sgd(tau=10)",
        "torus(rule=mean, send='own', topology=torus(rows=None, columns=None))",
    ]


def test_bytes_sent_are_those_of_the_formula() -> None:
    """Weights padded to 64 bytes: 6*12, 12, 12, 12, 12*3, 3 floats; 2 (P - 1) / P of them a mean."""
    (row,) = simulated("allreduce", epochs=2)["results"]
    padded = sum(-(-size // 16) * 16 for size in (72, 12, 12, 12, 36, 3)) * 4
    assert row["steps"] == 6 and row["samples"] == 220
    assert row["bytes_sent_per_worker"] == 6 * (2 * 2 * padded // 3)


def test_a_straggler_holds_back_those_who_wait_and_leaves_its_steps_to_those_who_dont() -> None:
    world = Simulated(compute=Compute(0.02, parse_straggler("4x")))
    together, apart = simulated("allreduce,gossip", epochs=8, world=world)["results"]
    assert together["wait_fraction"] == pytest.approx(2 / 3 * 3 / 4, abs=0.01)
    assert apart["wait_fraction"] == 0
    assert together["steps"] == 24 and together["samples"] == 880
    assert 880 <= apart["samples"] < 880 + 3 * 16


def test_a_strategy_that_fails_leaves_the_others_alone() -> None:
    comparison = compare(OWN, f"{BROKEN},allreduce", 2, world=Simulated(), epochs=2)
    failed, fine = comparison.to_json()["results"]
    assert comparison.failed and failed["error"] == "ValueError: an idea that doesn't work"
    assert failed["reached_target"] is False and failed["final_score"] is None
    assert "error" not in fine and fine["final_score"] is not None


@pytest.mark.real
def test_a_strategy_that_fails_on_real_workers_leaves_the_others_alone() -> None:
    comparison = compare(OWN, f"{BROKEN},allreduce", 2, epochs=2)
    failed, fine = comparison.results
    assert failed.error is not None and "ValueError: an idea that doesn't work" in failed.error
    assert fine.error is None and fine.steps == 8 and comparison.world == "real"


def test_numbers_that_are_not_finite_become_null() -> None:
    (row,) = simulated(DIVERGING, epochs=1)["results"]
    assert row["consensus_distance"] is None and row["reached_target"] is False
    json.dumps(row, allow_nan=False)


# What a run was worth


def plan(**options: Any) -> Plan:
    return Plan.of(OWN, "allreduce", 2, **options)


def report(**figures: Any) -> Report:
    return Report(**{"started_ns": 0, "ended_ns": 100, "steps": 1, "samples": 1, "bytes_sent": 0, "waited_ns": 0,
                     "staleness": {}, **figures})  # fmt: skip


def always(label: int) -> dict[str, torch.Tensor]:
    """Values of a model that always answers this label."""
    state = {name: torch.zeros_like(value) for name, value in live_state(plan().task.model()).items()}
    state["1.running_var"].fill_(1.0)
    state["4.bias"][label] = 1.0
    return state


def test_time_to_target_is_that_of_the_first_tick_that_reaches_it() -> None:
    labels = plan().task.test()[1]
    shares = {label: float((labels == label).float().mean()) for label in range(3)}
    worst, best = min(shares, key=lambda k: shares[k]), max(shares, key=lambda k: shares[k])
    assert shares[worst] < shares[best]
    ticks = [
        Tick(at_s, always(label)) for at_s, label in ((1.0, worst), (2.5, best), (3.0, worst), (4.0, best))
    ]
    run = Run(ticks, always(worst), [torch.ones(3)] * 2, [report(), report()])
    asked = plan(target=(shares[worst] + shares[best]) / 2)
    result = judge(asked.task, asked.target, "allreduce()", 0, run)
    assert result.reached_target and result.time_to_target_s == 2.5
    assert result.final_score == pytest.approx(shares[worst])
    never = judge(asked.task, 1.0, "allreduce()", 0, run)
    assert not never.reached_target and never.time_to_target_s is None


def test_figures_of_the_workers_are_averaged_and_staleness_is_pooled() -> None:
    workers = [
        report(steps=10, samples=100, bytes_sent=40, waited_ns=25, staleness={0: 1, 2: 1}),
        report(steps=13, samples=130, bytes_sent=20, ended_ns=200, waited_ns=0),
    ]
    run = Run([], always(0), [torch.ones(3)] * 2, workers, [ServerReport({3: 2})])
    result = judge(plan().task, 0.5, "ssp(bound=3)", 0, run)
    assert (result.steps, result.samples, result.bytes_sent_per_worker) == (11.5, 230, 30)
    assert result.wait_fraction == pytest.approx((25 / 100 + 0 / 200) / 2)
    assert result.mean_staleness == pytest.approx((0 + 2 + 3 + 3) / 4) and result.max_staleness == 3


def test_the_distance_is_relative_to_the_mean() -> None:
    """Replicas (3, 4) and (5, 4): each is 1 away from their mean (4, 4), which is sqrt(32) long."""
    run = Run([], {}, [torch.tensor([3.0, 4.0]), torch.tensor([5.0, 4.0])], [])
    assert run.consensus_distance == pytest.approx(1 / math.sqrt(32))


# Checks


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "needs at least 1"),
        ({"target": 0.0}, "target 0"),
        ({"target": 1.5}, "target 1.5"),
        ({"target": math.nan}, "target nan"),
        ({"epochs": 0}, "0 epochs"),
        ({"seeds": []}, "without seeds"),
        ({"strategies": []}, "without strategies"),
        ({"strategies": "gosip"}, "Did you mean gossip"),
        ({"strategies": "torus(topology=torus(rows=2))", "workers": 3}, "doesn't hold 3 workers"),
        ({"task": "digit"}, "Did you mean digits"),
    ],
)
def test_wrong_calls_are_refused_before_anything_starts(options: dict[str, Any], says: str) -> None:
    call: dict[str, Any] = {"task": OWN, "strategies": "allreduce", "workers": 2, **options}
    with pytest.raises(UsageError, match=says):
        Plan.of(**call)


def test_real_workers_need_strategies_that_have_a_call() -> None:
    from fast.strategies.averaging import AllReduce

    with pytest.raises(UsageError, match="Give it as text"):
        run_plan(Plan.of(OWN, [AllReduce()], 2), Real())


def test_an_error_row_is_a_row() -> None:
    row = Result("x()", 0, error="no").to_json()
    assert set(row) == KEYS | {"error"}
