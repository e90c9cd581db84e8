"""The comparison: one row per strategy and seed, each from the same start over the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import torch
from torch import nn

from fast.core import Strategy, Task
from fast.engine import LocalEngine
from fast.errors import UsageError
from fast.lab.budget import Budget
from fast.lab.measures import Run, State, live_state, one_thread
from fast.lab.real import train_task
from fast.lab.simulated import simulate_task
from fast.lab.tasks import epochs_of, load_task, target_of
from fast.loop.loading import strategies_from, strategy_from
from fast.sim import NETWORKS, Compute, ComputeModel, Network

WorldName = Literal["real", "sim"]


@dataclass(frozen=True)
class Result:
    """One row. Time is real or virtual, counted from the common start to the first tick at which
    the mean of the workers' copies reaches the target.

    `steps` is the mean over workers, `samples` the sum. `bytes_sent_per_worker` doesn't contain
    what servers sent. Staleness is measured where updates are included: at the server, if there
    is one. `consensus_distance` is sqrt(mean_i |w_i - m|^2) / |m| of the replicas' final weights
    before they are consolidated. `wait_fraction` is the share of its time that a worker waited.
    """

    strategy: str
    seed: int
    reached_target: bool = False
    time_to_target_s: float | None = None
    final_score: float | None = None
    steps: float | None = None
    samples: int | None = None
    bytes_sent_per_worker: float | None = None
    mean_staleness: float | None = None
    max_staleness: int | None = None
    consensus_distance: float | None = None
    wait_fraction: float | None = None
    error: str | None = None
    """Why this strategy has no figures; None for one that was trained."""

    def to_json(self) -> dict[str, Any]:
        row = {field.name: _finite(getattr(self, field.name)) for field in fields(self)}
        if self.error is None:
            del row["error"]
        return row


@dataclass(frozen=True)
class Comparison:
    """All rows, and what they have in common."""

    task: str
    workers: int
    world: WorldName
    target: float
    results: Sequence[Result]

    @property
    def failed(self) -> bool:
        return any(result.error is not None for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "task": self.task,
            "workers": self.workers,
            "world": self.world,
            "target": self.target,
            "results": [result.to_json() for result in self.results],
        }


class Listener(Protocol):
    """Hears how a comparison goes on."""

    def begins(self, strategy: str, seed: int, steps: int) -> None:
        """A run begins; each worker will take about so many steps."""

    def event(self, message: dict[str, Any]) -> None:
        """Something happened in it: see `fast.engine`."""

    def ends(self, result: Result) -> None: ...


@dataclass(frozen=True)
class Silent:
    """A listener that says nothing."""

    def begins(self, strategy: str, seed: int, steps: int) -> None: ...
    def event(self, message: dict[str, Any]) -> None: ...
    def ends(self, result: Result) -> None: ...


@dataclass(frozen=True)
class Plan:
    """A comparison that has been checked and can start."""

    task_text: str
    task: Task
    strategies: Sequence[Strategy]
    workers: int
    target: float
    budget: Budget
    seeds: Sequence[int]

    @staticmethod
    def of(
        task: str,
        strategies: str | Sequence[str | Strategy],
        workers: int,
        *,
        target: float | None = None,
        epochs: float | None = None,
        seeds: Sequence[int] = (0,),
    ) -> Plan:
        """Everything that can be wrong is found here, before anything starts."""
        if workers < 1:
            raise UsageError(f"{workers} workers: a comparison needs at least 1")
        problem = load_task(task)
        wanted = target_of(problem) if target is None else target
        if not 0 < wanted <= 1:
            raise UsageError(f"target {wanted:g}: a score to reach lies above 0 and is at most 1")
        chosen = _strategies(strategies)
        for strategy in chosen:
            _check_fits(strategy, workers)
        if not seeds:
            raise UsageError("a comparison without seeds has nothing to run; give at least one")
        budget = Budget.of(
            problem, workers, epochs_of(problem) if epochs is None else epochs, _nbytes(problem)
        )
        return Plan(task, problem, chosen, workers, wanted, budget, tuple(seeds))

    def runs(self) -> Iterator[tuple[Strategy, int]]:
        return ((strategy, seed) for seed in self.seeds for strategy in self.strategies)


@dataclass(frozen=True)
class Simulated:
    """The simulated world of a comparison."""

    network: Network = NETWORKS["1gbit"]
    compute: ComputeModel = Compute()


@dataclass(frozen=True)
class Real:
    """The real world: processes on this machine."""

    deadline_s: float = 60.0


def compare(
    task: str,
    strategies: str | Sequence[str | Strategy],
    workers: int,
    *,
    world: Real | Simulated = Real(),
    listener: Listener = Silent(),
    **options: Any,
) -> Comparison:
    """Train a task with each strategy; `options` are those of `Plan.of`.

    Same initial weights and same data order for all of them, the same number of samples, and the
    score on data that nobody trained on. A strategy that fails gets a row that says why.
    """
    return run_plan(Plan.of(task, strategies, workers, **options), world, listener)


def run_plan(plan: Plan, world: Real | Simulated, listener: Listener = Silent()) -> Comparison:
    """Run a comparison that has been checked."""
    if isinstance(world, Simulated):
        results = [_attempt(plan, *run, _simulate(plan, world, listener), listener) for run in plan.runs()]
        return Comparison(plan.task_text, plan.workers, "sim", plan.target, results)
    _check_named(plan.strategies)
    with LocalEngine() as engine:
        train = _train(plan, world, engine, listener)
        results = [_attempt(plan, *run, train, listener) for run in plan.runs()]
    return Comparison(plan.task_text, plan.workers, "real", plan.target, results)


# One run

Trainer = Callable[[Strategy, int], Run]


def _train(plan: Plan, world: Real, engine: LocalEngine, listener: Listener) -> Trainer:
    return lambda strategy, seed: train_task(
        plan.task_text,
        strategy.call,
        workers=plan.workers,
        budget=plan.budget,
        seed=seed,
        engine=engine,
        deadline_s=world.deadline_s,
        listen=listener.event,
    )


def _simulate(plan: Plan, world: Simulated, listener: Listener) -> Trainer:
    def tell(steps: int, now_ns: int) -> None:
        listener.event({"event": "progress", "steps": [steps], "virtual_s": now_ns / 1e9})

    return lambda strategy, seed: simulate_task(
        plan.task,
        strategy,
        workers=plan.workers,
        budget=plan.budget,
        network=world.network,
        compute=world.compute,
        seed=seed,
        on_tick=tell,
    )


def _attempt(plan: Plan, strategy: Strategy, seed: int, train: Trainer, listener: Listener) -> Result:
    """A strategy may be anybody's code: whatever it raises ends its own row and no other."""
    listener.begins(repr(strategy), seed, plan.budget.steps)
    try:
        result = judge(plan, strategy, seed, train(strategy, seed))
    except Exception as error:
        listener.event({"event": "failed", "error": error})
        result = Result(repr(strategy), seed, error=str(error) or type(error).__name__)
    listener.ends(result)
    return result


