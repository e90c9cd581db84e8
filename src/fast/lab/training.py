"""The bodies of a real worker and a real server: the public loop, and copies at every tick."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import msgspec
import torch

from fast.core import Me, Strategy, Task
from fast.core.seeds import gradient_seed
from fast.engine import current_seat
from fast.errors import FastError
from fast.lab.agreeing import AgreedTicks
from fast.lab.budget import Budget
from fast.lab.copying import Copies, Flat, Ticker, save
from fast.lab.data import batches_of
from fast.lab.measures import Report, State, live_state, scale_rate, seed_model
from fast.lab.notebook import Notebook
from fast.lab.splits import parse_split
from fast.lab.tasks import load_task
from fast.loop import consolidate, join, serving
from fast.loop.loading import strategy_from
from fast.loop.session import Session, close_sessions
from fast.runtime import Stopped, WorkerRuntime
from fast.sim import parse_straggler
from fast.transport import Phase, Transport

CONSOLIDATED = "consolidated.safetensors"


def copies_file(name: str) -> str:
    """Where a participant leaves its copies."""
    return f"copies of {name}.safetensors"


def replica_file(name: str) -> str:
    """Where a worker leaves its own replica as it ended."""
    return f"replica of {name}.safetensors"


def _cloned(state: State) -> State:
    """Tied parameters share their memory, which a file can't."""
    return {name: value.clone() for name, value in state.items()}


class Orders(msgspec.Struct):
    """What every worker of a run is told, as plain values."""

    task: str
    strategy: str
    seed: int
    budget: Budget
    folder: str
    rate: float = 1.0
    split: str = "iid"
    pace_s: float | None = None
    straggler: str | None = None
    """Who is slower than the others, in the words of the simulator."""
    metrics: str | None = None
    """The file to which every tick is told, and the name of the run there."""
    run: str = ""

    def ticker(self, who: str) -> Ticker | None:
        return None if self.metrics is None else Ticker(self.metrics, self.run, who)


def train(orders: dict[str, Any]) -> Report:
    """Train one replica. Copies and final weights go into the folder, figures come back."""
    seat, told = current_seat(), msgspec.convert(orders, Orders)
    task, strategy = load_task(told.task), strategy_from(told.strategy)
    shares = parse_split(told.split).assign(task, seat.workers, told.seed)
    warm_up(task)
    seed_model(told.seed)
    model = task.model()
    optimizer = task.optimizer(model)
    scale_rate(optimizer, told.rate)
    report = Report(f"worker {seat.id}")
    notebook = Notebook(report.name)
    join(model, optimizer, strategy, observers=[notebook.collect])
    session: Session = seat.sessions[-1]
    session.remarks = None  # the report has it all
    copies = Copies(
        lambda: live_state(model),
        told.budget,
        report,
        notebook,
        told.ticker(report.name),
        _flat(session.runtime),
        _agreed(session.runtime, strategy, told.budget),
    )
    pace = _pace(told, _sleeper(session.runtime, strategy))
    training = Training(task, strategy, session, copies, pace, told.seed)
    try:
        training.run(batches_of(task, shares, seat.id, told.seed))
        final = consolidate(model)
    except Stopped:
        raise FastError("it was told to stop, and a comparison needs all its workers until the end") from None
    report.take(notebook)
    report.peak_memory_bytes = peak_memory_bytes(copies.nbytes)
    if session.runtime is None:  # alone: nobody to talk to, and nothing is observed
        report.computed_ns = report.ended_ns - report.started_ns
    folder = Path(told.folder)
    save(copies.rows, folder / copies_file(report.name))
    save(_cloned(live_state(model)), folder / replica_file(report.name))
    if seat.id == 0:
        save(_cloned(live_state(final)), folder / CONSOLIDATED)
    close_sessions(seat)
    return report


def serve(strategy: str, number: int, orders: dict[str, Any]) -> Report:
    """Serve, and measure. In lock-step the workers' own copies are the server's weights, and of the
    same step everywhere; otherwise the server's copies are the model."""
    seat, told = current_seat(), msgspec.convert(orders, Orders)
    report = Report(f"server {number}", time.monotonic_ns())
    notebook = Notebook(report.name)
    watch = ServerWatch(seat.workers, told.budget, report, notebook, told.ticker(report.name))
    chosen = strategy_from(strategy)
    report.owns_weights, report.owns_shard = not chosen.synchronous, chosen.sharded
    serving.serve(
        strategy,
        number,
        observers=[notebook.collect],
        after_turn=watch.after_turn,
    )
    report.ended_ns = time.monotonic_ns()
    report.take(notebook)
    report.peak_memory_bytes = peak_memory_bytes(watch.copies.nbytes if watch.copies else 0)
    if watch.copies is not None:
        save(watch.copies.rows, Path(told.folder) / copies_file(report.name))
    return report


