"""Which part of the scores a chart shows: all of it, or where strategies differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fast.lab.report.series import Band

LOWEST = -0.5
"""Scores are at most 1 and usually above 0; what falls far below would flatten everything else."""
NEAR = 0.02
"""At least twice this much below the target is near it."""
AFTER = 1.3
"""How far to look, as a multiple of the place where the last strategy reached the target."""


@dataclass(frozen=True)
class Region:
    """Limits of scores, and the end of the x axis."""

    low: float
    high: float
    until: float


def whole_region(bands: Collection[Band], target: float) -> Region:
    low = min(float(each.low.min()) for each in bands)
    high = max(float(each.high.max()) for each in bands)
    return Region(min(max(low, LOWEST), target), max(high, target), _furthest(bands))


def near_region(bands: Collection[Band], target: float) -> Region:
    """Scores around the target, or around the best plateau if that stays below the target.

    The x axis ends soon after the last strategy has reached the target. It doesn't end before the runs
    do if one that ends in this region has not reached the target: its climb may still go on.
    """
    whole = whole_region(bands, target)
    best = max(float(each.mean[-1]) for each in bands)
    about = min(target, max(best, whole.low))
    low = max(whole.low, about - 2 * max(whole.high - about, NEAR))
    return Region(low, whole.high, _until(bands, target, low))


def below(band: Band, region: Region) -> bool:
    """Whether nothing of this strategy's mean is seen there."""
    return bool((band.mean[band.x <= region.until] < region.low).all())


def _until(bands: Collection[Band], target: float, low: float) -> float:
    reached = [_reached(each, target) for each in bands if each.mean[-1] >= low or each.mean.max() >= target]
    known = [place for place in reached if place is not None]
    if not known or len(known) < len(reached):
        return _furthest(bands)
    return min(AFTER * max(known), _furthest(bands))


def _reached(band: Band, target: float) -> float | None:
    """Where the mean first is at the target."""
    places = np.flatnonzero(band.mean >= target)
    return float(band.x[places[0]]) if len(places) else None


def _furthest(bands: Collection[Band]) -> float:
    return max((float(each.x[-1]) for each in bands), default=0.0)
