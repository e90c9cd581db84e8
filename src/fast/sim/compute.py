"""The model of computing: how long a worker's step takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.sim.units import seconds_to_ns


class ComputeModel(Protocol):
    """What the simulator asks: any object that answers it will do."""

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        """How long this worker of so many computes in this step. Pure: same answer every time."""


@dataclass(frozen=True)
class Straggler:
    """`factor` times slower: the last worker always, or each worker in a random `share` of its steps."""

    factor: float
    share: float | None = None

    def slows(self, worker: int, workers: int, step: int, seed: int) -> bool:
        if self.share is None:
            return worker == workers - 1
        return Random(stream_seed(seed, "straggler", worker, step)).random() < self.share


@dataclass(frozen=True)
class Compute:
    """Every step takes `step_s`. `workers_s` has the workers that differ from the rest."""

    step_s: float = 0.020
    straggler: Straggler | None = None
    workers_s: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for step_s in (self.step_s, *self.workers_s.values()):
            if not 0 <= step_s < math.inf:
                raise UsageError(f"a step of {step_s} s can't be; it takes 0 seconds or more")

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        duration_s = self.workers_s.get(worker, self.step_s)
        if self.straggler is not None and self.straggler.slows(worker, workers, step, seed):
            duration_s *= self.straggler.factor
        return seconds_to_ns(duration_s)


def parse_straggler(text: str) -> Straggler:
    """`4x`: the last worker is always 4 times slower. `5x@0.1`: every worker in a tenth of its steps.

    >>> parse_straggler("4x"), parse_straggler("5x@0.1")
    (Straggler(factor=4.0, share=None), Straggler(factor=5.0, share=0.1))
    """
    factor_text, at, share_text = text.strip().lower().partition("@")
    factor = _number(factor_text.removesuffix("x")) if factor_text.endswith("x") else math.nan
    share = _number(share_text) if at else None
    if not 0 < factor < math.inf or (share is not None and not 0 <= share <= 1):
        raise UsageError(
            f"{text!r} is no straggler. Write 4x (the last worker is always 4 times slower) "
            "or 5x@0.1 (every worker, in a random tenth of its steps)."
        )
    return Straggler(factor, share)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
