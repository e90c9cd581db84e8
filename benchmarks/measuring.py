"""What measuring costs: a step that the lab observes, against the same step unobserved.

Measured, a step's records are written down, and at every tick the weights are copied and a line is
added to the metrics, as often as a comparison does it. Both contestants are the same joined workers: the
observers come and go between the blocks.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch.distributed as dist

import fast
import harness
from fast.engine import LocalEngine, current_seat
from fast.lab.budget import Budget
from fast.lab.copying import Copies, Flat, Ticker
from fast.lab.measures import Report, live_state
from fast.lab.notebook import Notebook
from fast.loop.session import Session, close_sessions
from harness import Contestant, Row, Times
from training_step import BATCH, MODELS, batch, fresh, step

WORKERS = 2
STRATEGIES = ("allreduce", "torus")
MEASURED, UNMEASURED = "measured", "not measured"
STEPS_PER_TICK = {"1.9 M MLP": 128, "64-64-10 MLP": 16}
"""As in `fast compare` with two workers and 50 ticks: 137 steps on mnist-wide, 17 on digits."""


class Measured:
    """A step as the lab measures it."""

    def __init__(self, take_step: Contestant, session: Session, steps: int, ticks: int, folder: str) -> None:
        assert session.runtime is not None, "with one worker there is nothing to observe"
        self._step, self._runtime, self._steps = take_step, session.runtime, 0
        everybodys = BATCH * current_seat().workers
        self._budget = Budget(steps * everybodys, everybodys, everybodys, ticks)
        metrics = Path(folder) / f"metrics-{current_seat().id}.jsonl"
        metrics.touch()
        notebook, ticker = Notebook("worker"), Ticker(str(metrics), "run", "worker")
        flat = Flat(session.runtime.replica.weights, session.runtime.replica.layout)
        model = session.model
        self._copies = Copies(
            lambda: live_state(model), self._budget, Report("worker"), notebook, ticker, flat
        )
        self._observers = (notebook.collect,)

    def __call__(self) -> None:
        if not self._runtime.world.observed:  # the first step after those that weren't measured
            self._runtime.world.observe(self._observers)
        self._step()
        self._steps += 1
        self._copies.take(self._budget.samples_after(self._steps), self._runtime.samples, self._steps)


class Unmeasured:
    """The same step, reported to nobody; that the budget isn't used up yet must be known all the same."""

    def __init__(self, take_step: Contestant, session: Session, steps: int) -> None:
        assert session.runtime is not None, "with one worker there is nothing to observe"
        self._step, self._world, self._steps = take_step, session.runtime.world, 0
        everybodys = BATCH * current_seat().workers
        self._budget = Budget(steps * everybodys, everybodys, everybodys)

    def __call__(self) -> None:
        if self._world.observed:
            self._world.observe(())
        self._step()
        self._steps += 1
        self._budget.is_over(self._budget.samples_after(self._steps))


def worker(strategy: str, model: str, repetitions: int, rounds: int, folder: str) -> Times:
    """One worker of the contest for one model and strategy."""
    seat, widths = current_seat(), list(MODELS[model])
    x, y = batch(widths, seat.id)
    steps = repetitions * (rounds + 1) + 1
    with harness.gloo(folder):
        take_step = partial(step, *fast.join(*fresh(widths), strategy), x, y)
        session: Session = seat.sessions[-1]
        contestants = {
            MEASURED: Measured(take_step, session, steps, steps // STEPS_PER_TICK[model], folder),
            UNMEASURED: Unmeasured(take_step, session, steps),
        }
        times = harness.take_turns(contestants, repetitions=repetitions, rounds=rounds, meet=dist.barrier)
        dist.barrier()
        close_sessions(seat)
    return times


def contest(engine: LocalEngine, strategy: str, model: str, *, repetitions: int) -> tuple[Row, str]:
    """The row, and a remark on what a step costs more and how far the repetitions are apart."""
    rounds = max(64, STEPS_PER_TICK[model])  # so that every block has its copies
    times = harness.run(
        engine,
        WORKERS,
        "measuring:worker",
        strategy=strategy,
        model=model,
        repetitions=max(3, repetitions * 64 // rounds // (4 if rounds > 64 else 1)),
        rounds=rounds,
    )
    ours, bare = times[MEASURED], times[UNMEASURED]
    row = harness.compare(f"{model}, {strategy}", ours, bare, UNMEASURED, "us")
    extra_us = statistics.median(a - b for a, b in zip(ours, bare, strict=True)) * 1e6
    shares = [100 * (a / b - 1) for a, b in zip(ours, bare, strict=True)]
    return row, f"{row.name}: {extra_us:+.1f} us a step, {_spread(shares)}"


def _spread(shares: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(shares, n=4)
    return f"{middle:+.1f} %; half of the repetitions between {low:+.1f} and {high:+.1f} %"


def main() -> None:
    options = harness.options(__doc__)
    repetitions = 20 if options.quick else 100
    with harness.engine() as engine:
        results = [
            contest(engine, strategy, model, repetitions=repetitions)
            for model in MODELS
            for strategy in STRATEGIES
        ]
    harness.report([row for row, _ in results], options.json)
    for _, remark in results:
        harness.note(remark)


if __name__ == "__main__":
    main()
