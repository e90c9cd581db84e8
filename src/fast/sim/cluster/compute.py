"""The model of computing: how long a worker's step takes."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from fast.errors import UsageError
from fast.sim.cluster.draws import (
    FACTOR_BITS,
    QUANTILE_BITS,
    draw_bits,
    draw_unit,
    log_normal_factor,
)
from fast.sim.cluster.units import seconds_to_ns

_STRAGGLING, _SPREADING = 1, 2
"""Streams of random numbers of their own."""


class ComputeModel(Protocol):
    """What the simulator asks: any object that answers it will do."""

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        """How long this worker of so many computes in this step. Pure: same answer every time."""


@dataclass(frozen=True)
class Straggler:
    """`factor` times slower: the last worker always, or each worker in a random `share` of its steps.

    With `stretch` a slow worker comes and goes: it is slow for so many steps in a row, in a random
    `share` of its stretches.
    """

    factor: float
    share: float | None = None
    stretch: int = 1

    def slows(self, worker: int, workers: int, step: int, seed: int) -> bool:
        if self.share is None:
            return worker == workers - 1
        return draw_unit(seed, _STRAGGLING, worker, step // self.stretch) < self.share

    def __str__(self) -> str:
        """As `parse_straggler` reads it."""
        share = "" if self.share is None else f"@{_short(self.share)}"
        return f"{_short(self.factor)}x{share}" + (f"/{self.stretch}" if self.stretch > 1 else "")


@dataclass(frozen=True)
class Speed:
    """Workers `first` to `last` compute at `factor` times the usual speed: 0.5 is half as fast."""

    first: int
    last: int
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last or not 0 < self.factor < math.inf:
            raise UsageError(
                f"{self} can't be: a range of workers such as 0-3, and a speed above 0 (0.5 is half as fast)."
            )

    def __str__(self) -> str:
        who = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{who}:{_short(self.factor)}"


@dataclass(frozen=True)
class Compute:
    """A step takes `step_s`, or as long as a `trace` of measured steps says; that is then varied.

    spread: the sigma of a log-normal distribution of which the step is the median
    speeds: workers that are faster or slower than the rest
    straggler: workers that are slower at times
    """

    step_s: float = 0.020
    straggler: Straggler | None = None
    workers_s: Mapping[int, float] = field(default_factory=dict)
    """Workers whose step takes another time."""
    spread: float = 0.0
    speeds: tuple[Speed, ...] = ()
    """Ascending and apart from each other."""
    trace: tuple[tuple[float, ...], ...] = ()
    """Measured durations in seconds, repeated: one list for everybody, or one for each worker."""
    pace_s: float | None = None
    """Steps are padded to this time, times a straggler's factor, by sleeping: only the step itself
    takes a core."""

    def __post_init__(self) -> None:
        for step_s in (self.step_s, *self.workers_s.values(), *(s for own in self.trace for s in own)):
            if not 0 <= step_s < math.inf:
                raise UsageError(f"a step of {step_s} s can't be; it takes 0 seconds or more")
        if self.pace_s is not None and not 0 < self.pace_s < math.inf:
            raise UsageError(f"a pace of {self.pace_s} s can't be; it is longer than 0 seconds")
        if not 0 <= self.spread <= 5:
            raise UsageError(f"a spread of {self.spread} can't be: 0 is none, 0.1 little, 1 much, 5 the most")
        if not all(self.trace):
            raise UsageError("a trace without a single step; give at least one duration per list")
        if any(
            before.last >= after.first for before, after in zip(self.speeds, self.speeds[1:], strict=False)
        ):
            raise UsageError("speeds must be ascending and apart: every worker in at most one range")

    def duration_ns(self, worker: int, workers: int, step: int, seed: int) -> int:
        if self._always_ns is not None:
            return self._always_ns
        computing_ns = self.computing_ns(worker, step, seed)
        return computing_ns + self.resting_ns(worker, workers, step, seed, computing_ns)

    def computing_ns(self, worker: int, step: int, seed: int) -> int:
        """What of it takes a core."""
        duration_ns = self._usual_ns(worker, step)
        if self.spread:
            place = draw_bits(seed, _SPREADING, worker, step) >> (64 - QUANTILE_BITS)
            duration_ns = (duration_ns * log_normal_factor(self.spread, place)) >> FACTOR_BITS
        if self.speeds:
            duration_ns = round(duration_ns / self.speed(worker))
        return duration_ns

    def resting_ns(self, worker: int, workers: int, step: int, seed: int, computed_ns: int) -> int:
        """What follows, when computing took `computed_ns`, and takes none: the rest of the pace, or
        that by which a straggler is slower."""
        slow = self.straggler is not None and self.straggler.slows(worker, workers, step, seed)
        factor = self.straggler.factor if self.straggler is not None and slow else 1.0
        if self.pace_s is not None:
            return max(0, round(self._pace_ns * factor) - computed_ns)
        return round(computed_ns * factor) - computed_ns

    def slowed(self, factor: float) -> Compute:
        """The same, but computing takes `factor` times as long; a pace stays what it is."""
        return replace(
            self,
            step_s=self.step_s * factor,
            workers_s={worker: step_s * factor for worker, step_s in self.workers_s.items()},
            trace=tuple(tuple(step_s * factor for step_s in own) for own in self.trace),
        )

    def _usual_ns(self, worker: int, step: int) -> int:
        if self.trace:
            own = self._trace_ns[worker % len(self._trace_ns)]
            return own[step % len(own)]
        step_s = self.workers_s.get(worker) if self.workers_s else None
        return self._step_ns if step_s is None else seconds_to_ns(step_s)

    def speed(self, worker: int) -> float:
        """By how much this worker is faster than usual."""
        place = bisect_right(self._firsts, worker) - 1
        known = place >= 0 and worker <= self.speeds[place].last
        return self.speeds[place].factor if known else 1.0

    @property
    def mean_s(self) -> float:
        """Of a step in the long run, on a worker of usual speed that is never slowed down."""
        usual = [step_s for own in self.trace for step_s in own] or [self.step_s]
        return max(self.pace_s or 0.0, sum(usual) / len(usual) * math.exp(self.spread**2 / 2))

    # Worked out once; it follows from the fields

    @cached_property
    def _always_ns(self) -> int | None:
        """How long every step of every worker takes, if all take as long."""
        varied = self.trace or self.workers_s or self.spread or self.speeds or self.straggler
        return None if varied or self.pace_s is not None else self._step_ns

    @cached_property
    def _step_ns(self) -> int:
        return seconds_to_ns(self.step_s)

    @cached_property
    def _pace_ns(self) -> int:
        return seconds_to_ns(self.pace_s or 0.0)

    @cached_property
    def _firsts(self) -> list[int]:
        return [speed.first for speed in self.speeds]

    @cached_property
    def _trace_ns(self) -> list[list[int]]:
        return [[seconds_to_ns(step_s) for step_s in own] for own in self.trace]


def parse_straggler(text: str) -> Straggler:
    """`4x`: the last worker is always 4 times slower. `5x@0.1`: every worker in a tenth of its steps.
    `5x@0.1/50`: every worker in a tenth of its stretches of 50 steps.

    >>> parse_straggler("4x"), parse_straggler("5x@0.1")
    (Straggler(factor=4.0, share=None, stretch=1), Straggler(factor=5.0, share=0.1, stretch=1))
    """
    match = re.fullmatch(r"([^@/]+)x(?:@([^@/]+)(?:/([0-9]{1,9}))?)?", text.strip().lower())
    factor, share_text, stretch_text = match.groups() if match else ("", None, None)
    share = None if share_text is None else _number(share_text)
    stretch = 1 if stretch_text is None else int(stretch_text)
    if not 0 < _number(factor) < math.inf or (share is not None and not 0 <= share <= 1) or stretch < 1:
        raise UsageError(
            f"{text!r} is no straggler. Write 4x (the last worker is always 4 times slower), "
            "5x@0.1 (every worker, in a random tenth of its steps) "
            "or 5x@0.1/50 (the same in stretches of 50 steps)."
        )
    return Straggler(_number(factor), share, stretch)


def parse_speeds(text: str) -> tuple[Speed, ...]:
    """`0-3:1,4-7:0.5`: workers 4 to 7 are half as fast. `1,1,0.5`: one after another, from worker 0 on.

    >>> parse_speeds("1,0.5") == parse_speeds("0:1, 1:0.5")
    True
    """
    speeds = []
    for place, part in enumerate(text.split(",")):
        match = re.fullmatch(r"(?:([0-9]{1,9})(?:-([0-9]{1,9}))?:)?([^:]+)", re.sub(r"\s", "", part))
        if match is None or math.isnan(_number(match[3])) or bool(match[1]) != (":" in text):
            raise UsageError(
                f"{text!r} are no speeds. Write 0-3:1,4-7:0.5 (workers 4 to 7 are half as fast) "
                "or 1,1,0.5 (one after another, from worker 0 on)."
            )
        first = int(match[1]) if match[1] else place
        speeds.append(Speed(first, int(match[2]) if match[2] else first, _number(match[3])))
    return tuple(sorted(speeds, key=lambda speed: speed.first))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _short(number: float) -> str:
    """As few digits as read back the same."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(float(number))
