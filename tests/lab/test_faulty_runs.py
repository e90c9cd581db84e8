"""Comparisons in which things go wrong: ticks and models belong to those who are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fast.cli.simulate import simulate_command
from fast.core import Task
from fast.errors import UsageError
from fast.lab import Budget, Plan, Run, Simulated, load_task, run_plan, simulate_task
from fast.lab.data import simulated_batches
from fast.lab.report import write_report
from fast.loop.loading import strategy_from
from fast.sim import Compute, parse_network
from fast.sim.faults import parse_scenario

WORKERS, STEP_S = 4, 0.02


class Noted(type(load_task("quadratic"))):  # type: ignore[misc]
    """The quadratic task; remembers which samples were looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def batch(self, indices: Any) -> Any:
        self.seen.append(tuple(int(index) for index in indices))
        return super().batch(indices)


def train(
    strategy: str,
    text: str,
    *,
    task: Task | None = None,
    epochs: float = 1.0,
    ticks: int = 10,
    **options: Any,
) -> tuple[Run, Budget]:
    task = task or load_task("quadratic")
    budget = Budget.of(task, WORKERS, epochs, ticks=ticks, **options)
    made, scenario = strategy_from(strategy), parse_scenario(text)
    scenario.check(made, WORKERS, made.servers(WORKERS))
    run = simulate_task(
        task,
        made,
        workers=WORKERS,
        budget=budget,
        network=parse_network("1gbit"),
        compute=Compute(STEP_S),
        scenario=scenario,
    )
    return run, budget


def steps_of(run: Run) -> list[int]:
    return [report.steps for report in run.workers]


EVERYBODY = ["allreduce", "ssp(bound=2)", "dpsgd", "gossip(p=0.3)"]


@pytest.mark.parametrize("strategy", EVERYBODY)
@pytest.mark.parametrize(
    "text",
    [
        "worker 3 dies at 250ms",
        "worker 0 dies at 250ms; deaths are noticed after 20ms",
        "worker 2 stops at step 10",
        "worker 1 freezes at 100ms for 300ms",
    ],
)
def test_every_tick_is_there_and_belongs_to_those_who_are_in(strategy: str, text: str) -> None:
    run, budget = train(strategy, text)
    assert len(run.ticks) == budget.ticks
    assert [tick.at_s for tick in run.ticks] == sorted(tick.at_s for tick in run.ticks)
    assert run.ticks[-1].at_s <= run.duration_ns / 1e9
    there = WORKERS - ("dies" in text or "stops" in text)
    assert len(run.ticks[-1].replicas) == there and len(run.ticks[1].replicas) == WORKERS
    assert len(run.weights) == WORKERS - ("dies" in text)
    assert all(value.isfinite().all() for value in run.final.values())


@pytest.mark.parametrize("strategy", ["gossip(p=0.3)", "torus", "ssp(bound=2)"])
def test_without_lock_step_the_others_do_the_work_of_the_dead(strategy: str) -> None:
    run, budget = train(strategy, "worker 3 dies at 150ms; deaths are noticed after 40ms")
    calm, _ = train(strategy, "")
    assert steps_of(run)[3] == 7 and min(steps_of(run)[:3]) > max(steps_of(calm))
    assert sum(report.samples for report in run.workers) >= budget.samples
    assert run.ticks[-1].samples >= budget.samples


def test_in_lock_step_everybody_who_is_in_takes_all_steps() -> None:
    run, budget = train("allreduce", "worker 3 dies at 150ms; worker 2 stops at step 5")
    assert steps_of(run) == [budget.steps, budget.steps, 5, 7]


def descended(budget: Budget, members: Any, lr: float = 0.1) -> torch.Tensor:
    """The quadratic task by allreduce, by hand: `members(step)` are those who take part in a step."""
    task = load_task("quadratic")
    batches = [simulated_batches(task, None, WORKERS, worker, 0) for worker in range(WORKERS)]
    model = task.model()
    w = next(iter(model.parameters())).detach().clone()
    for step in range(budget.steps):
        own = [next(each) for each in batches]
        total, gradient = 0, torch.zeros_like(w)
        for worker in members(step):
            indices, count = own[worker]
            x, y = task.batch(list(indices))
            gradient += count * ((x @ w.T).squeeze(1) - y) @ x / len(indices)
            total += count
        w = w - lr * gradient / total
    return w.reshape(-1)


def test_a_death_in_allreduce_gives_the_model_of_the_others() -> None:
    run, budget = train("allreduce", "worker 3 dies at 150ms")
    expected = descended(budget, lambda step: range(WORKERS if step < 7 else 3))
    assert torch.allclose(run.final["weight"].reshape(-1), expected, atol=1e-5)
    assert run.consensus_distance == 0


