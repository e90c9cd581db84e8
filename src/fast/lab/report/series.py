"""Curves of several seeds as one line and a band.

Seeds have their ticks at different times, so each seed's curve is first read at common places,
straight between its ticks. After its last tick a seed keeps its last value: its training is over, and
that is its model. A seed whose model is lost (its value is null) counts no longer from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fast.lab.report.reading import Row

Numbers = NDArray[np.float64]
PLACES = 200
"""More than so many places along a line can't be seen."""


@dataclass(frozen=True)
class Band:
    """The mean of the seeds at each x, the smallest and the largest; and where seeds were lost."""

    x: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers
    lost: Sequence[tuple[float, float]] = ()

    def __bool__(self) -> bool:
        return bool(len(self.x))

    def at_least(self, floor: float) -> Band:
        low, mean, high = (np.maximum(values, floor) for values in (self.low, self.mean, self.high))
        return replace(self, low=low, mean=mean, high=high)


def band(runs: Sequence[Row], axis: str, value: str = "score") -> Band:
    """`value` against `axis`, which are both names in a row's curve."""
    curves = [curve for curve in (_curve(run, axis, value) for run in runs) if len(curve[0])]
    if not curves:
        nothing = np.empty(0)
        return Band(nothing, nothing, nothing, nothing)
    x = _places([places for places, _ in curves])
    table = np.array([_read(curve, x) for curve in curves])
    x, table = x[~np.isnan(table).all(axis=0)], table[:, ~np.isnan(table).all(axis=0)]
    lost = [end for end in map(_lost, curves) if end is not None]
    return Band(x, np.nanmean(table, 0), np.nanmin(table, 0), np.nanmax(table, 0), lost)


def envelope(runs: Sequence[Row], axis: str, low: str, high: str) -> Band:
    """From `low` to `high`, each the mean over seeds, at the ticks where they were measured.

    Means, because how far seeds are apart is another question.
    """
    below, above = (band([_known(run, name) for run in runs], axis, name) for name in (low, high))
    if not below or not above:
        return below
    x = np.union1d(below.x, above.x)
    bottom, top = np.interp(x, below.x, below.mean), np.interp(x, above.x, above.mean)
    return Band(x, (bottom + top) / 2, bottom, top)


def _curve(run: Row, axis: str, value: str) -> tuple[Numbers, Numbers]:
    curve: dict[str, Any] = run.get("curve") or {}
    pairs = [
        (x, y) for x, y in zip(curve.get(axis) or [], curve.get(value) or [], strict=False) if x is not None
    ]
    if all(y is None for _, y in pairs):
        return np.empty(0), np.empty(0)
    x = np.array([x for x, _ in pairs], dtype=float)
    return x, np.array([np.nan if y is None else y for _, y in pairs], dtype=float)


def _known(run: Row, name: str) -> Row:
    """The run with only those ticks at which this was measured: a gap there is not a loss, unless the
    score is missing too."""
    curve: dict[str, Any] = run.get("curve") or {}
    pairs = enumerate(zip(curve.get(name) or [], curve.get("score") or [], strict=False))
    kept = [tick for tick, (value, score) in pairs if value is not None or score is None]
    return {"curve": {key: [values[tick] for tick in kept] for key, values in curve.items() if values}}


def _places(axes: Sequence[Numbers]) -> Numbers:
    """Where all seeds have begun: at every tick of any seed, or evenly if those are too many."""
    begin, end = max(x[0] for x in axes), max(x[-1] for x in axes)
    every = np.unique(np.concatenate(axes))
    every = every[every >= begin]
    return every if len(every) <= PLACES else np.linspace(begin, end, PLACES)


def _read(curve: tuple[Numbers, Numbers], places: Numbers) -> Numbers:
    """The curve at these places; nothing from the first tick without a value on."""
    x, y = curve
    kept = len(y) if not np.isnan(y).any() else int(np.flatnonzero(np.isnan(y))[0])
    if kept == 0:
        return np.full(len(places), np.nan)
    read = np.interp(places, x[:kept], y[:kept])
    if kept < len(y):
        read[places > x[kept - 1]] = np.nan
    return read


def _lost(curve: tuple[Numbers, Numbers]) -> tuple[float, float] | None:
    """The last point before a value is missing."""
    x, y = curve
    missing = np.flatnonzero(np.isnan(y))
    if not len(missing) or missing[0] == 0:
        return None
    return float(x[missing[0] - 1]), float(y[missing[0] - 1])
