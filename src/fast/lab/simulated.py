"""One strategy on simulated workers: virtual time, real gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from fast.core import Strategy, Task
from fast.lab.batching import way_of
from fast.lab.budget import Budget
from fast.lab.crew import Replica, Slice, copied_state, crew_of, live_state_of, only_new_garbage
from fast.lab.data import simulated_batches
from fast.lab.measures import (
    Report,
    Run,
    State,
    flat_weights,
    mean_state,
    one_thread,
    replicas_kept,
)
from fast.lab.notebook import Notebook
from fast.lab.recording import records_for
from fast.lab.splits import Split, parse_split
from fast.lab.watching import (
    Enough,
    OnTick,
    SeenEnough,
    Watch,
    Watcher,
    in_step,
    last_step,
    take_over_servers,
)
from fast.runtime.gathering import representatives
from fast.sim import Cluster, ComputeModel, Network, Simulation, SimWorker
from fast.sim.checkers import Checkers
from fast.sim.faults import Director, Scenario
from fast.view import Groups


def simulate_task(
    task: Task,
    strategy: Strategy,
    *,
    workers: int,
    budget: Budget,
    cluster: Cluster | None = None,
    network: Network | None = None,
    compute: ComputeModel | None = None,
    seed: int = 0,
    rate: float = 1.0,
    split: Split | None = None,
    on_tick: OnTick = lambda steps, now_ns: None,
    enough: Enough = lambda tick: False,
    scenario: Scenario | None = None,
    checkers: Checkers | None = None,
    gradients: str = "exact",
    groups: Groups | None = None,
) -> Run:
    """Train a task with one strategy on this many simulated workers, with one torch thread.

    `scenario` is what goes wrong; `checkers` watch, and raise where a promise is broken. `gradients`:
    exact (one by one, the bits of real workers), together, or auto (see `lab.batching`). `enough` may end the
    run at a tick, such as a `lab.judging.Goal` that is reached: the ticks up to it are those of a whole run.
    `groups`: in which order sums are made; None for the workers of each host as a group.
    """
    with one_thread():
        together = way_of(gradients, task, strategy, workers).together
        crew = crew_of(task, workers, seed=seed, rate=rate, together=together)
        replicas = crew.replicas
        shares = (split or parse_split("iid")).assign(task, workers, seed)
        watchers = _watchers(workers, strategy.servers(workers))
        agreed: list[int] = []

        def batches(worker: int) -> Iterator[Slice]:
            """In lock-step those of each step; otherwise the total says when to stop, or the time."""
            endless = simulated_batches(task, shares, workers, worker, seed)
            if not strategy.synchronous:
                return endless
            return in_step(endless, lambda: simulation.me(worker).steps, last_step(budget, agreed))

        simulation = Simulation(
            strategy,
            [
                SimWorker(replica, batches(number), crew.compute(number))
                for number, replica in enumerate(replicas)
            ],
            server_replicas=crew.servers(strategy),
            cluster=Cluster.of(cluster, network=network, compute=compute),
            seed=seed,
            observers=[
                lambda record: watchers[record.who].notebook.keep(record),
                *([checkers] if checkers is not None else []),
            ],
            faults=None if scenario is None else Director(scenario, seed),
            absent=() if scenario is None else scenario.absent,
            spoil_letters=checkers is not None,
            gradients=crew.gradients,
            groups=groups,
        )
        watch = Watch(simulation, replicas, watchers, budget, agreed, on_tick, enough)
        calm = only_new_garbage() if together else nullcontext()
        with suppress(SeenEnough), calm:
            with _watching(simulation, checkers) as after_event:
                simulation.run(stop=watch.is_over, on_step=watch.step, after_event=after_event)
            watch.finish()
        return _run(simulation, replicas, watchers, watch)


@contextmanager
def _watching(
    simulation: Simulation, checkers: Checkers | None
) -> Iterator[Callable[[Simulation], None] | None]:
    """Let checkers see everything, also the end if it comes in order."""
    if checkers is None:
        yield None
        return
    checkers.attach(simulation)
    yield checkers.after_event
    checkers.finish()


def _watchers(workers: int, servers: int) -> list[Watcher]:
    names = [f"worker {number}" for number in range(workers)]
    names += [f"server {number}" for number in range(servers)]
    limit = records_for(len(names))
    return [Watcher(Report(name), Notebook(name, limit)) for name in names]


def _run(
    simulation: Simulation, replicas: Sequence[Replica], watchers: Sequence[Watcher], watch: Watch
) -> Run:
    for replica in replicas:
        replica.settle()
    reports = [watcher.finished() for watcher in watchers]
    return Run(
        ticks=watch.ticks,
        final=_consolidated(simulation, replicas),
        weights=[flat_weights(replicas[worker].model) for worker in _there(simulation)],
        workers=reports[: len(replicas)],
        servers=reports[len(replicas) :],
        replicas={worker: copied_state(replicas[worker]) for worker in replicas_kept(_there(simulation))},
    )


def _there(simulation: Simulation) -> list[int]:
    """Whose replicas still exist: those of the dead don't, and some never came."""
    return [worker.me.id for worker in simulation.workers if not worker.dead and not worker.absent]


def _consolidated(simulation: Simulation, replicas: Sequence[Replica]) -> State:
    """As `fast.consolidate` makes it: the mean of the replicas, or the servers' weights."""
    steps = {worker: simulation.me(worker).steps for worker in _there(simulation)}
    chosen = representatives(simulation.strategy, steps)
    state = mean_state(live_state_of(replicas[worker]) for worker in chosen)
    take_over_servers(state, simulation, replicas[0])
    return state
