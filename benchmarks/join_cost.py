"""What `fast.join` costs a single worker, against bare PyTorch in the same process.

Two rows per model. Joined with "allreduce", one worker's step is torch's own and a counter. The
second row runs all of the machinery for nothing: collect the gradient, a mean over one, apply it.
"""

from __future__ import annotations

import statistics
from functools import partial

import fast
import harness
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.strategies.averaging import AllReduce
from harness import Times
from training_step import MODELS, batch, fresh, step

OURS, MACHINERY, BARE = "joined", "joined, all machinery", "bare PyTorch"


def through() -> AllReduce:
    """`allreduce` whose program also runs on a worker without company."""
    strategy = AllReduce()
    strategy.identity_alone = False
    return strategy


def contestants(widths: list[int]) -> dict[str, harness.Contestant]:
    """One step each. The joined ones belong to the current seat."""
    x, y = batch(widths, 0)
    return {
        BARE: partial(step, *fresh(widths), x, y),
        OURS: partial(step, *fast.join(*fresh(widths), "allreduce"), x, y),
        MACHINERY: partial(step, *fast.join(*fresh(widths), through()), x, y),
    }


def worker(widths: list[int], repetitions: int, rounds: int, folder: str) -> Times:
    """The only worker; `folder` isn't needed."""
    times = harness.take_turns(contestants(widths), repetitions=repetitions, rounds=rounds, meet=lambda: None)
    close_sessions(current_seat())
    return times


def main() -> None:
    options = harness.options(__doc__)
    repetitions = 30 if options.quick else 120
    rows, remarks = [], []
    with harness.engine() as engine:
        for model, widths in MODELS.items():
            rounds = 8 if max(widths) > 100 else 50  # short blocks: a slow moment hits both
            times = harness.run(
                engine, 1, "join_cost:worker", widths=widths, repetitions=repetitions, rounds=rounds
            )
            for ours in (OURS, MACHINERY):
                row = harness.compare(f"{model}, {ours}", times[ours], times[BARE], BARE, "us")
                extra = statistics.median(a - b for a, b in zip(times[ours], times[BARE], strict=True)) * 1e6
                rows.append(row)
                remarks.append(f"{row.name}: {extra:+.1f} us a step, {100 * (1 / row.ratio - 1):+.1f} %")
    harness.report(rows, options.json)
    for remark in remarks:
        harness.note(remark)


if __name__ == "__main__":
    main()
