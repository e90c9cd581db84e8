"""What runs inside real workers in the tests of what arrives after a worker's last step."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn

import fast
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.runtime.rendezvous import await_phase
from fast.trace import Dropped, Record
from fast.transport import Phase
from running import as_text

WIDTH, RATE = 6, 0.25


def gradient(worker: int, step: int) -> Tensor:
    """Whole numbers, and a rate of 1/4: their sums are exact in any order."""
    drawn = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randint(-50, 50, (WIDTH,), generator=drawn).double()


def after_all_of(steps: list[int]) -> Tensor:
    """Where plain SGD ends that begins at 0 and takes each of these gradients once, in one process."""
    weights = torch.zeros(WIDTH, dtype=torch.float64)
    for worker, count in enumerate(steps):
        for step in range(count):
            weights -= RATE * gradient(worker, step)
    return weights


class Weights(nn.Module):
    """Two parameters, so that a gradient can travel in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(WIDTH // 2, dtype=torch.float64))
        self.second = nn.Parameter(torch.zeros(WIDTH - WIDTH // 2, dtype=torch.float64))

    @property
    def flat(self) -> Tensor:
        return torch.cat([self.first, self.second])


def train(
    strategy: str,
    steps: list[int],
    *,
    alone: int = 0,
    consolidate: tuple[int, ...] = (),
    told: tuple[int, int] | None = None,
    outlive: int | None = None,
) -> dict[str, Any]:
    """Worker i takes `steps[i]` steps.

    The last worker takes its `alone` last ones after everybody else's last step, and when the worker `outlive` has
    left. Worker `told[0]` gets SIGTERM in the step `told[1]`.
    """
    seat, model, dropped = current_seat(), Weights(), list[str]()

    def look(record: Record) -> None:
        if isinstance(record, Dropped):
            dropped.append(record.why)

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    fast.join(model, optimizer, strategy, observers=[look])
    runtime = seat.sessions[-1].runtime
    others = range(seat.workers - 1)
    for step in range(steps[seat.id]):
        if seat.id not in others and steps[seat.id] - step == alone:
            await_phase(runtime.world, others, Phase.DONE, "last step")
            if outlive is not None:
                print(f"outlive {outlive}")
                await_phase(runtime.world, (outlive,), Phase.LEFT, "end")
        if told is not None and tuple(told) == (seat.id, step):
            os.kill(os.getpid(), signal.SIGTERM)
        (model.flat * gradient(seat.id, step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model) if seat.id in consolidate else None
    close_sessions(seat)
    return {
        "own": as_text(model.flat),
        "final": None if final is None else as_text(final.flat),
        "conserved": getattr(runtime.me.state, runtime.strategy.conserves or "nothing", None),
        "dropped": dropped,
    }
