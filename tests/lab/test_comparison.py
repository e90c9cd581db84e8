"""The protocol: same start, same data, same budget, tuned on validation data; nothing is lost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_plans import BROKEN, DIVERGING, OWN, TUNED

from fast.engine import LocalEngine
from fast.errors import UsageError
from fast.lab import Folder, Journal, Plan, Result, Simulated, Stage, compare, run_plan, worlds
from fast.lab.journal import CantWrite
from fast.lab.tuning import RATES
from fast.loop.loading import strategy_from
from running import Lent

KEYS = {
    "strategy", "asked", "label", "seed", "rate", "reached_target", "time_to_target_s", "samples_to_target",
    "epochs_to_target", "bytes_to_target", "final_score", "replica_scores", "steps", "samples", "bytes_sent_per_worker",
    "bytes_sent", "samples_per_s", "scaling_efficiency", "duration_s", "mean_staleness", "max_staleness", "staleness",
    "consensus_distance", "wait_fraction", "compute_fraction", "diverged", "pace_exceeded",
    "curve", "participants", "graph", "timeline", "policies",
}  # fmt: skip


def simulated(strategies: str, **options: Any) -> dict[str, Any]:
    world = options.pop("world", Simulated())
    return compare(OWN, strategies, options.pop("workers", 3), world=world, **options).to_json()


def without_time(data: dict[str, Any]) -> str:
    return json.dumps({**data, "timestamps": None}, allow_nan=False)


def test_the_simulator_gives_the_same_json_twice() -> None:
    asked = "allreduce,local_sgd(tau=2),ssp,dpsgd,torus,gossip(p=0.3)"
    world = Simulated("wan", straggler="3x@0.2")
    first, second = (simulated(asked, epochs=3, seeds=[0, 1], world=world) for _ in range(2))
    assert without_time(first) == without_time(second)
    assert len(first["results"]) == 12
    assert first["results"][0] != first["results"][6] | {"seed": 0}, "another seed gives another run"


def test_the_json_has_its_keys_and_canonical_calls() -> None:
    data = simulated("local_sgd,torus", epochs=1, target=0.9)
    rows = data["results"]
    assert {key: data[key] for key in ("schema", "task", "workers", "world", "target")} == {
        "schema": 1, "task": OWN, "workers": 3, "world": "sim", "target": 0.9,
    }  # fmt: skip
    assert [set(row) for row in rows] == [KEYS, KEYS]
    assert [row["strategy"] for row in rows] == [
        "local_sgd(tau=10, moments='keep', rule=mean)",
        "torus(rule=mean, send='auto', topology=torus(rows=None, columns=None), codec=None, bucket_mb=None)",
    ]
    assert [row["label"] for row in rows] == ["local_sgd", "torus"]
    assert {
        "settings",
        "facts",
        "machine",
        "versions",
        "commit",
        "timestamps",
        "tuning",
        "summary",
        "verdict",
    } < set(data)
    assert data["facts"]["train_samples"] == 110 and data["facts"]["budget_samples"] == 110
    assert {len(column) for column in rows[0]["curve"].values()} == {50}


def test_bytes_sent_are_those_of_the_formula() -> None:
    """Weights padded to 64 bytes: 6*12, 12, 12, 12, 12*3, 3 floats; 2 (P - 1) / P of them a mean."""
    (row,) = simulated("allreduce", epochs=2)["results"]
    padded = sum(-(-size // 16) * 16 for size in (72, 12, 12, 12, 36, 3)) * 4
    assert row["steps"] == 6 and row["samples"] == 220
    assert row["bytes_sent_per_worker"] == 6 * (2 * 2 * padded // 3)
    assert row["curve"]["bytes"][-1] == row["bytes_sent"] == 3 * row["bytes_sent_per_worker"]
    assert row["curve"]["samples"][-1] == 220 and row["curve"]["epochs"][-1] == 2


def test_a_straggler_holds_back_those_who_wait_and_leaves_its_steps_to_those_who_dont() -> None:
    world = Simulated(straggler="4x")
    together, apart = simulated("allreduce,gossip", epochs=8, world=world)["results"]
    assert together["wait_fraction"] == pytest.approx(2 / 3 * 3 / 4, abs=0.01)
    assert apart["wait_fraction"] == 0
    assert together["steps"] == 24 and together["samples"] == 880
    assert 880 <= apart["samples"] < 880 + 3 * 16


def test_efficiency_is_the_throughput_over_that_of_as_many_workers_alone() -> None:
    """Links that cost nothing: all but the short last steps of an epoch (110 of 3 * 48 samples) counts."""
    (row,) = simulated("allreduce", epochs=2, world=Simulated("1e15,0"))["results"]
    assert row["samples_per_s"] == pytest.approx(220 / (6 * 0.020), rel=1e-3)
    assert row["scaling_efficiency"] == pytest.approx(110 / 144, rel=1e-3)


def test_a_budget_of_time_ends_everybody_a_few_steps_after_it() -> None:
    """In lock-step two steps later, because all have to hear of it first."""
    for row in simulated("allreduce,dpsgd,ssp,gossip(p=0.3)", seconds=1.0, world=Simulated("loopback"))[
        "results"
    ]:
        assert 1.0 <= row["duration_s"] < 1.08
        assert row["steps"] == pytest.approx(50, abs=3)
        assert row["curve"]["at_s"][24] == pytest.approx(0.5, abs=0.07)


def test_unequal_splits_give_everybody_the_same_number_of_samples() -> None:
    data = simulated("allreduce,gossip(p=0.5)", epochs=4, split="sizes(0.7)")
    assert data["settings"]["split"] == "sizes(0.7)"
    rows = data["results"]
    assert [each["samples"] for each in rows[0]["participants"]] == [10 * 16] * 3
    assert rows[0]["final_score"] != simulated("allreduce", epochs=4)["results"][0]["final_score"]


# Tuning


def test_tuning_gives_everybody_the_same_trials_and_never_sees_the_test_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = tmp_path / "seal"
    monkeypatch.setenv("FAST_TEST_SEAL", str(seal))
    looks: list[tuple[Stage, bool]] = []

    class Watching:
        def begins(self, stage: Stage, name: str, steps: int) -> None: ...
        def event(self, message: dict[str, Any]) -> None: ...
        def skips(self, stage: Stage) -> None: ...
        def ends(self, stage: Stage, words: str) -> None:
            looks.append((stage, seal.exists()))

    plan = Plan.of(TUNED, "allreduce,local_sgd", 2, epochs=2, seeds=[0, 1], tune=7, world=Simulated())
    data = run_plan(plan, Watching()).to_json()
    assert [stage for stage, _ in looks] == ["tuning"] * 14 + ["run"] * 4
    assert not any(seen for stage, seen in looks if stage == "tuning"), "test data was looked at while tuning"
    assert seal.exists()
    for tuning in data["tuning"]:
        rates = [trial["rate"] for trial in tuning["trials"]]
        assert tuning["budget"] == 7 and tuple(rates[:6]) == RATES
    chosen = {t["asked"]: next(each for each in t["trials"] if each["chosen"]) for t in data["tuning"]}
    for row in data["results"]:
        best = chosen[row["asked"]]
        assert (row["strategy"], row["rate"]) == (best["strategy"], best["rate"])


def test_the_chosen_rate_is_what_is_trained_with() -> None:
    """Twice the rate of plain SGD moves the weights twice as far in the first step."""
    from fast.lab.simulated import simulate_task

    plan = Plan.of(OWN, "allreduce", 2, epochs=0.2, world=Simulated())
    world = Simulated()
    runs = [
        simulate_task(
            plan.task, plan.strategies[0], workers=2, budget=plan.budget, cluster=world.model(), rate=rate,
        )
        for rate in (0.0, 1.0, 2.0)
    ]  # fmt: skip
    still, once, twice = (run.weights[0].double() for run in runs)
    assert runs[0].workers[0].steps == 1
    assert float((twice - still).norm() / (once - still).norm()) == pytest.approx(2, rel=1e-4)


def test_without_validation_data_there_is_no_tuning() -> None:
    with pytest.raises(UsageError, match=r"no validation\(\).*--tune 0"):
        Plan.of(OWN, "allreduce", 2, tune=3)


# What goes wrong


def test_a_strategy_that_fails_leaves_the_others_alone() -> None:
    comparison = compare(OWN, f"{BROKEN},allreduce", 2, world=Simulated(), epochs=2)
    failed, fine = comparison.to_json()["results"]
    assert comparison.failed and failed["error"] == "ValueError: an idea that doesn't work"
    assert failed["reached_target"] is False and failed["final_score"] is None
    assert "error" not in fine and fine["final_score"] is not None


@pytest.mark.real
def test_a_strategy_that_fails_on_real_workers_leaves_the_others_alone(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "LocalEngine", lambda: Lent(engine))
    comparison = compare(OWN, f"{BROKEN},allreduce", 2, epochs=2)
    failed, fine = comparison.results
    assert failed.error is not None and "ValueError: an idea that doesn't work" in failed.error
    assert fine.error is None and fine.steps == 8 and comparison.world == "real"


def test_a_run_that_diverges_has_no_score_and_leaves_the_others_alone() -> None:
    diverged, fine = simulated(f"{DIVERGING},allreduce", epochs=1)["results"]
    assert diverged["diverged"] and diverged["final_score"] is None and diverged["reached_target"] is False
    assert diverged["consensus_distance"] is None and set(diverged["curve"]["score"]) == {None}
    assert fine["final_score"] is not None
    json.dumps(diverged, allow_nan=False)


def test_a_task_that_cant_score_ends_its_runs_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan.of(OWN, "allreduce,gossip", 2, epochs=1, world=Simulated())

    def score(*_: Any) -> float:
        raise ZeroDivisionError("no test data")

    monkeypatch.setattr(type(plan.task), "score", score)
    assert [row.error for row in run_plan(plan).results] == ["ZeroDivisionError: no test data"] * 2


def test_a_journal_that_cant_be_written_is_no_strategys_fault(tmp_path: Path) -> None:
    plan = Plan.of(OWN, "allreduce", 2, epochs=1, world=Simulated())

    class Full(Journal):
        def note(self, kind: str, **values: Any) -> None:
            raise CantWrite("no room")

    with pytest.raises(CantWrite):
        run_plan(plan, journal=Full())


def test_what_failed_is_tried_again_when_a_comparison_goes_on(tmp_path: Path) -> None:
    plan = Plan.of(OWN, "allreduce", 2, epochs=1, world=Simulated())
    failed = Result(strategy="allreduce()", seed=0, asked="allreduce()", label="allreduce", error="disk full")
    with Folder.create(tmp_path / "a") as folder:
        folder.finish("run", "run of allreduce() with seed 0", failed.to_json())
        (row,) = run_plan(plan, journal=folder).results
    assert row.error is None


def test_a_failed_trial_is_not_tried_again_once_a_run_has_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two seeds of one strategy might run with different settings."""
    monkeypatch.setenv("FAST_TEST_SEAL", str(tmp_path / "seal"))
    plan = Plan.of(TUNED, "allreduce", 2, epochs=1, seeds=[0, 1], tune=1, world=Simulated())
    call = strategy_from("allreduce").call
    failed = {"strategy": call, "rate": 1.0, "error": "disk full"}
    done = Result(strategy=call, seed=0, asked=call, label="allreduce").to_json()
    for runs, trials in ((0, 1), (1, 0)):
        counting = StoppingAfter(99)
        journal = Journal()
        journal.finish("trial", f"trial 0 of {call}", failed)
        if runs:
            journal.finish("run", f"run of {call} with seed 0", done)
        run_plan(plan, counting, journal)
        assert counting.begun == trials + 2 - runs


