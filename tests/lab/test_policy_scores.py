"""What each policy's model is worth: in the lab's figures, in both worlds, and in the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from lab_plans import OWN
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import fast
from fast.lab import Budget, Plan, Run, Simulated, load_task, run_plan, simulate_task, train_task
from fast.lab.judging import Judge
from fast.lab.measures import State, Tick, live_state
from fast.lab.policies import TICK_DECAY, best_of, moving_state, policy_scores, reestimated
from fast.lab.report import write_report
from fast.lab.results import Result, summary_of
from fast.loop.loading import strategy_from


class Number(fast.Task):
    """A model that is one number; that is its score on test data, and the opposite is its score on validation data."""

    name = "number"
    target = 0.5

    def model(self) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: nn.Module, batch: float) -> Tensor:
        return (model(torch.ones(1, 1)) - batch).square().mean()

    def train(self) -> Sequence[float]:
        return [0.0]

    def batch(self, indices: Sequence[int]) -> float:
        return 0.0

    def test(self) -> float:
        return 1.0

    def validation(self) -> float:
        return -1.0

    def score(self, model: nn.Module, batch: float) -> float:
        return batch * float(model(torch.ones(1, 1)))


def number(value: float) -> State:
    return {"weight": torch.tensor([[value]])}


def run(final: float, replicas: dict[int, float], ticks: Sequence[float] = ()) -> Run:
    return Run(
        [Tick(float(at), number(value)) for at, value in enumerate(ticks)],
        number(final),
        [torch.zeros(1)],
        [],
        replicas={worker: number(value) for worker, value in replicas.items()},
    )


def scored(what: Run, validation: bool = True) -> dict[str, float | None]:
    task = Number()
    test = Judge(task, task.test())
    return policy_scores(task, what, test, test.on_validation() if validation else None)


def test_each_policy_has_the_score_of_its_model():
    scores = scored(run(0.5, {0: 0.75, 1: 0.25, 2: 0.375}, ticks=[0.0, 1.0, 0.5]))
    d = TICK_DECAY
    ema = (d * d * 0.0 + d * 1.0 + 0.5) / (d * d + d + 1)
    assert scores == {"average": 0.5, "best": 0.25, "first": 0.75, "ema": pytest.approx(ema)}


def test_the_best_is_chosen_on_validation_data_and_of_equal_ones_the_first():
    assert best_of(run(0.0, {3: 0.5, 1: 0.5, 2: 0.75}), lambda state: -float(state["weight"])) is not None
    chosen = run(0.0, {1: 0.5, 2: 0.5, 3: 0.75})
    assert best_of(chosen, lambda state: -float(state["weight"])) is chosen.replicas[1]
    assert best_of(chosen, lambda state: None) is None
    assert best_of(chosen, None) is None


def test_what_isnt_there_has_no_score():
    scores = scored(run(0.5, {1: 0.25}, ticks=[]), validation=False)
    assert scores == {"average": 0.5, "best": None, "first": None, "ema": None}
    broken = run(float("nan"), {0: float("nan"), 1: 0.25}, ticks=[float("nan"), 1.0])
    assert scored(broken) == {"average": None, "best": 0.25, "first": None, "ema": None}


def test_a_moving_average_keeps_counters_and_types():
    states = [{"w": torch.tensor([float(n)]), "n": torch.tensor(n)} for n in (1, 2, 7)]
    average = moving_state(states)
    assert average is not None and int(average["n"]) == 7 and average["w"].dtype == torch.float32
    d = TICK_DECAY
    assert float(average["w"]) == pytest.approx((d * d * 1 + d * 2 + 7) / (d * d + d + 1))


def test_statistics_are_those_of_training_batches_run_through_the_model():
    """As torch's own update_bn finds them; this task's dropout lies behind its BatchNorm. 110 samples in batches
    of 16 are six, each from all over the data."""
    task = load_task(OWN)
    torch.manual_seed(1)
    state = live_state(task.model())
    found = reestimated(task, state)
    reference = task.model()
    reference.load_state_dict(state)
    batches = [task.batch(range(first, 96, 6))[0] for first in range(6)]
    update_bn(batches, reference)
    expected = reference.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name].double(), value.double(), atol=1e-6), name
    assert not torch.allclose(found["1.running_mean"], state["1.running_mean"], atol=1e-3)


# In comparisons


def test_a_comparison_has_them_in_its_rows_and_its_summary():
    plan = Plan.of(
        OWN, "allreduce,local_sgd(tau=1000)", 3, epochs=2, seeds=[1], target=0.5, world=Simulated()
    )
    comparison = run_plan(plan)
    agreeing, apart = comparison.results
    for row in (agreeing, apart):
        assert set(row.policies) == {"average", "best", "first", "ema", "reestimated"}
        assert row.policies["average"] == row.final_score
        assert row.policies["best"] is None, "this task has no validation data"
    assert apart.policies["first"] != apart.policies["average"]
    summary = comparison.to_json()["summary"]
    assert [entry["policies"]["first"]["mean"] for entry in summary] == [
        agreeing.policies["first"],
        apart.policies["first"],
    ]
    assert summary[0]["policies"]["best"] is None


@pytest.mark.real
def test_both_worlds_come_to_the_same_scores(engine):
    task = load_task(OWN)
    budget = Budget.of(task, 3, 2)
    real = train_task(OWN, "dpsgd", workers=3, budget=budget, seed=3, engine=engine)
    simulated = simulate_task(task, strategy_from("dpsgd"), workers=3, budget=budget, seed=3)
    test = Judge(task, task.test())
    scores = [policy_scores(task, run, test, test) for run in (real, simulated)]
    assert scores[0] == scores[1]
    assert None not in scores[0].values() and len(scores[0]) == 5
    for worker, state in real.replicas.items():
        assert all(torch.equal(value, simulated.replicas[worker][name]) for name, value in state.items())


# In the report


def row(label: str, seed: int, policies: dict[str, float | None]) -> Result:
    return Result(strategy=label, asked=label, label=label, seed=seed, final_score=0.5, policies=policies)


def page_of(rows: list[Result], folder: Path) -> str:
    data = {
        "schema": 1, "task": "digits", "workers": 4, "world": "sim", "target": 0.9,
        "settings": {"seeds": [0, 1]}, "results": [each.to_json() for each in rows], "summary": summary_of(rows),
    }  # fmt: skip
    return write_report(data, folder).read_text()


def test_the_report_has_a_table_of_strategies_by_policies(tmp_path):
    rows = [
        row("dpsgd", 0, {"average": 0.9, "best": 0.8, "first": 0.75, "ema": None}),
        row("dpsgd", 1, {"average": 0.8, "best": 0.8, "first": 0.25, "ema": None}),
        row("ssp", 0, {"average": 0.7, "best": None, "first": 0.6, "ema": None}),
    ]
    table = page_of(rows, tmp_path).partition('id="policies"')[2].partition("</table>")[0]
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", table)
    assert heads == ["strategy", "mean of all", "best replica", "worker 0"], "nobody has a moving average"
    cells = re.findall(r"<td[^>]*>([^<]*)(?:<span class=\"detail\">([^<]*)</span>)?</td>", table)
    plain = [tuple(text.replace("\u202f", " ").strip() for text in cell) for cell in cells]
    assert plain == [
        ("0.850", "± 0.071"), ("0.800", "± 0.000"), ("0.500", "± 0.354"),
        ("0.700", ""), ("–", ""), ("0.600", ""),
    ]  # fmt: skip


def test_a_run_without_them_has_no_such_table(tmp_path):
    assert "Which model stands for all" not in page_of([row("dpsgd", 0, {})], tmp_path)
