"""From many measured times to a few numbers: medians, quartiles, straight lines. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fast.errors import UsageError

_QUARTILES_APART = 1.3489795003921634
"""Of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Spread:
    """The middle of many times, and between what half of them lie; in seconds."""

    median_s: float
    low_s: float
    high_s: float
    count: int

    @staticmethod
    def of(times_ns: Iterable[float]) -> Spread:
        """
        >>> Spread.of([4000, 1000, 2000, 3000, 5000])
        Spread(median_s=3e-06, low_s=2e-06, high_s=4e-06, count=5)
        """
        times = sorted(times_ns)
        if not times:
            raise UsageError("nothing was measured, so there is nothing to say about it")
        median, low, high = (_quantile(times, share) / 1e9 for share in (0.5, 0.25, 0.75))
        return Spread(median, low, high, len(times))

    @property
    def uncertainty(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        return (self.high_s - self.low_s) / 2 / self.median_s if self.median_s else 0.0

    @property
    def sigma(self) -> float:
        """Of the log-normal distribution that has these quartiles."""
        return math.log(self.high_s / self.low_s) / _QUARTILES_APART if self.low_s > 0 else 0.0


@dataclass(frozen=True)
class Line:
    """A fixed part, and the bytes at a rate."""

    fixed_s: float
    rate: float = math.inf

    def at(self, nbytes: float) -> float:
        return self.fixed_s + nbytes / self.rate


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (bytes, seconds) whose *relative* errors are smallest: 4 kB count as much as
    8 MB. Neither part is below 0, whatever noise says.

    >>> fit_line([(0, 1e-6), (1000, 2e-6), (4000, 5e-6)])
    Line(fixed_s=1e-06, rate=1000000000.0)
    """
    if not points:
        raise UsageError("a line needs at least one point")
    floor = max(seconds for _, seconds in points) * 1e-6 or 1e-12
    rows = [(x, y, 1 / max(y, floor) ** 2) for x, y in points]
    total = sum(w for _, _, w in rows)
    x_mean, y_mean = (sum(w * row[i] for row in rows for w in (row[2],)) / total for i in (0, 1))
    across = sum(w * (x - x_mean) ** 2 for x, _, w in rows)
    slope = sum(w * (x - x_mean) * (y - y_mean) for x, y, w in rows) / across if across else 0.0
    if slope <= 0:
        return Line(max(0.0, y_mean))
    fixed = y_mean - slope * x_mean
    if fixed < 0:
        slope = sum(w * x * y for x, y, w in rows) / sum(w * x * x for x, _, w in rows)
        fixed = 0.0
    return Line(_short(fixed), _short(1 / slope))


def after_the_last(came: Sequence[Sequence[int]], left: Sequence[Sequence[int]]) -> list[float]:
    """Of each round, by member: how long it took from the moment when the last one came, until it was
    over for a member, in the mean over members."""
    rounds = zip(zip(*came, strict=True), zip(*left, strict=True), strict=True)
    return [statistics.fmean(out) - max(in_) for in_, out in rounds]


def block_means(times: Sequence[float], blocks: int) -> list[float]:
    """The mean of each block; all are equally long. Half of all steps are not slowed down by what
    happens in every thirtieth, but a run is; while what disturbs a machine for a moment hits one block.

    >>> block_means([1, 2, 6, 10, 20, 30], blocks=2)
    [3.0, 20.0]
    """
    length = max(1, len(times) // blocks)
    return [statistics.fmean(times[start : start + length]) for start in range(0, len(times), length)]


def against_median(times: Sequence[float], blocks: int) -> list[float]:
    """Each time as a multiple of the median of its block; all blocks are equally long.

    >>> against_median([1, 2, 3, 10, 20, 30], blocks=2)
    [0.5, 1.0, 1.5, 0.5, 1.0, 1.5]
    """
    length = len(times) // blocks
    parts = [times[start : start + length] for start in range(0, length * blocks, length)]
    return [time / statistics.median(part) for part in parts for time in part]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between two values in proportion, as is usual."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _short(value: float) -> float:
    """Measurements have no more than four digits, and files read better with them."""
    return float(f"{value:.4g}")
