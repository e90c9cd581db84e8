"""A task whose workers are told to stop while they train."""

from __future__ import annotations

import os
import signal

from torch import Tensor, nn

from fast.engine import current_seat
from fast.lab.tasks.quadratic import Batch, Quadratic


class Stopping(Quadratic):  # type: ignore[misc]
    """Worker 1 gets SIGTERM while it computes its first gradient, once it has joined."""

    name = "stopping"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        seat = current_seat()
        if seat.id == 1 and seat.sessions and seat.sessions[-1].runtime.me.steps == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().loss(model, batch)
