"""One strategy on simulated workers: virtual time, real gradients."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import final

from fast.adapters import ServerReplica, TorchReplica
from fast.core import Me, Strategy, Task
from fast.lab.budget import Budget
from fast.lab.data import simulated_batches
from fast.lab.measures import (
    Report,
    Run,
    ServerReport,
    State,
    Tick,
    flat_weights,
    live_state,
    mean_state,
    one_thread,
    seed_model,
)
from fast.runtime.worker import mean_of, representatives
from fast.sim import ComputeModel, Network, Simulation, SimWorker
from fast.trace import Meter, Record

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
    on_tick: OnTick = lambda steps, now_ns: None,
) -> Run:
    """Train a task with one strategy on this many simulated workers, with one torch thread."""
    with one_thread():
        replicas = _replicas(task, workers, seed)
        meters = [Meter() for _ in range(workers + strategy.servers(workers))]
        simulation = Simulation(
            strategy,
            [
                SimWorker(
                    replica, _batches(task, strategy, budget, workers, number, seed), _compute(task, replica)
                )
                for number, replica in enumerate(replicas)
            ],
            server_replicas=[_server(replicas[0]) for _ in meters[workers:]],
            network=network,
            compute=compute,
            seed=seed,
            observers=[_by_participant(meters)],
        )
        watch = Watch(simulation, replicas, budget, on_tick)
        simulation.run(stop=watch.is_over, on_step=watch.step)
        return _run(simulation, replicas, meters, watch)


def _replicas(task: Task, workers: int, seed: int) -> list[TorchReplica]:
    """Everybody starts with worker 0's values, as after a real `join`."""
    seed_model(seed)
    first = task.model()
    models = [first, *(copy.deepcopy(first) for _ in range(workers - 1))]
    return [TorchReplica(model, task.optimizer(model)) for model in models]


def _server(replica: TorchReplica) -> ServerReplica:
    return ServerReplica(replica.optimizer_spec(), replica.layout, replica.weights.clone())


def _batches(
    task: Task, strategy: Strategy, budget: Budget, workers: int, worker: int, seed: int
) -> Iterator[Slice]:
    """In lock-step everybody has the same number of them; otherwise the total says when to stop."""
    endless = simulated_batches(task, workers, worker, seed)
    return itertools.islice(endless, budget.steps) if strategy.synchronous else endless


def _compute(task: Task, replica: TorchReplica) -> Callable[[Slice], None]:
    def compute(step: Slice) -> None:
        indices, replica.samples = step
        replica.settle()
        replica.compute(lambda: task.loss(replica.model, task.batch(indices)))

    return compute


@final
class Watch:
    """Copies weights at every tick and says when the budget is used up.

    A tick's mean is made as soon as its last copy is there, so that the copies of a thousand
    workers don't pile up.
    """

    def __init__(
        self, simulation: Simulation, replicas: Sequence[TorchReplica], budget: Budget, on_tick: OnTick
    ) -> None:
        self.ticks: list[Tick] = []
        self.ended_ns = [0] * len(replicas)
        self._simulation, self._replicas, self._budget, self._on_tick = simulation, replicas, budget, on_tick
        self._lock_step = simulation.strategy.synchronous
        self._taken = [0] * len(replicas)
        self._copies: dict[int, dict[int, State]] = {}

    def step(self, me: Me, now_ns: int) -> None:
        """After a worker's step."""
        self.ended_ns[me.id] = now_ns
        for tick in range(self._taken[me.id], self._budget.ticks_after(self._seen(me))):
            self._take(tick, me, now_ns)

    def is_over(self, simulation: Simulation) -> bool:
        """For workers that are not in lock-step."""
        return not self._lock_step and simulation.total_samples >= self._budget.samples

    def _seen(self, me: Me) -> int:
        return self._budget.samples_after(me.steps) if self._lock_step else self._simulation.total_samples

    def _take(self, tick: int, me: Me, now_ns: int) -> None:
        replica, copies = self._replicas[me.id], self._copies.setdefault(tick, {})
        if not copies:
            self._on_tick(me.steps, now_ns)
        replica.settle()
        copies[me.id] = {name: value.clone() for name, value in live_state(replica.model).items()}
        self._taken[me.id] = tick + 1
        if len(copies) == len(self._replicas):
            mean = mean_state(copies[worker] for worker in sorted(copies))
            self.ticks.append(Tick(now_ns / 1e9, mean))
            del self._copies[tick]


def _run(
    simulation: Simulation, replicas: Sequence[TorchReplica], meters: Sequence[Meter], watch: Watch
) -> Run:
    for replica in replicas:
        replica.settle()
    reports = [
        Report(0, ended_ns, meter.steps, meter.samples, meter.bytes_sent, meter.waited_ns, meter.staleness)
        for ended_ns, meter in zip(watch.ended_ns, meters, strict=False)
    ]
    return Run(
        ticks=watch.ticks,
        final=_consolidated(simulation, replicas),
        weights=[flat_weights(replica.model) for replica in replicas],
        workers=reports,
        servers=[ServerReport(meter.staleness) for meter in meters[len(replicas) :]],
    )


def _consolidated(simulation: Simulation, replicas: Sequence[TorchReplica]) -> State:
    """As `fast.consolidate` makes it: the mean of the replicas, or the servers' weights."""
    steps = {worker.me.id: worker.me.steps for worker in simulation.workers}
    chosen = representatives(simulation.strategy, steps)
    state = mean_state(live_state(replicas[worker].model) for worker in chosen)
    if simulation.servers:
        weights = mean_of([server.me.weights for server in simulation.servers])
        for segment in replicas[0].layout.segments:
            if segment.name in state:
                state[segment.name].copy_(segment.of(weights))
    return state


def _by_participant(meters: Sequence[Meter]) -> Callable[[Record], None]:
    return lambda record: meters[record.who](record)