def judge(plan: Plan, strategy: Strategy, seed: int, run: Run) -> Result:
    """What a run was worth."""
    score = _Judge(plan.task)
    reached = next((tick for tick in run.ticks if score(tick.state) >= plan.target), None)
    workers, stale = len(run.workers), run.staleness
    return Result(
        strategy=repr(strategy),
        seed=seed,
        reached_target=reached is not None,
        time_to_target_s=None if reached is None else reached.at_s,
        final_score=score(run.final),
        steps=sum(report.steps for report in run.workers) / workers,
        samples=sum(report.samples for report in run.workers),
        bytes_sent_per_worker=sum(report.bytes_sent for report in run.workers) / workers,
        mean_staleness=stale.mean_staleness,
        max_staleness=stale.max_staleness,
        consensus_distance=run.consensus_distance,
        wait_fraction=sum(report.waiting_share for report in run.workers) / workers,
    )


class _Judge:
    """Scores a model's values on the test data."""

    def __init__(self, task: Task) -> None:
        self._task, self._test = task, task.test()
        self._model = task.model().eval()

    def __call__(self, state: State) -> float:
        self._model.load_state_dict(state)
        with torch.no_grad(), one_thread():
            return float(self._task.score(self._model, self._test))


# Checks


def _strategies(given: str | Sequence[str | Strategy]) -> list[Strategy]:
    chosen = strategies_from(given) if isinstance(given, str) else [strategy_from(each) for each in given]
    if not chosen:
        raise UsageError("a comparison without strategies has nothing to run; name at least one")
    return chosen


def _check_fits(strategy: Strategy, workers: int) -> None:
    if strategy.topology is not None:
        strategy.topology.check(workers)


def _check_named(strategies: Sequence[Strategy]) -> None:
    for strategy in strategies:
        if not strategy.call:
            raise UsageError(
                f"{strategy!r} was built here, and real workers build theirs from a call. "
                "Give it as text: a preset, or 'file.py:Name(arguments)'."
            )


def _nbytes(task: Task) -> int:
    model: nn.Module = task.model()
    return sum(value.numel() * value.element_size() for value in live_state(model).values())


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
