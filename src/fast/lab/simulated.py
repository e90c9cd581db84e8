"""One strategy on simulated workers: virtual time, real gradients."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from fast.adapters import ServerReplica, TorchReplica
from fast.core import Me, Strategy, Task
from fast.lab.agreeing import AHEAD
from fast.lab.budget import Budget
from fast.lab.data import Shares, simulated_batches
from fast.lab.measures import (
    Report,
    Run,
    State,
    Tick,
    distance_of,
    flat_state,
    flat_weights,
    live_state,
    mean_state,
    one_thread,
    parameter_names,
    replica_ticks,
    scale_rate,
    seed_model,
)
from fast.lab.notebook import Notebook
from fast.lab.recording import records_for
from fast.lab.splits import Split, parse_split
from fast.runtime.worker import mean_of, representatives
from fast.sim import ComputeModel, Network, Simulation, SimWorker
from fast.trace import Meter

Slice = tuple[Sequence[int], int]
OnTick = Callable[[int, int], None]
"""Called as ticks pass, with the steps of the worker that came there first and the virtual time."""


def simulate_task(
    task: Task,
    strategy: Strategy,
    *,
    workers: int,
    budget: Budget,
    network: Network,
    compute: ComputeModel,
    seed: int = 0,
    rate: float = 1.0,
    split: Split | None = None,
    on_tick: OnTick = lambda steps, now_ns: None,
) -> Run:
    """Train a task with one strategy on this many simulated workers, with one torch thread."""
    with one_thread():
        replicas = _replicas(task, workers, seed, rate)
        shares = (split or parse_split("iid")).assign(task, workers, seed)
        watchers = _watchers(workers, strategy.servers(workers))
        agreed: list[int] = []
        simulation = Simulation(
            strategy,
            [
                SimWorker(
                    replica,
                    _until_agreed(
                        _batches(task, shares, strategy, budget, workers, number, seed), agreed, budget
                    ),
                    _compute(task, replica),
                )
                for number, replica in enumerate(replicas)
            ],
            server_replicas=[_server(replicas[0]) for _ in watchers[workers:]],
            network=network,
            compute=compute,
            seed=seed,
            observers=[lambda record: watchers[record.who].notebook.collect(record)],
        )
        watch = Watch(simulation, replicas, watchers, budget, agreed, on_tick)
        simulation.run(stop=watch.is_over, on_step=watch.step)
        return _run(simulation, replicas, watchers, watch)


def _watchers(workers: int, servers: int) -> list[Watcher]:
    names = [f"worker {number}" for number in range(workers)]
    names += [f"server {number}" for number in range(servers)]
    limit = records_for(len(names))
    return [Watcher(Report(name), Notebook(name, limit)) for name in names]


def _replicas(task: Task, workers: int, seed: int, rate: float) -> list[TorchReplica]:
    """Everybody starts with worker 0's values, as after a real `join`."""
    seed_model(seed)
    first = task.model()
    replicas = []
    for model in [first, *(copy.deepcopy(first) for _ in range(workers - 1))]:
        optimizer = task.optimizer(model)
        scale_rate(optimizer, rate)
        replicas.append(TorchReplica(model, optimizer))
    return replicas


def _server(replica: TorchReplica) -> ServerReplica:
    return ServerReplica(replica.optimizer_spec(), replica.layout, replica.weights.clone())


def _batches(
    task: Task, shares: Shares, strategy: Strategy, budget: Budget, workers: int, worker: int, seed: int
) -> Iterator[Slice]:
    """In lock-step everybody has the same number of them; otherwise the total says when to stop, or
    the time."""
    endless = simulated_batches(task, shares, workers, worker, seed)
    counted = strategy.synchronous and budget.seconds is None
    return itertools.islice(endless, budget.steps) if counted else endless


def _until_agreed(batches: Iterator[Slice], agreed: Sequence[int], budget: Budget) -> Iterator[Slice]:
    """Until the step of the last tick, once that has been agreed on."""
    for steps, batch in enumerate(batches):
        if len(agreed) == budget.ticks and steps >= agreed[-1]:
            return
        yield batch


def _compute(task: Task, replica: TorchReplica) -> Callable[[Slice], None]:
    def compute(step: Slice) -> None:
        indices, replica.samples = step
        replica.settle()
        replica.compute(lambda: task.loss(replica.model, task.batch(indices)))

    return compute


@dataclass(frozen=True)
class Watcher:
    """What observes one participant, and its report as it grows."""

    report: Report
    notebook: Notebook

    @property
    def meter(self) -> Meter:
        """As of now."""
        self.notebook.work_out()
        return self.notebook.meter

    def bytes_at(self, tick: int) -> int:
        self.notebook.work_out()
        return self.notebook.tick_bytes[tick]

    def finished(self) -> Report:
        self.report.take(self.notebook)
        self.report.steps, self.report.samples = self.meter.steps, self.meter.samples
        return self.report


