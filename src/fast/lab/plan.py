"""A comparison that has been checked and can start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fast.core import Strategy, Task
from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.lab.batching import ways_of
from fast.lab.budget import TICKS, Budget
from fast.lab.datasets import provenance
from fast.lab.measures import live_state
from fast.lab.real import check_room
from fast.lab.settings import Real, Settings, Simulated
from fast.lab.splits import Split, parse_split
from fast.lab.surroundings import cores
from fast.lab.tasks import epochs_of, load_task, target_of
from fast.loop.loading import strategies_from, strategy_from
from fast.membership import parse_groups
from fast.sim import parse_straggler
from fast.sim.simulation import check_hosts

REAL = Real()


@dataclass(frozen=True)
class Plan:
    """What `Settings` say, with everything that could be wrong in them found out."""

    settings: Settings
    task: Task
    strategies: Sequence[Strategy]
    budget: Budget
    split: Split
    facts: dict[str, Any]
    """What follows from settings, task and machine; for run.json."""

    @staticmethod
    def of(
        task: str,
        strategies: str | Sequence[str | Strategy],
        workers: int,
        *,
        target: float | None = None,
        epochs: float | None = None,
        seconds: float | None = None,
        seeds: Sequence[int] = (0,),
        tune: int = 0,
        split: str = "iid",
        ticks: int = TICKS,
        pace_s: float | None = None,
        deadline_s: float = 60.0,
        groups: str | None = None,
        world: Real | Simulated = REAL,
    ) -> Plan:
        """Everything that can be wrong is found here, before anything starts."""
        problem, chosen = load_task(task), _strategies(strategies)
        if seconds is not None and epochs is not None:
            raise UsageError("a budget is either epochs or seconds; give one of them")
        if seconds is None and epochs is None:
            epochs = epochs_of(problem)
        settings = Settings(
            task=task,
            strategies=[repr(strategy) for strategy in chosen],
            workers=workers,
            target=target_of(problem) if target is None else float(target),
            epochs=None if epochs is None else float(epochs),
            seconds=None if seconds is None else float(seconds),
            seeds=list(seeds),
            tune=tune,
            split=str(parse_split(split)),
            ticks=ticks,
            pace_s=pace_s,
            deadline_s=deadline_s,
            groups=groups,
            world=world,
        )
        return _checked(settings, problem, chosen)

    @staticmethod
    def again(settings: Settings) -> Plan:
        """The same comparison as before."""
        return _checked(settings, load_task(settings.task), _strategies(settings.strategies))

    @property
    def tuning_seed(self) -> int:
        """Tuning draws numbers of its own: a setting must not be chosen for the luck of a seed."""
        return tuning_seed(self.settings)

    @property
    def runs(self) -> int:
        """Trainings that belong to it, the trials of tuning included."""
        return len(self.strategies) * (self.settings.tune + len(self.settings.seeds))


def tuning_seed(settings: Settings) -> int:
    return stream_seed(settings.seeds[0], "tuning") % 2**31


def _checked(settings: Settings, task: Task, strategies: Sequence[Strategy]) -> Plan:
    _check_settings(settings)
    for strategy in strategies:
        strategy.check(settings.workers)
    if isinstance(settings.world, Simulated):
        for strategy in strategies:
            settings.world.faults().check(strategy, settings.workers, strategy.servers(settings.workers))
            check_hosts(strategy, settings.world.model(), settings.workers)
    if not settings.simulated:
        _check_named(strategies)
    if settings.tune and task.validation() is None:
        raise UsageError(
            f"{settings.task} has no validation(), so there is nothing to tune on: the test data must not be seen. "
            "Add validation() to the task, or compare with fixed settings: --tune 0."
        )
    split, weights_bytes = parse_split(settings.split), _weights_bytes(task)
    seeds = [*settings.seeds, *([tuning_seed(settings)] if settings.tune else [])]
    shares = [split.assign(task, settings.workers, seed) for seed in seeds]
    budget = Budget.of(
        task,
        settings.workers,
        1.0 if settings.epochs is None else settings.epochs,
        weights_bytes,
        ticks=settings.ticks,
        seconds=settings.seconds,
        whole_steps=shares[0] is not None,
    )
    if not settings.simulated:
        servers = max(strategy.servers(settings.workers) for strategy in strategies)
        check_room((settings.workers + servers) * budget.ticks * weights_bytes)
    facts = _facts(settings, task, budget, weights_bytes)
    if isinstance(settings.world, Simulated):
        most = servers_of(strategies, settings.workers)
        facts["model"] = settings.world.model().in_words(settings.workers, *most)
        ways = ways_of(settings.world.gradients, task, strategies, settings.workers)
        facts["faults"] = [str(clause) for clause in settings.world.faults().clauses]
        facts["gradients"] = {call: str(way) for call, way in ways.items()}
    return Plan(settings, task, strategies, budget, split, facts)


def servers_of(strategies: Sequence[Strategy], workers: int) -> tuple[int, int]:
    """The most servers that any of these strategies has: on hosts of their own, and on those of workers."""
    counts = [(strategy.servers(workers), strategy.colocated) for strategy in strategies]
    apart, beside = (
        max((count for count, colocated in counts if colocated is where), default=0)
        for where in (False, True)
    )
    return apart, beside


def _check_settings(settings: Settings) -> None:
    if settings.workers < 1:
        raise UsageError(f"{settings.workers} workers: a comparison needs at least 1")
    if not settings.strategies:
        raise UsageError("a comparison without strategies has nothing to run; name at least one")
    twice = [call for call in settings.strategies if settings.strategies.count(call) > 1]
    if twice:
        raise UsageError(f"{twice[0]} is asked for twice; a comparison needs each strategy once")
    if not 0 < settings.target <= 1:
        raise UsageError(f"target {settings.target:g}: a score to reach lies above 0 and is at most 1")
    if not settings.seeds:
        raise UsageError("a comparison without seeds has nothing to run; give at least one")
    if len(set(settings.seeds)) < len(settings.seeds):
        raise UsageError(f"seeds {settings.seeds}: one of them is there twice, which adds nothing")
    if settings.tune < 0:
        raise UsageError(f"--tune {settings.tune}: the number of trials is 0 (fixed settings) or more")
    if not 0 < settings.deadline_s < math.inf:
        raise UsageError(f"--deadline {settings.deadline_s:g}: a deadline is longer than 0 seconds")
    if settings.pace_s is not None and not 0 < settings.pace_s < math.inf:
        raise UsageError(f"--pace {settings.pace_s:g}: a step's time is longer than 0 seconds")
    if settings.groups is not None:
        parse_groups(settings.groups, settings.workers)
    if isinstance(settings.world, Simulated):
        settings.world.model(), settings.world.faults()
    elif settings.world.straggler is not None:
        parse_straggler(settings.world.straggler)


def _strategies(given: str | Sequence[str | Strategy]) -> list[Strategy]:
    return strategies_from(given) if isinstance(given, str) else [strategy_from(each) for each in given]


def _check_named(strategies: Sequence[Strategy]) -> None:
    for strategy in strategies:
        if not strategy.call:
            raise UsageError(
                f"{strategy!r} was built here, and real workers build theirs from a call. "
                "Give it as text: a preset, or 'file.py:Name(arguments)'."
            )


def _weights_bytes(task: Task) -> int:
    return sum(value.numel() * value.element_size() for value in live_state(task.model()).values())


def _facts(settings: Settings, task: Task, budget: Budget, weights_bytes: int) -> dict[str, Any]:
    crowded = not settings.simulated and settings.workers > cores() and settings.pace_s is None
    return {
        "parameters": sum(parameter.numel() for parameter in task.model().parameters()),
        "weights_bytes": weights_bytes,
        "batch_size": task.batch_size,
        "train_samples": budget.epoch_samples,
        "step_samples": budget.step_samples,
        "budget_samples": None if budget.seconds is not None else budget.samples,
        "ticks": budget.ticks,
        "cores": cores(),
        "oversubscribed": crowded,
        "data": [provenance(name) for name in task.data()],
    }
