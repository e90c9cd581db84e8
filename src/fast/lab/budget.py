"""The budget of a run: how many samples all workers together may see."""

from __future__ import annotations

from dataclasses import dataclass

from fast.core import Task
from fast.errors import UsageError

TICKS = 50
"""So often in a run everybody copies its weights."""
_COPIES_BYTES = 256 << 20
"""What the copies of one worker may take; a larger model is copied less often."""


@dataclass(frozen=True)
class Budget:
    """Training ends when all workers together have seen `samples` samples.

    Workers in lock-step all take the same number of steps, which follows from the budget. The
    others look at the total after each step, so that a fast worker may take the steps of a slow one.
    """

    samples: int
    epoch_samples: int
    step_samples: int
    """Of all workers together, in a whole step."""
    ticks: int = TICKS

    @staticmethod
    def of(task: Task, workers: int, epochs: float, weights_bytes: int = 0) -> Budget:
        """So many passes over the task's training data."""
        size = len(task.train())
        if size < 1:
            raise UsageError(f"{type(task).__name__}.train() has no samples, so there is nothing to train on")
        if not 0 < epochs < float("inf"):
            raise UsageError(f"{epochs:g} epochs can't be trained; give a number larger than 0")
        ticks = max(1, min(TICKS, _COPIES_BYTES // max(1, weights_bytes)))
        return Budget(max(1, round(epochs * size)), size, workers * task.batch_size, ticks)

    @property
    def steps(self) -> int:
        """How many steps each worker takes in lock-step. The last step of an epoch may be short."""
        epochs, rest = divmod(self.samples, self.epoch_samples)
        return epochs * self._epoch_steps + -(-rest // self.step_samples)

    @property
    def _epoch_steps(self) -> int:
        return -(-self.epoch_samples // self.step_samples)

    def samples_after(self, steps: int) -> int:
        """Samples that all workers have seen after this many steps in lock-step."""
        epochs, rest = divmod(steps, self._epoch_steps)
        return epochs * self.epoch_samples + rest * self.step_samples

    def ticks_after(self, samples: int) -> int:
        """How many ticks have passed when this many samples have been seen."""
        return min(self.ticks, samples * self.ticks // self.samples)