@final
class Watch:
    """Copies weights at every tick and says when the budget is used up.

    A tick's mean is made as soon as its last copy is there, so that the copies of a thousand
    workers don't pile up.
    """

    def __init__(
        self,
        simulation: Simulation,
        replicas: Sequence[TorchReplica],
        watchers: Sequence[Watcher],
        budget: Budget,
        agreed: list[int],
        on_tick: OnTick,
    ) -> None:
        self.ticks: list[Tick] = []
        self._simulation, self._replicas, self._watchers = simulation, replicas, watchers
        self._budget, self._on_tick, self._agreed = budget, on_tick, agreed
        self._lock_step = simulation.strategy.synchronous
        self._agreeing = self._lock_step and budget.seconds is not None
        self._copies: dict[int, dict[int, State]] = {}
        self._kept = replica_ticks(budget.ticks)
        self._parameters = parameter_names(replicas[0].model)

    def step(self, me: Me, now_ns: int) -> None:
        """After a worker's step."""
        report = self._watchers[me.id].report
        report.ended_ns = now_ns
        for tick in range(len(report.tick_ns), self._passed(me, now_ns)):
            self._take(tick, me, now_ns)

    def is_over(self, simulation: Simulation) -> bool:
        """For workers that don't go in lock-step; those have a last step."""
        return not self._lock_step and self._budget.is_over(simulation.total_samples, simulation.now_ns)

    def _passed(self, me: Me, now_ns: int) -> int:
        """As on real workers: in lock-step a tick is a step, and with the clock worker 0 names it."""
        due = self._budget.ticks_after(self._seen(me), now_ns)
        if not self._agreeing:
            return due
        if me.id == 0:
            farthest = max(worker.me.steps for worker in self._simulation.workers)
            self._agreed += [farthest + AHEAD] * (due - len(self._agreed))
        return sum(step <= me.steps for step in self._agreed)

    def _seen(self, me: Me) -> int:
        return self._budget.samples_after(me.steps) if self._lock_step else self._simulation.total_samples

    def _take(self, tick: int, me: Me, now_ns: int) -> None:
        copies, watcher = self._copies.setdefault(tick, {}), self._watchers[me.id]
        if not copies:
            self._on_tick(me.steps, now_ns)
        self._replicas[me.id].settle()
        copies[me.id] = _copied(self._replicas[me.id])
        watcher.report.tick_ns.append(now_ns)
        watcher.report.tick_samples.append(watcher.meter.samples)
        watcher.notebook.tick()
        if len(copies) == len(self._replicas):
            self._complete(tick, now_ns)

    def _complete(self, tick: int, now_ns: int) -> None:
        copies = self._copies.pop(tick)
        replicas = [copies[worker] for worker in sorted(copies)]
        workers, servers = self._watchers[: len(replicas)], self._watchers[len(replicas) :]
        state = mean_state(replicas)
        if not self._lock_step:  # in lock-step the workers' copies are the server's weights
            _take_over_servers(state, self._simulation, self._replicas[0])
        self.ticks.append(
            Tick(
                at_s=now_ns / 1e9,
                state=state,
                samples=sum(watcher.report.tick_samples[tick] for watcher in workers),
                nbytes=sum(watcher.bytes_at(tick) for watcher in workers)
                + sum(watcher.meter.bytes_sent for watcher in servers),
                distance=distance_of([flat_state(replica, self._parameters) for replica in replicas]),
                replicas=replicas if tick in self._kept else (),
            )
        )


def _copied(replica: TorchReplica) -> State:
    return {name: value.clone() for name, value in live_state(replica.model).items()}


def _run(
    simulation: Simulation, replicas: Sequence[TorchReplica], watchers: Sequence[Watcher], watch: Watch
) -> Run:
    for replica in replicas:
        replica.settle()
    reports = [watcher.finished() for watcher in watchers]
    return Run(
        ticks=watch.ticks,
        final=_consolidated(simulation, replicas),
        weights=[flat_weights(replica.model) for replica in replicas],
        workers=reports[: len(replicas)],
        servers=reports[len(replicas) :],
    )


def _consolidated(simulation: Simulation, replicas: Sequence[TorchReplica]) -> State:
    """As `fast.consolidate` makes it: the mean of the replicas, or the servers' weights."""
    steps = {worker.me.id: worker.me.steps for worker in simulation.workers}
    chosen = representatives(simulation.strategy, steps)
    state = mean_state(live_state(replicas[worker].model) for worker in chosen)
    _take_over_servers(state, simulation, replicas[0])
    return state


def _take_over_servers(state: State, simulation: Simulation, replica: TorchReplica) -> None:
    """Where servers own the weights, the model has their values."""
    if simulation.servers:
        weights = mean_of([server.me.weights for server in simulation.servers])
        for segment in replica.layout.segments:
            if segment.name in state:
                state[segment.name].copy_(segment.of(weights))
