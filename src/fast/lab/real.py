"""One strategy on real workers: processes on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file

from fast.core import Task
from fast.engine import Job, LocalEngine, Outcome
from fast.errors import FastError, UsageError
from fast.lab.budget import Budget
from fast.lab.copying import SavedCopies
from fast.lab.measures import (
    Report,
    Run,
    State,
    Tick,
    distance_of,
    flat_state,
    mean_state,
    parameter_names,
    replica_ticks,
    state_of_shards,
)
from fast.lab.tasks import load_task
from fast.lab.training import CONSOLIDATED, Orders, copies_file, replica_file
from fast.view import Groups

Listen = Callable[[dict[str, Any]], None]
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
    groups: Groups = (),
    listen: Listen = lambda message: None,
    **orders: Any,
) -> Run:
    """Train a task with one strategy on this many processes. Both are given as text; `orders` are
    the further fields of `Orders`: rate, split, pace_s, straggler, metrics, run."""
    if engine is None:
        with LocalEngine() as own:
            return train_task(
                task, strategy, workers=workers, budget=budget, seed=seed,
                engine=own, deadline_s=deadline_s, groups=groups, listen=listen, **orders,
            )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fast-", ignore_cleanup_errors=True) as folder:
        told = {"orders": msgspec.to_builtins(Orders(task, strategy, seed, budget, folder, **orders))}
        job = Job(
            workers=workers,
            entry="fast.lab.training:train",
            server_entry="fast.lab.training:serve",
            arguments=told,
            server_arguments=told,
            seed=seed,
            deadline_s=deadline_s,
            groups=groups,
            preload=list(PRELOAD),
            folder=os.getcwd(),
        )
        return _read(engine.run(job, listen), Path(folder), load_task(task), budget)


def check_room(nbytes: int) -> None:
    """Whether the copies of a run will find room on disk, before anything starts."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if nbytes > free:
        raise UsageError(
            f"the copies of the weights need {nbytes / 1e6:.0f} MB, and {tempfile.gettempdir()} has "
            f"{free / 1e6:.0f} MB left. Make room there, name a folder on another disk in TMPDIR, or take "
            "fewer --ticks."
        )


def _read(outcome: Outcome, folder: Path, task: Task, budget: Budget) -> Run:
    """What the participants have left behind."""
    failure = outcome.failure
    if failure is not None:
        if failure.usage:
            raise UsageError(failure.message)
        who = "" if failure.message.startswith(failure.who) else f"{failure.who}: "
        raise TrainingFailed(f"{who}{failure.message}", failure.traceback)
    workers, servers = (
        [msgspec.convert(result, Report, str_keys=True) for result in results]
        for results in (outcome.results, outcome.server_results)
    )
    replicas = [load_file(folder / replica_file(report.name)) for report in workers]
    parameters = parameter_names(task.model())
    return Run(
        ticks=_Ticks(folder, task, workers, servers).all(budget.ticks),
        final=load_file(folder / CONSOLIDATED),
        weights=[flat_state(replica, parameters) for replica in replicas],
        workers=workers,
        servers=servers,
        replicas=dict(enumerate(replicas)),
    )


class _Ticks:
    """Puts the participants' copies together, tick by tick."""

    def __init__(
        self, folder: Path, task: Task, workers: Sequence[Report], servers: Sequence[Report]
    ) -> None:
        self._began_ns = min(report.started_ns for report in workers)
        self._reports = [*workers, *servers]
        owners = [server for server in servers if server.owns_weights]
        self._makers = [*workers, *owners]
        self._sharded = any(owner.owns_shard for owner in owners)
        saved = {report.name: SavedCopies(folder / copies_file(report.name)) for report in self._reports}
        self._workers = [saved[report.name] for report in workers]
        self._owners = [saved[report.name] for report in owners]
        self._parameters = parameter_names(task.model())

    def all(self, ticks: int) -> list[Tick]:
        kept = replica_ticks(ticks)
        return [self._tick(tick, tick in kept) for tick in range(ticks)]

    def _tick(self, tick: int, keep_replicas: bool) -> Tick:
        """Counted from the moment when the first worker began; the last copy completes the tick."""
        replicas = [copies.at(tick) for copies in self._workers]
        last_ns = max(report.tick_ns[tick] for report in self._makers)
        return Tick(
            at_s=(last_ns - self._began_ns) / 1e9,
            state=self._consolidated(tick, replicas),
            samples=sum(report.tick_samples[tick] for report in self._reports),
            nbytes=sum(report.tick_bytes[tick] for report in self._reports),
            distance=distance_of([flat_state(replica, self._parameters) for replica in replicas]),
            replicas=replicas if keep_replicas else (),
        )

    def _consolidated(self, tick: int, replicas: Sequence[State]) -> State:
        state = mean_state(replicas)
        if self._owners:
            copies = [owner.at(tick) for owner in self._owners]
            owned = state_of_shards(copies, state) if self._sharded else mean_state(copies)
            state.update({name: value for name, value in owned.items() if name in state})
        return state