def test_who_joins_in_lock_step_takes_the_samples_of_the_steps_to_which_the_others_have_come() -> None:
    """Admitted while the others are in their eighth step (number 7), it takes part from step 8 on; the
    joint step's samples are those that they would have been with everybody there."""
    task = Noted()
    run, budget = train("allreduce", "worker 3 joins at 150ms", task=task)
    assert steps_of(run) == [budget.steps] * 3 + [budget.steps - 8]
    expected = descended(budget, lambda step: range(3 if step < 8 else WORKERS))
    assert torch.allclose(run.final["weight"].reshape(-1), expected, atol=1e-5)
    own = simulated_batches(task, None, WORKERS, 3, 0)
    mine = [tuple(next(own)[0]) for _ in range(budget.steps)]
    assert [indices in task.seen for indices in mine] == [False] * 8 + [True] * (budget.steps - 8)


def test_who_comes_late_is_measured_from_its_first_step() -> None:
    run, _ = train("gossip(p=0.3)", "worker 3 joins at 150ms")
    late = run.workers[3]
    assert 0.15 <= late.started_ns / 1e9 < 0.16
    assert late.computing_share > 0.95
    assert [report.started_ns for report in run.workers[:3]] == [0, 0, 0]


def test_a_worker_that_returns_has_part_in_later_ticks_only() -> None:
    text = "worker 3 dies at 50ms; deaths are noticed after 20ms; worker 3 returns at 410ms"
    run, _ = train("gossip(p=0.3)", text, ticks=5, epochs=2)
    assert [len(tick.replicas) for tick in run.ticks] == [3, 4, 4, 4, 4]
    assert len(run.weights) == WORKERS and run.workers[3].steps > 2


def test_with_the_clock_the_first_who_is_in_names_the_ticks() -> None:
    run, budget = train("allreduce", "worker 0 dies at 150ms; worker 3 joins at 100ms", seconds=2.0)
    assert len(run.ticks) == budget.ticks
    assert 2.0 <= run.duration_ns / 1e9 < 3.3
    assert steps_of(run)[1] == steps_of(run)[2] > 20


def test_who_never_comes_has_no_part_in_anything() -> None:
    run, budget = train("gossip(p=0.3)", "worker 3 joins at 1000s")
    assert steps_of(run)[3] == 0 and len(run.weights) == 3
    assert len(run.ticks) == budget.ticks
    mean = sum(run.weights) / 3  # type: ignore[operator]
    assert torch.allclose(run.final["weight"].reshape(-1), mean, atol=1e-6)


def test_the_dead_have_no_part_in_the_consolidated_model() -> None:
    run, _ = train("local_sgd(tau=1000)", "worker 1 dies at 50ms")
    assert steps_of(run)[1] == 2 and len(run.weights) == 3
    mean = sum(run.weights) / 3  # type: ignore[operator]
    assert torch.allclose(run.final["weight"].reshape(-1), mean, atol=1e-6)


# The whole way


BAD_DAY = (
    "worker 3 dies at 150ms; letters take up to 5ms longer; worker 2 joins at 100ms; 1% of letters are lost"
)


def test_a_comparison_keeps_its_scenario_and_writes_its_report(tmp_path: Path) -> None:
    world = Simulated(scenario=BAD_DAY)
    plan = Plan.of("quadratic", "allreduce,gossip", WORKERS, epochs=2, world=world)
    data = run_plan(plan).to_json()
    assert data["settings"]["world"]["scenario"] == BAD_DAY
    assert data["facts"]["faults"] == BAD_DAY.split("; ")
    assert not any("error" in row for row in data["results"])
    assert len(data["results"][0]["participants"]) == WORKERS
    page = write_report(data, tmp_path).read_text()
    assert "Faults: worker 3 dies at 150ms" in page


def test_the_command_reads_sentences_or_a_file_and_runs_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faults.txt").write_text("# a bad day\nWorker 3 dies at 150ms.\n1% of letters are lost\n")
    asked: dict[str, Any] = {"workers": 4, "epochs": 0.5, "runs": str(tmp_path)}
    simulate_command("quadratic", "allreduce", scenario="faults.txt", name="one", **asked)
    assert "worker 3 dies at 150ms" in capsys.readouterr().out
    Path("faults.txt").unlink()
    simulate_command(again="one", name="two", runs=str(tmp_path))
    one, two = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two"))
    assert one["settings"] == two["settings"]
    assert one["settings"]["world"]["scenario"] == "worker 3 dies at 150ms; 1% of letters are lost"
    assert one["results"][0]["curve"] == two["results"][0]["curve"]


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        ("worker 3 dies after 2s", "Nearest is: worker 3 dies at 2s"),
        ("worker 9 dies at 2s", "there is no worker 9"),
        ("letters travel as datagrams", r"allreduce\(.*\) waits for letters"),
        ("nothing.txt", "neither a file nor a sentence"),
    ],
)
def test_wrong_scenarios_are_refused_before_anything_runs(
    scenario: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        simulate_command("quadratic", "gossip,allreduce", workers=4, scenario=scenario)
    assert not Path("runs").exists()