class Stopped(Exception):
    """As if the process were killed."""


class StoppingAfter:
    """A listener that ends the comparison after so many trainings, and counts them."""

    def __init__(self, trainings: int) -> None:
        self.left, self.begun, self.skipped = trainings, 0, 0

    def begins(self, stage: Stage, name: str, steps: int) -> None:
        if self.left == 0:
            raise Stopped
        self.begun += stage != "alone"

    def event(self, message: dict[str, Any]) -> None: ...

    def ends(self, stage: Stage, words: str) -> None:
        self.left -= stage != "alone"

    def skips(self, stage: Stage) -> None:
        self.skipped += 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plan, Path]]:
    """Two strategies of seven trials and two seeds each, never stopped; and the folder that it left."""
    path = tmp_path_factory.mktemp("comparison")
    options: dict[str, Any] = {"epochs": 1, "seeds": [0, 1], "tune": 7, "world": Simulated()}
    plan = Plan.of(TUNED, "allreduce,gossip(p=0.5)", 2, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAST_TEST_SEAL", str(path / "seal"))
        with Folder.create(path / "whole") as folder:
            run_plan(plan, journal=folder)
        yield plan, path / "whole"


@pytest.mark.parametrize("trainings", [0, 3, 13, 15])
def test_an_interrupted_comparison_goes_on_where_it_stopped(
    tmp_path: Path, whole: tuple[Plan, Path], trainings: int
) -> None:
    """The end is that of one that was never stopped."""
    plan, never_stopped = whole
    with Folder.create(tmp_path / "torn") as folder, pytest.raises(Stopped):
        run_plan(plan, StoppingAfter(trainings), folder)
    counting = StoppingAfter(99)
    with Folder.resume(tmp_path / "torn") as folder:
        torn = run_plan(plan, counting, folder).to_json()
    assert without_time(torn) == without_time(json.loads((never_stopped / "run.json").read_text()))
    assert (counting.skipped, counting.begun) == (trainings, 18 - trainings)
    assert json.loads((tmp_path / "torn" / "run.json").read_text()) == torn
    assert json.loads((tmp_path / "torn" / "trace.json").read_text()) == json.loads(
        (never_stopped / "trace.json").read_text()
    )


def test_run_json_stands_as_far_as_the_comparison_has_come(tmp_path: Path) -> None:
    plan = Plan.of(OWN, "allreduce,gossip", 2, epochs=1, world=Simulated())
    with Folder.create(tmp_path / "a") as folder, pytest.raises(Stopped):
        run_plan(plan, StoppingAfter(1), folder)
    data = json.loads((tmp_path / "a" / "run.json").read_text())
    assert [row["label"] for row in data["results"]] == ["allreduce"]
    assert data["timestamps"]["ended"] is None


# Checks


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "needs at least 1"),
        ({"target": 0.0}, "target 0"),
        ({"target": 1.5}, "target 1.5"),
        ({"target": math.nan}, "target nan"),
        ({"epochs": 0}, "0 epochs"),
        ({"seconds": -1.0}, "-1 seconds"),
        ({"seconds": 1.0, "epochs": 1.0}, "either epochs or seconds"),
        ({"seeds": []}, "without seeds"),
        ({"seeds": [1, 1]}, "there twice"),
        ({"tune": -1}, "--tune -1"),
        ({"ticks": 0}, "0 ticks"),
        ({"pace_s": 0.0}, "--pace 0"),
        ({"deadline_s": 0.0}, "--deadline 0"),
        ({"split": "direchlet(1)"}, "dirichlet"),
        ({"split": "sizes(0.001)", "workers": 9}, "worker"),
        (
            {"task": TUNED, "tune": 1, "split": "sizes(0.9)", "seeds": [7], "workers": 12},
            "no samples|empty|worker",
        ),
        ({"strategies": []}, "without strategies"),
        ({"strategies": "gossip,gossip(p=0.02)"}, "asked for twice"),
        ({"strategies": "gosip"}, "Did you mean gossip"),
        ({"strategies": "torus(topology=torus(rows=2))", "workers": 3}, "doesn't hold 3 workers"),
        ({"task": "digit"}, "Did you mean digits"),
        ({"world": Simulated("1gbti")}, "Did you mean 1gbit"),
    ],
)
def test_wrong_calls_are_refused_before_anything_starts(options: dict[str, Any], says: str) -> None:
    call: dict[str, Any] = {"task": OWN, "strategies": "allreduce", "workers": 2, **options}
    with pytest.raises(UsageError, match=says):
        Plan.of(**call)


def test_real_workers_need_strategies_that_have_a_call() -> None:
    from fast.strategies.averaging import AllReduce

    with pytest.raises(UsageError, match="Give it as text"):
        Plan.of(OWN, [AllReduce()], 2)
    (row,) = compare(OWN, [AllReduce()], 2, epochs=1, world=Simulated()).results
    assert row.error is None


def test_an_error_row_is_a_row() -> None:
    row = Result(strategy="x()", seed=0, error="no").to_json()
    assert set(row) == KEYS | {"error"}
