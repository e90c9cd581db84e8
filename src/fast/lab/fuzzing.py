"""Fuzzing a strategy on a task: the trials of `fast.sim.fuzzing`, and how a finding is typed again.

A trial is an ordinary simulated training, so that the command which replays it is an ordinary one too.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

from fast.core import Strategy, Task
from fast.lab.budget import Budget
from fast.lab.settings import Simulated
from fast.lab.simulated import simulate_task
from fast.lab.tasks import samples_of
from fast.sim.checkers import Checkers, Seen
from fast.sim.fuzzing import PLAIN, Case, Outcome, fuzz


def fuzz_task(
    task: Task, strategy: Strategy, seeds: Iterable[int], tell: Callable[[int, Seen], None]
) -> Outcome:
    """Train a task with one strategy, once for each seed, until something is found."""

    def trial(case: Case, checkers: Checkers) -> None:
        simulate_task(
            task,
            strategy,
            workers=case.workers,
            budget=Budget.of(task, case.workers, epochs_of(task, case), ticks=1),
            cluster=case.machines.cluster(),
            seed=case.seed,
            scenario=case.scenario,
            checkers=checkers,
            gradients=Simulated().gradients,
        )

    return fuzz(strategy, trial, seeds, tell=tell)


def epochs_of(task: Task, case: Case) -> float:
    """The budget in which every worker can take its steps."""
    return case.steps * case.workers * task.batch_size / samples_of(task)


def command_of(task: Task, name: str, strategy: Strategy, case: Case) -> str:
    """What to type to see this case again; `name` is that of the task."""
    words = ["fast", "simulate", name, "--strategies", repr(strategy), "--workers", str(case.workers)]
    words += ["--epochs", repr(epochs_of(task, case)), "--seed", str(case.seed), *_machines(case)]
    if case.scenario:
        words += ["--scenario", str(case.scenario)]
    return shlex.join([*words, "--check"])


def _machines(case: Case) -> Iterator[str]:
    """The options for what isn't usual about them."""
    for name in (each.name for each in fields(case.machines)):
        value = getattr(case.machines, name)
        if value != getattr(PLAIN, name):
            yield from (f"--{name}", f"{value}")
