"""One strategy on real workers: processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from safetensors.torch import load_file

from fast.engine import Job, LocalEngine, Outcome
from fast.errors import FastError, UsageError
from fast.lab.budget import Budget
from fast.lab.measures import Report, Run, ServerReport, State, Tick, mean_state
from fast.lab.training import CONSOLIDATED, copies_file, weights_file

Listener = Callable[[dict[str, Any]], None]
PRELOAD = ("fast.lab.training", "torch._dynamo", "sklearn.datasets")
"""What the host imports before it forks. torch imports its compiler when the first optimizer is
made, which takes seconds; so it is done once, and not in every worker."""


class TrainingFailed(FastError):
    """A run that ended before its time. `details` has the traceback, if there is one."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


def train_task(
    task: str,
    strategy: str,
    *,
    workers: int,
    budget: Budget,
    seed: int = 0,
    engine: LocalEngine | None = None,
    deadline_s: float = 60.0,
    listen: Listener = lambda message: None,
) -> Run:
    """Train a task with one strategy on this many processes. Both are given as text."""
    if engine is None:
        with LocalEngine() as own:
            return train_task(
                task, strategy, workers=workers, budget=budget, seed=seed,
                engine=own, deadline_s=deadline_s, listen=listen,
            )  # fmt: skip
    with TemporaryDirectory(prefix="fast-") as folder:
        job = Job(
            workers=workers,
            entry="fast.lab.training:train",
            server_entry="fast.lab.training:serve",
            arguments={
                "task": task,
                "strategy": strategy,
                "seed": seed,
                "budget": asdict(budget),
                "folder": folder,
            },
            seed=seed,
            deadline_s=deadline_s,
            preload=list(PRELOAD),
            folder=os.getcwd(),
        )
        return _read(engine.run(job, listen), Path(folder), workers, budget)


def _read(outcome: Outcome, folder: Path, workers: int, budget: Budget) -> Run:
    """What the workers have left behind."""
    failure = outcome.failure
    if failure is not None:
        if failure.usage:
            raise UsageError(failure.message)
        who = "" if failure.message.startswith(failure.who) else f"{failure.who}: "
        raise TrainingFailed(f"{who}{failure.message}", failure.traceback)
    reports = [msgspec.convert(result, Report, str_keys=True) for result in outcome.results]
    copies = [load_file(folder / copies_file(worker)) for worker in range(workers)]
    return Run(
        ticks=[_tick(tick, reports, copies) for tick in range(budget.ticks)],
        final=load_file(folder / CONSOLIDATED),
        weights=[load_file(folder / weights_file(worker))["weights"] for worker in range(workers)],
        workers=reports,
        servers=[msgspec.convert(result, ServerReport, str_keys=True) for result in outcome.server_results],
    )


def _tick(tick: int, reports: Sequence[Report], copies: Sequence[State]) -> Tick:
    """Counted from the moment when the first worker began; the last copy completes the tick."""
    began_ns = min(report.started_ns for report in reports)
    last_ns = max(report.tick_ns[tick] for report in reports)
    mean = mean_state({name: rows[tick] for name, rows in copy.items()} for copy in copies)
    return Tick((last_ns - began_ns) / 1e9, mean)
