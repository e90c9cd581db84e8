"""The comparison: one row per strategy and seed, each from the same start over the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from fast.core import Strategy, Task
from fast.engine import LocalEngine
from fast.errors import FastError, UsageError
from fast.lab.budget import Budget
from fast.lab.measures import Run, live_state
from fast.lab.real import train_task
from fast.lab.results import Comparison, Result, judge
from fast.lab.simulated import simulate_task
from fast.lab.tasks import epochs_of, load_task, target_of
from fast.loop.loading import strategies_from, strategy_from
from fast.sim import NETWORKS, Compute, ComputeModel, Network


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


SILENT = Silent()


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
    compute: ComputeModel = field(default_factory=Compute)


@dataclass(frozen=True)
class Real:
    """The real world: processes on this machine."""

    deadline_s: float = 60.0


REAL = Real()


def compare(
    task: str,
    strategies: str | Sequence[str | Strategy],
    workers: int,
    *,
    world: Real | Simulated = REAL,
    listener: Listener = SILENT,
    **options: Any,
) -> Comparison:
    """Train a task with each strategy; `options` are those of `Plan.of`.

    Same initial weights and same data order for all of them, the same number of samples, and the
    score on data that nobody trained on. A strategy that fails gets a row that says why.
    """
    return run_plan(Plan.of(task, strategies, workers, **options), world, listener)


def run_plan(plan: Plan, world: Real | Simulated, listener: Listener = SILENT) -> Comparison:
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
        result = judge(plan.task, plan.target, repr(strategy), seed, train(strategy, seed))
    except Exception as error:
        listener.event({"event": "failed", "error": error})
        own = isinstance(error, FastError)
        result = Result(repr(strategy), seed, error=str(error) if own else f"{type(error).__name__}: {error}")
    listener.ends(result)
    return result


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
