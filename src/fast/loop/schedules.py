"""Learning-rate schedules that were sized from the whole loader, and so end in the middle.

With P workers an epoch of `fast.shard(loader)` has about a P-th of the steps of `loader`. A schedule of
`epochs * len(loader)` steps then stops after a P-th of its way. How many epochs there will be is known at the end only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, SequentialLR

_TOTALS = ("total_steps", "T_max", "total_iters")
"""Where schedulers keep the number of steps after which they are at their end."""
_SEEN = 3
"""Number of steps after which it is known which schedulers move with every step."""


@dataclass
class _Lengths:
    plain: int
    """Batches of the loader itself."""
    sharded: int
    """Steps of each worker."""
    passes: int = 0


Judge = Callable[[int, _Lengths], int]
"""The epochs that a schedule of so many steps was meant for, if it ends wrong; else 0."""


@final
class Schedules:
    """Those of one optimizer."""

    def __init__(self, optimizer: Optimizer, workers: int) -> None:
        self._optimizer, self._workers = optimizer, workers
        self._lengths: dict[int, _Lengths] = {}

    def pass_begins(self, data: object, plain: int, sharded: int) -> None:
        self._lengths.setdefault(id(data), _Lengths(plain, sharded)).passes += 1

    def stepped(self, steps: int) -> str | None:
        """After a step, before the schedulers' own: what is wrong, if that is certain already."""
        return self._first_in_words(steps, self._early) if steps == _SEEN else None

    def ended(self, steps: int) -> str | None:
        """After the last step: what was wrong."""
        return self._first_in_words(steps, partial(self._late, steps)) if steps >= _SEEN else None

    def _first_in_words(self, steps: int, judge: Judge) -> str | None:
        """Only where all passes of the training go over one set of data is it known how long an epoch is."""
        if len(self._lengths) != 1:
            return None
        (known,) = self._lengths.values()
        for scheduler in _attached(self._optimizer):
            total = _total(scheduler)
            moves = scheduler.last_epoch in (steps - 1, steps)  # with every step
            epochs = judge(total, known) if total and moves else 0
            if epochs:
                return (
                    f"{type(scheduler).__name__} ends after {total} steps, which are {epochs} x len(loader), but with "
                    f"{self._workers} workers {epochs} epoch{'s' * (epochs > 1)} of fast.shard(loader) have only "
                    f"{epochs * known.sharded} steps: the schedule stops in the middle. Make it from "
                    "len(fast.shard(loader))."
                )
        return None

    @staticmethod
    def _early(total: int, known: _Lengths) -> int:
        """A total that is a multiple of the loader's length and not of the shard's, and not a round number that
        somebody may have written down."""
        multiple = total % known.plain == 0 and total % known.sharded != 0
        return 0 if not multiple or _is_round(total) else total // known.plain

    @staticmethod
    def _late(steps: int, total: int, known: _Lengths) -> int:
        """A total of exactly the epochs that there were, of which each took as many steps as gradients were not
        accumulated."""
        epochs = known.passes
        accumulated = max(1, round(epochs * known.sharded / steps))
        totals = (epochs * (known.plain // accumulated), epochs * known.plain // accumulated)
        return epochs if total > steps and known.plain > known.sharded and total in totals else 0


def _attached(optimizer: Optimizer) -> list[LRScheduler]:
    """The schedulers of this optimizer that the script steps itself. An optimizer doesn't know them, but each leaves
    its first rate in the groups; only then it is worth a search through all objects, a tenth of a second."""
    if not any("initial_lr" in group for group in optimizer.param_groups):
        return []
    holders = gc.get_referrers(optimizer)
    holders += gc.get_referrers(
        *(each for each in holders if isinstance(each, dict) and "last_epoch" in each)
    )
    found = [each for each in holders if isinstance(each, LRScheduler)]
    inner = {id(part) for each in found if isinstance(each, SequentialLR) for part in each._schedulers}
    return [each for each in found if id(each) not in inner]


def _total(scheduler: LRScheduler) -> int | None:
    """After how many of its steps it is at its end."""
    if isinstance(scheduler, SequentialLR):
        last = _total(scheduler._schedulers[-1])
        return None if last is None else scheduler._milestones[-1] + last
    found = (getattr(scheduler, name, None) for name in _TOTALS)
    return next((each for each in found if isinstance(each, int)), None)


def _is_round(number: int) -> bool:
    """At most two digits before zeros, or a power of two."""
    return len(str(number).rstrip("0")) <= 2 or number & (number - 1) == 0
