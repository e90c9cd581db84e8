"""Lock-step under a budget of time: at which step everybody takes a tick, and which is the last."""

from __future__ import annotations

from typing import final

import torch

from fast.lab.budget import Budget
from fast.transport import Transport

AHEAD = 2
"""Steps between the decision and the step it is for. By then everybody has heard of it: nobody takes
two steps while worker 0 reads how far all of them are and writes the answer down."""
_NAME = "steps of ticks"


@final
class AgreedTicks:
    """Worker 0's clock says that a tick has passed; all copy their weights after the same step, and
    all stop after the same step, as they do under a budget of samples."""

    def __init__(self, transport: Transport, workers: int, budget: Budget) -> None:
        self._transport, self._workers, self._budget = transport, workers, budget
        self._steps = torch.zeros(budget.ticks, dtype=torch.int64)
        self._decided = self._passed = 0

    def __call__(self, seen: int, steps: int, elapsed_ns: int) -> int:
        """How many ticks this worker has passed."""
        if self._transport.id == 0:
            self._decide(self._budget.ticks_after(seen, elapsed_ns))
        told = self._transport.peek(0, _NAME)
        if told is not None:
            agreed = told.view(torch.int64)
            while self._passed < self._budget.ticks and 0 < int(agreed[self._passed]) <= steps:
                self._passed += 1
        return self._passed

    def _decide(self, due: int) -> None:
        if due > self._decided:
            farthest = max(self._transport.status(worker).steps for worker in range(self._workers))
            self._steps[self._decided : due] = farthest + AHEAD
            self._decided = due
            self._transport.publish(_NAME, self._steps)
