"""How simulated workers' gradients are computed: the rule, the trial, and what comes of it in a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fast.adapters.rows import Rows
from fast.cli.progress import against_reality
from fast.core import Strategy
from fast.errors import UsageError
from fast.lab import Budget, Plan, Run, Simulated, load_task, simulate_task
from fast.lab.batching import FEWEST, evaluator, in_words, way_of
from fast.lab.measures import REPLICAS_KEPT
from fast.lab.settings import settings_of
from fast.lab.tasks.quadratic import Quadratic
from fast.loop.loading import strategy_from
from fast.runtime import seed_gradient
from fast.sim import Compute, parse_network
from fast.sim.gradients import Begun

MANY = FEWEST
GOSSIP = strategy_from("gossip")


class Wrapped:
    """The quadratic task with something else in it."""

    def __init__(self, **other: Any) -> None:
        self._task, self._other = Quadratic(), other

    def __getattr__(self, name: str) -> Any:
        return self._other.get(name) or getattr(self._task, name)


def way(asked: str, strategy: Strategy = GOSSIP, workers: int = MANY, **other: Any) -> str:
    return str(way_of(asked, Wrapped(**other), strategy, workers))  # type: ignore[arg-type]


def dropping() -> nn.Module:
    return nn.Sequential(nn.Dropout(), nn.Linear(32, 1, bias=False))


def convolving() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 32)), nn.Conv1d(1, 1, 32), nn.Flatten())


def noisy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0] + torch.rand_like(batch[0])).square().mean()


def peeking(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = model(batch[0]).square().mean()
    return loss if loss.item() > 0 else loss * 2


def mixing(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Without a fault when it is batched, and plain wrong: one worker's loss depends on how many there are."""
    seen = len(_seen)
    _seen.append(0)
    return model(batch[0]).mean() * (1 + seen)


_seen: list[int] = []


def test_auto_follows_the_rule() -> None:
    assert way("auto").startswith("together")
    assert way("auto", workers=FEWEST - 1) == f"exact (fewer than {FEWEST} workers)"
    assert way("auto", strategy_from("sfb")) == "exact (sfb() looks into the layers)"
    assert way("auto", strategy_from("allreduce(bucket_mb=1.0)")).startswith("exact")
    assert (
        way("auto", model=dropping)
        == "exact (0 is Dropout, which draws random numbers for each worker and step)"
    )
    assert way("exact") == "exact (as asked)"


@pytest.mark.parametrize("loss", [noisy, peeking, mixing])
def test_a_loss_that_can_not_be_batched_is_found_by_the_trial(loss: Any) -> None:
    _seen.clear()
    assert way("auto", loss=loss).startswith("exact (")
    _seen.clear()
    with pytest.raises(UsageError, match="can't be computed together"):
        way("together", loss=loss)


def test_together_where_it_is_merely_slower_or_unusual() -> None:
    assert way("together", workers=2) == "together (as asked)"
    assert way("together", model=convolving) == "together (as asked)"
    assert way("together", strategy_from("allreduce(bucket_mb=1.0)")) == "together (as asked)"


def test_together_where_it_can_not_be() -> None:
    with pytest.raises(UsageError, match="Dropout, which draws"):
        way("together", model=dropping)
    with pytest.raises(UsageError, match="looks into the layers"):
        way("together", strategy_from("sfb"))
    with pytest.raises(UsageError, match="'fast'"):
        way("fast")


def test_what_was_decided_is_in_the_facts_and_in_words() -> None:
    plan = Plan.of("quadratic", "gossip,sfb", MANY, epochs=0.1, world=Simulated())
    assert {call: said.split()[0] for call, said in plan.facts["gradients"].items()} == {
        repr(strategy_from("gossip")): "together",
        repr(strategy_from("sfb")): "exact",
    }
    assert [line.split(" (")[0] for line in in_words(plan.facts["gradients"])] == [
        "gradients of gossip together",
        "gradients of sfb exact",
    ]
    assert in_words({"a()": "exact (as asked)", "b()": "exact (as asked)"}) == ["gradients exact (as asked)"]
    with pytest.raises(UsageError, match="looks into the layers"):
        Plan.of("quadratic", "sfb", MANY, world=Simulated(gradients="together"))


