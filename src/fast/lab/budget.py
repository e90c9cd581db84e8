"""The budget of a run: how many samples all workers together may see, or how long they may take."""

from __future__ import annotations

from dataclasses import dataclass

from fast.core import Task
from fast.errors import UsageError
from fast.lab.tasks import samples_of

TICKS = 50
"""So often in a run everybody copies its weights, unless told otherwise."""
_COPIES_BYTES = 512 << 20
"""What the copies of one worker may take; a larger model is copied less often."""


@dataclass(frozen=True)
class Budget:
    """Training ends when all workers together have seen `samples` samples, or after `seconds`.

    Workers in lock-step all take the same number of steps, which follows from the budget. The
    others look at the total after each step, so that a fast worker may take the steps of a slow
    one. A budget of time ends each worker's training at its first step boundary after it.
    """

    samples: int
    epoch_samples: int
    step_samples: int
    """Of all workers together, in a whole step."""
    ticks: int = TICKS
    seconds: float | None = None
    """If given, it alone decides; `samples` is then without meaning."""
    whole_steps: bool = False
    """Whether every step has all its samples: workers with data of their own never run out of it."""

    @staticmethod
    def of(
        task: Task,
        workers: int,
        epochs: float,
        weights_bytes: int = 0,
        *,
        ticks: int = TICKS,
        seconds: float | None = None,
        whole_steps: bool = False,
    ) -> Budget:
        """So many passes over the task's training data, or so many seconds."""
        size = samples_of(task)
        if not 0 < epochs < float("inf"):
            raise UsageError(f"{epochs:g} epochs can't be trained; give a number larger than 0")
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"{seconds:g} seconds can't be trained; give a number larger than 0")
        if ticks < 1:
            raise UsageError(f"{ticks} ticks: a run needs at least 1, its end")
        affordable = max(1, min(ticks, _COPIES_BYTES // max(1, weights_bytes)))
        samples = max(1, round(epochs * size))
        return Budget(samples, size, workers * task.batch_size, affordable, seconds, whole_steps)

    # In lock-step

    @property
    def steps(self) -> int:
        """How many steps each worker takes in lock-step. The last step of an epoch may be short."""
        if self.whole_steps:
            return -(-self.samples // self.step_samples)
        epochs, rest = divmod(self.samples, self.epoch_samples)
        return epochs * self._epoch_steps + -(-rest // self.step_samples)

    @property
    def _epoch_steps(self) -> int:
        return -(-self.epoch_samples // self.step_samples)

    def samples_after(self, steps: int) -> int:
        """Samples that all workers have seen after this many steps in lock-step."""
        if self.whole_steps:
            return steps * self.step_samples
        epochs, rest = divmod(steps, self._epoch_steps)
        return epochs * self.epoch_samples + rest * self.step_samples

    # Where a run is

    def ticks_after(self, samples: int, elapsed_ns: int = 0) -> int:
        """How many ticks have passed when this many samples have been seen, after this time."""
        if self.seconds is not None:
            return min(self.ticks, int(elapsed_ns * self.ticks // (self.seconds * 1e9)))
        return min(self.ticks, samples * self.ticks // self.samples)

    def samples_at(self, tick: int) -> int:
        """The fewest samples after which this many ticks have passed."""
        return -(-tick * self.samples // self.ticks)

    def is_over(self, samples: int, elapsed_ns: int = 0) -> bool:
        if self.seconds is not None:
            return elapsed_ns >= self.seconds * 1e9
        return samples >= self.samples
