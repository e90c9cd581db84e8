"""The replicas of simulated workers, and how their gradients are computed."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from fast.adapters import ServerReplica, TorchReplica
from fast.adapters.rows import RowReplica, Rows
from fast.adapters.server_replica import server_replicas
from fast.core import Strategy, Task
from fast.lab.batching import evaluator
from fast.lab.measures import State, live_state, scale_rate, seed_model
from fast.sim import Gradients
from fast.sim.gradients import Together

Slice = tuple[Sequence[int], int]
Replica = TorchReplica | RowReplica
_SELDOM = (20_000, 50, 50)
"""After so many new objects the collector looks: a round of a thousand workers makes some ten thousand that
are used up by themselves."""


@final
@dataclass(frozen=True)
class Crew:
    """All workers' replicas, each with worker 0's values, as after a real `join`."""

    task: Task
    replicas: Sequence[Replica]
    gradients: Gradients | None = None
    """None for one by one, with the code of real workers."""

    def servers(self, strategy: Strategy) -> list[ServerReplica]:
        """One replica for each server of a strategy."""
        count = strategy.servers(len(self.replicas))
        return server_replicas(
            self.replicas[0], count, sharded=strategy.sharded, optimize=strategy.servers_optimize
        )

    def compute(self, worker: int) -> Callable[[Slice], None]:
        """This worker's own way to its gradient."""
        task, replica = self.task, self.replicas[worker]

        def compute(step: Slice) -> None:
            indices, replica.samples = step
            replica.settle()
            if isinstance(replica, TorchReplica):
                replica.compute(lambda: task.loss(replica.model, task.batch(indices)))

        return compute


def crew_of(task: Task, workers: int, *, seed: int, rate: float, together: bool) -> Crew:
    """`together`: as rows of one tensor, with a single model, whose gradients are computed in one call."""
    seed_model(seed)
    first = task.model()
    if together:
        optimizer = task.optimizer(first)
        scale_rate(optimizer, rate)
        rows = Rows(first, optimizer, task.loss, workers)
        return Crew(task, rows.replicas, Together(evaluator(task, rows, seed)))
    replicas = []
    for model in [first, *(copy.deepcopy(first) for _ in range(workers - 1))]:
        optimizer = task.optimizer(model)
        scale_rate(optimizer, rate)
        replicas.append(TorchReplica(model, optimizer))
    return Crew(task, replicas)


def live_state_of(replica: Replica) -> State:
    """The replica's values by name, as they change."""
    return live_state(replica.model) if isinstance(replica, TorchReplica) else replica.named(replica.weights)


def copied_state(replica: Replica) -> State:
    """The replica's values by name, as they are now."""
    if isinstance(replica, RowReplica):
        return replica.named(replica.weights.clone())
    return {name: value.clone() for name, value in live_state(replica.model).items()}


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """What is there now stays, and the collector needn't look at it again and again: beside a thousand workers
    and torch itself, what a step leaves behind is little. Who has frozen what was there before has done it for us."""
    before, ours = gc.get_threshold(), not gc.get_freeze_count()
    if ours:
        gc.collect()
        gc.freeze()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if ours:
            gc.unfreeze()
