"""The body of one real worker: the public loop, and copies of the weights at every tick."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors.torch import save_file
from torch import nn

from fast.core import Strategy, Task
from fast.core.seeds import gradient_seed
from fast.engine import current_seat
from fast.lab.budget import Budget
from fast.lab.data import loader_of
from fast.lab.measures import Report, ServerReport, State, flat_weights, live_state, seed_model
from fast.lab.tasks import load_task
from fast.loop import consolidate, join, serving, shard
from fast.loop.loading import strategy_from
from fast.loop.session import Session, close_sessions
from fast.trace import Meter

CONSOLIDATED = "consolidated.safetensors"


def copies_file(worker: int) -> str:
    """Where a worker leaves its copies."""
    return f"copies-{worker}.safetensors"


def weights_file(worker: int) -> str:
    """Where a worker leaves its own final weights."""
    return f"weights-{worker}.safetensors"


def train(task: str, strategy: str, seed: int, budget: dict[str, int], folder: str) -> Report:
    """Train one replica. Copies and final weights go into `folder`, figures come back."""
    seat, problem, chosen = current_seat(), load_task(task), strategy_from(strategy)
    _warm_up(problem)
    seed_model(seed)
    model = problem.model()
    optimizer, meter = problem.optimizer(model), Meter()
    join(model, optimizer, chosen, observers=[meter])
    copies = Copies(live_state(model), Budget(**budget))
    training = Training(problem, chosen, seat.sessions[-1], copies, seed)
    report = training.run(meter)
    final = consolidate(model)
    report.bytes_sent, report.staleness = meter.bytes_sent, meter.staleness
    _save(Path(folder), seat.id, copies, model, final)
    close_sessions(seat)
    return report


def serve(strategy: str, number: int) -> ServerReport:
    """A server that also measures how stale the updates are that it applies."""
    meter = Meter()
    serving.serve(strategy, number, observers=[meter])
    return ServerReport(meter.staleness)


@final
class Copies:
    """Room for a copy of the model at every tick, made before the clock starts."""

    def __init__(self, live: State, budget: Budget) -> None:
        self.budget = budget
        self.tick_ns: list[int] = []
        self.rows = {
            name: torch.empty((budget.ticks, *value.shape), dtype=value.dtype, device="cpu").fill_(0)
            for name, value in live.items()
        }
        self._live = live

    def take(self, seen: int) -> None:
        """At a step boundary: a copy for every tick that has passed since the last one."""
        while len(self.tick_ns) < self.budget.ticks_after(seen):
            tick = len(self.tick_ns)
            self.tick_ns.append(time.monotonic_ns())
            for name, value in self._live.items():
                self.rows[name][tick].copy_(value)


@dataclass(frozen=True)
class Training:
    """A worker's loop and what it needs."""

    task: Task
    strategy: Strategy
    session: Session
    copies: Copies
    seed: int

    def run(self, meter: Meter) -> Report:
        """Until the budget of all workers together is used up."""
        task, model, optimizer = self.task, self.session.model, self.session.optimizer
        budget, seen_after = self.copies.budget, self._seen_after()
        alone, steps, seen = self.session.runtime is None, 0, 0
        batches = shard(loader_of(task, self.seed))
        started_ns = time.monotonic_ns()
        for batch in itertools.chain.from_iterable(itertools.repeat(batches)):
            if alone:  # joined workers have been seeded by `join` and `step`
                torch.default_generator.manual_seed(gradient_seed(self.seed, 0, steps))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            seen = seen_after(steps)
            self.copies.take(seen)
            if seen >= budget.samples:
                break
        runtime = self.session.runtime
        return Report(
            started_ns=started_ns,
            ended_ns=time.monotonic_ns(),
            steps=steps,
            samples=seen if runtime is None else runtime.samples,
            bytes_sent=0,
            waited_ns=meter.waited_ns,
            staleness={},
            tick_ns=self.copies.tick_ns,
        )

    def _seen_after(self) -> Callable[[int], int]:
        """How many samples all workers have seen, by this worker's steps.

        In lock-step that is arithmetic, and everybody comes to the same answer; otherwise it is
        what the workers have told so far.
        """
        runtime = self.session.runtime
        if runtime is None or self.strategy.synchronous:
            return self.copies.budget.samples_after
        transport, workers = runtime.transport, runtime.world.start_view.workers
        return lambda steps: sum(transport.status(worker).samples for worker in workers)


def _warm_up(task: Task) -> None:
    """A gradient that nobody counts, so that no strategy pays for torch's first steps."""
    model = task.model()
    optimizer = task.optimizer(model)
    batch = task.batch(range(min(task.batch_size, len(task.train()))))
    for _ in range(2):
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def _save(folder: Path, worker: int, copies: Copies, model: nn.Module, final: nn.Module) -> None:
    save_file(copies.rows, folder / copies_file(worker))
    save_file({"weights": flat_weights(model)}, folder / weights_file(worker))
    if worker == 0:
        state = {name: value.clone() for name, value in live_state(final).items()}
        save_file(state, folder / CONSOLIDATED)
