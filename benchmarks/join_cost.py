"""What `fast.join` costs a single worker, against bare PyTorch in the same process.

Three rows per model. Joined with "allreduce", one worker's step is torch's own and a counter. The
second row runs all of the machinery for nothing: collect the gradient, a mean over one, apply it.
The third one keeps a log of it, as `fast run` does, with the loss of every step in it.
"""

from __future__ import annotations

import statistics
from contextvars import Context
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fast
import harness
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.runtime import Logbook
from fast.strategies.averaging import AllReduce
from fast.transport import ShmTransport, create_arenas
from harness import Times
from training_step import MODELS, batch, fresh, step

OURS, MACHINERY, LOGGED = "joined", "joined, all machinery", "all machinery, with a log"
BARE = "bare PyTorch"


def through() -> AllReduce:
    """`allreduce` whose program also runs on a worker without company."""
    strategy = AllReduce()
    strategy.identity_alone = False
    return strategy


def logged(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, context: Context
) -> None:
    """`step`, and its loss in the log of the seat of this context."""
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    context.run(fast.log, loss=loss)


def with_log(widths: list[int], folder: Path, context: Context) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Joined in a seat of its own that has a logbook in this folder."""
    (folder / "metrics").mkdir()
    seat = context.run(current_seat)
    seat.connect = lambda: ShmTransport(0, create_arenas(2))  # as workers of `fast run` have it
    seat.logbook = Logbook(folder, 0, "worker 0")
    return context.run(fast.join, *fresh(widths), through())


def contestants(widths: list[int], folder: Path, context: Context) -> dict[str, harness.Contestant]:
    """One step each. The joined ones belong to the current seat, the logged one to that of the context."""
    x, y = batch(widths, 0)
    return {
        BARE: partial(step, *fresh(widths), x, y),
        OURS: partial(step, *fast.join(*fresh(widths), "allreduce"), x, y),
        MACHINERY: partial(step, *fast.join(*fresh(widths), through()), x, y),
        LOGGED: partial(logged, *with_log(widths, folder, context), x, y, context),
    }


def worker(widths: list[int], repetitions: int, rounds: int, folder: str) -> Times:
    """The only worker."""
    context = Context()
    found = contestants(widths, Path(folder), context)
    times = harness.take_turns(found, repetitions=repetitions, rounds=rounds, meet=lambda: None)
    for seat in (current_seat(), context.run(current_seat)):
        close_sessions(seat)
        if seat.logbook is not None:
            seat.logbook.close()
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
            for ours, peer in ((OURS, BARE), (MACHINERY, BARE), (LOGGED, MACHINERY)):
                row = harness.compare(f"{model}, {ours}", times[ours], times[peer], peer, "us")
                extra = statistics.median(a - b for a, b in zip(times[ours], times[peer], strict=True)) * 1e6
                rows.append(row)
                remarks.append(f"{row.name}: {extra:+.1f} us a step, {100 * (1 / row.ratio - 1):+.1f} %")
    harness.report(rows, options.json)
    for remark in remarks:
        harness.note(remark)


if __name__ == "__main__":
    main()