def test_an_old_comparison_is_run_again_as_it_was(tmp_path: Path) -> None:
    settings = {
        "task": "quadratic", "strategies": ["gossip()"], "workers": 64, "target": 0.9, "epochs": 1.0,
        "seeds": [0], "world": {"kind": "sim", "network": "1gbit"},
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    world = settings_of(tmp_path).world
    assert isinstance(world, Simulated) and world.gradients == "exact"
    assert Simulated().gradients == "auto"


# In a run


def simulate(strategy: str, gradients: str, workers: int = 20, task: str = "digits", **options: Any) -> Run:
    problem = load_task(task)
    samples = workers * problem.batch_size * 4
    budget = Budget(samples, len(problem.train()), workers * problem.batch_size, ticks=3)
    options = {"network": parse_network("1gbit"), "compute": Compute(), **options}
    return simulate_task(
        problem, strategy_from(strategy), workers=workers, budget=budget, gradients=gradients, **options
    )


@pytest.mark.parametrize("strategy", ["dpsgd", "gossip(p=0.5)", "ssp(bound=1)"])
def test_a_run_together_measures_the_same(strategy: str) -> None:
    """Digits has fewer samples than twenty workers take in two steps: some steps are short, and some count nothing."""
    exact, together = (simulate(strategy, gradients) for gradients in ("exact", "together"))
    assert len(exact.ticks) == len(together.ticks) == 3
    for one, other in zip(exact.ticks, together.ticks, strict=True):
        assert (one.at_s, one.samples, one.nbytes) == (other.at_s, other.samples, other.nbytes)
        assert one.distance == pytest.approx(other.distance, rel=1e-4, abs=1e-6)
        assert len(other.replicas) == len(one.replicas)
        assert one.state.keys() == other.state.keys()
    for name, value in exact.final.items():
        assert torch.allclose(value, together.final[name], rtol=1e-4, atol=1e-6)
    for one, other in zip(exact.workers, together.workers, strict=True):
        assert (one.steps, one.samples, one.bytes_sent, one.staleness) == (
            other.steps, other.samples, other.bytes_sent, other.staleness
        )  # fmt: skip
    assert [len(w) for w in exact.weights] == [len(w) for w in together.weights]


def test_of_many_replicas_some_are_kept() -> None:
    run = simulate("gossip", "auto", REPLICAS_KEPT + 9, task="quadratic")
    assert [len(tick.replicas) for tick in run.ticks] == [REPLICAS_KEPT] * 3
    assert len(run.weights) == REPLICAS_KEPT + 9


def test_a_run_together_is_the_same_every_time() -> None:
    one, other = (simulate("gossip(p=0.5)", "auto", seed=4) for _ in range(2))
    assert all(torch.equal(value, other.final[name]) for name, value in one.final.items())


class Spoken(Quadratic):
    """Draws while it puts a batch together, and so says nothing about stacking."""

    stackable = False

    def batch(self, indices: Sequence[int]) -> Any:
        x, y = super().batch(list(indices))
        return x + torch.randn(x.shape), y


class Lying(Quadratic):
    def batch(self, indices: Sequence[int]) -> Any:
        return super().batch(list(indices)[:-1])


def test_batches_that_are_drawn_are_those_of_real_workers() -> None:
    task, begun = Spoken(), [Begun(worker, 7, ([worker, 5, 9], 3)) for worker in range(3)]
    model = task.model()
    rows = Rows(model, task.optimizer(model), task.loss, 3)
    evaluator(task, rows, seed=11)(begun)
    for worker in range(3):
        own = task.model()
        seed_gradient(11, worker, 7)
        task.loss(own, task.batch([worker, 5, 9])).backward()
        expected = own.weight.grad
        assert isinstance(expected, Tensor)
        assert torch.allclose(rows.gradients[worker][:32], expected.reshape(-1), rtol=1e-5)


def test_a_task_that_says_stackable_and_is_not() -> None:
    task = Lying()
    model = task.model()
    rows = Rows(model, task.optimizer(model), task.loss, 2)
    with pytest.raises(UsageError, match="Leave out `stackable`"):
        evaluator(task, rows, 0)([Begun(0, 0, ([1, 2], 2)), Begun(1, 0, ([3, 4], 2))])


def test_a_step_that_counts_nothing_has_no_gradient() -> None:
    task = Quadratic()
    model = task.model()
    rows = Rows(model, task.optimizer(model), task.loss, 2)
    rows.gradients.fill_(1.0)
    evaluator(task, rows, 0)([Begun(0, 0, ([1], 0)), Begun(1, 0, ([1], 1))])
    assert not rows.gradients[0].any() and rows.gradients[1].any()
    assert (rows.replicas[0].samples, rows.replicas[0].present) == (0, 0)
    assert (rows.replicas[1].samples, rows.replicas[1].present) == (1, None)


def test_virtual_against_real_time() -> None:
    assert against_reality(None, 3.0) == ""
    assert against_reality(0.0, 3.0) == ", 0.0 s simulated"
    assert against_reality(6.0, 3.0) == ", 6.0 s simulated, 2.0 times faster than reality"
    assert against_reality(0.1, 250.0) == ", 0.1 s simulated, 2,500 times slower than reality"
