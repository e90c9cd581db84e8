"""What measuring costs: a step that the lab observes, against the same step unobserved.

Measured, a step is reported to a meter and a recorder, and every eighth one the weights are copied,
as in a comparison of 400 steps with 50 ticks. Both contestants are the same joined workers: the
observers come and go between the blocks.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import torch.distributed as dist

import fast
import harness
from fast.engine import LocalEngine, current_seat
from fast.lab.budget import Budget
from fast.lab.copying import Copies
from fast.lab.measures import Report, live_state
from fast.lab.recording import Recorder
from fast.loop.session import Session, close_sessions
from fast.trace import Meter
from harness import Contestant, Row, Times
from training_step import BATCH, MODELS, batch, fresh, step

WORKERS = 2
STRATEGIES = ("allreduce", "torus")
MEASURED, UNMEASURED = "measured", "not measured"
STEPS, TICKS = 400, 50


class Measured:
    """A step as the lab measures it; one comparison of `STEPS` steps after another."""

    def __init__(self, take_step: Contestant, session: Session) -> None:
        assert session.runtime is not None, "with one worker there is nothing to observe"
        self._step, self._runtime = take_step, session.runtime
        everybodys = BATCH * current_seat().workers
        self._budget = Budget(STEPS * everybodys, everybodys, everybodys, TICKS)
        self._report, meter = Report("worker"), Meter()
        live, tell = live_state(session.model), current_seat().tell
        self._copies = Copies(live, self._budget, self._report, meter, tell)
        self._begin()

    def _begin(self) -> None:
        """A new comparison, in the same memory."""
        for noted in (self._report.tick_ns, self._report.tick_samples, self._report.tick_bytes):
            noted.clear()
        self._steps, self._observers = 0, (Meter(), Recorder("worker"))
        self._runtime.world.observe(self._observers)

    def __call__(self) -> None:
        if not self._runtime.world.observed:  # the first step after those that weren't measured
            self._runtime.world.observe(self._observers)
        self._step()
        self._steps += 1
        seen = self._budget.samples_after(self._steps)
        if self._copies.take(seen, self._runtime.samples, self._steps):
            self._begin()


class Unmeasured:
    """The same step, reported to nobody."""

    def __init__(self, take_step: Contestant, session: Session) -> None:
        assert session.runtime is not None, "with one worker there is nothing to observe"
        self._step, self._world = take_step, session.runtime.world

    def __call__(self) -> None:
        if self._world.observed:
            self._world.observe(())
        self._step()


def worker(strategy: str, widths: list[int], repetitions: int, rounds: int, folder: str) -> Times:
    """One worker of the contest for one model and strategy."""
    seat = current_seat()
    x, y = batch(widths, seat.id)
    with harness.gloo(folder):
        take_step = partial(step, *fast.join(*fresh(widths), strategy), x, y)
        session: Session = seat.sessions[-1]
        contestants = {
            MEASURED: Measured(take_step, session),
            UNMEASURED: Unmeasured(take_step, session),
        }
        times = harness.take_turns(contestants, repetitions=repetitions, rounds=rounds, meet=dist.barrier)
        dist.barrier()
        close_sessions(seat)
    return times


def contest(engine: LocalEngine, strategy: str, model: str, *, repetitions: int) -> tuple[Row, str]:
    """The row, and a remark on what a step costs more and how far the repetitions are apart."""
    widths = MODELS[model]
    times = harness.run(
        engine,
        WORKERS,
        "measuring:worker",
        strategy=strategy,
        widths=widths,
        repetitions=repetitions,
        rounds=16 if max(widths) > 100 else 80,  # whole eights, so that every block has its copies
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