@dataclass(frozen=True)
class Training:
    """A worker's loop and what it needs."""

    task: Task
    strategy: Strategy
    session: Session
    copies: Copies
    pace: Pace
    seed: int

    def run(self, batches: Any) -> None:
        """Until the budget of all workers together is used up."""
        task, model, optimizer = self.task, self.session.model, self.session.optimizer
        report, runtime, seen_after = self.copies.report, self.session.runtime, self._seen_after()
        report.started_ns = time.monotonic_ns()
        if runtime is not None:
            runtime.me.account.begin()  # what came before, such as room for the copies, was no computing
        self.pace.begin()
        for batch in batches:
            if runtime is None:  # joined workers have been seeded by `join` and `step`
                torch.default_generator.manual_seed(gradient_seed(self.seed, 0, report.steps))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            self.pace.keep()
            optimizer.step()
            self.pace.begin()
            optimizer.zero_grad()
            report.steps += 1
            seen = seen_after(report.steps)
            report.samples = seen if runtime is None else runtime.samples
            if self.copies.take(seen, report.samples, report.steps):
                break
        report.ended_ns = time.monotonic_ns()
        report.paced_steps = self.pace.exceeded

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


@final
class Pace:
    """Makes every step's computing take a fixed time, by sleeping the rest of it.

    Workers that share a core then wait for it in their sleep, and the ratios between strategies
    are those of workers with a core each, as long as computing takes less than the pace.

    Where a straggler is slow, its pace is so many times as long; without a pace it sleeps so much
    longer than it has computed. `slowness` says by how much, step by step; `sleep` may return early.
    """

    def __init__(
        self,
        pace_s: float | None,
        slowness: Callable[[int], float] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pace_ns = None if pace_s is None else round(pace_s * 1e9)
        self._slowness, self._sleep = slowness, sleep
        self._since_ns = self._step = 0
        self.exceeded = 0

    def begin(self) -> None:
        if self._pace_ns is not None or self._slowness is not None:
            self._since_ns = time.monotonic_ns()

    def keep(self) -> None:
        if self._pace_ns is None and self._slowness is None:
            return
        left_ns = self._left_ns(time.monotonic_ns() - self._since_ns)
        self._step += 1
        if left_ns > 0:
            self._sleep(left_ns / 1e9)
        elif self._pace_ns is not None:
            self.exceeded += 1

    def _left_ns(self, took_ns: int) -> float:
        factor = 1.0 if self._slowness is None else self._slowness(self._step)
        usual_ns = took_ns if self._pace_ns is None else self._pace_ns
        return usual_ns * factor - took_ns


def _sleeper(runtime: WorkerRuntime | None, strategy: Strategy) -> Callable[[float], None]:
    """How a paced step sleeps: where it can be overtaken, no longer than until it is."""
    tag = strategy.overtaken_by
    return time.sleep if runtime is None or not tag else lambda seconds: runtime.world.doze(seconds, tag)


def _pace(told: Orders, sleep: Callable[[float], None]) -> Pace:
    """Who is slow in which step is drawn as in the simulator, so that both worlds agree on it."""
    if told.straggler is None:
        return Pace(told.pace_s, sleep=sleep)
    straggler, seat = parse_straggler(told.straggler), current_seat()

    def slowness(step: int) -> float:
        return straggler.factor if straggler.slows(seat.id, seat.workers, step, told.seed) else 1.0

    return Pace(told.pace_s, slowness, sleep)


@final
class ServerWatch:
    """Copies a server's weights at its first turn boundary after every tick."""

    def __init__(
        self, workers: int, budget: Budget, report: Report, notebook: Notebook, ticker: Ticker | None
    ) -> None:
        self.copies: Copies | None = None
        self._workers, self._budget, self._report = workers, budget, report
        self._notebook, self._ticker = notebook, ticker

    def after_turn(self, me: Me, transport: Transport) -> None:
        if self.copies is None:  # before the first turn, and before the workers' clocks start
            flat = Flat(me.weights, me.replica.layout)
            live = {segment.name: segment.of(me.weights) for segment in flat.layout.segments}
            self.copies = Copies(lambda: live, self._budget, self._report, self._notebook, self._ticker, flat)
            self._report.started_ns = time.monotonic_ns()
        if all(transport.phase(worker) >= Phase.DONE for worker in range(self._workers)):
            self.copies.finish(me.version)
            return
        seen = sum(transport.status(worker).samples for worker in range(self._workers))
        self.copies.take(seen, 0, me.version)


def _agreed(runtime: WorkerRuntime | None, strategy: Strategy, budget: Budget) -> AgreedTicks | None:
    """Where the clock decides and workers go in lock-step, they have to agree."""
    if runtime is None or not strategy.synchronous or budget.seconds is None:
        return None
    return AgreedTicks(runtime.transport, len(runtime.world.start_view.workers), budget)


def _flat(runtime: WorkerRuntime | None) -> Flat | None:
    """The flat weights of a worker that has joined others."""
    return None if runtime is None else Flat(runtime.replica.weights, runtime.replica.layout)


def warm_up(task: Task) -> None:
    """A gradient that nobody counts, so that no strategy pays for torch's first steps."""
    model = task.model()
    optimizer = task.optimizer(model)
    batch = task.batch(range(min(task.batch_size, len(task.train()))))
    for _ in range(2):
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def peak_memory_bytes(copies_bytes: int) -> int | None:
    """The most memory that this process has held, torch included, without the lab's copies."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return max(0, int(line.split()[1]) * 1024 - copies_bytes)
    return None
