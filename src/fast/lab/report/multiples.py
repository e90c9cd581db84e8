"""Small figures, one per strategy, on the same axes: single replicas, and staleness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fast.lab.report.canvas import Drawn, Margins, canvas, measured, titled
from fast.lab.report.look import INK, MUTED
from fast.lab.report.reading import Entry, Row
from fast.lab.report.series import Band, band, envelope
from fast.lab.report.words import SECONDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

SIZE_IN = (3.1, 1.95)
TITLE = 36
"""Characters in a line of a title."""
CLIMB = 0.25
"""The part of a run that counts as the first climb."""
SINGLE_BINS = 16
"""Up to here each staleness has a bar of its own; above, bars stand for ranges that double."""


def _small() -> tuple[Figure, Plot]:
    return canvas(*SIZE_IN, Margins(left=0.5, top=0.08, bottom=0.44))


# Single replicas


@dataclass(frozen=True)
class Replicas:
    """The consolidated model's score, and those of the worst and the best replica."""

    entry: Entry
    whole: Band
    single: Band

    @staticmethod
    def of(entry: Entry) -> Replicas:
        single = envelope(entry.runs, "at_s", "replica_worst", "replica_best")
        return Replicas(entry, band(entry.runs, "at_s"), single)

    def __bool__(self) -> bool:
        return bool(self.whole) and bool(self.single)


@dataclass(frozen=True)
class Extent:
    """The y axis that all small figures share. The first part of the climb is not on it, for it
    would leave no room for the differences."""

    low: float
    high: float

    @staticmethod
    def of(shown: Sequence[Replicas], lowest: float) -> Extent:
        lows = [_lowest(line) for each in shown for line in (each.single, each.whole)]
        highs = [float(max(each.single.high.max(), each.whole.high.max())) for each in shown]
        low, high = max(min(lows), lowest), max(highs)
        room = 0.05 * (high - low or 1)
        return Extent(low - room, high + room)


def _lowest(line: Band) -> float:
    return float(line.low[line.x >= CLIMB * line.x[-1]].min())


def replicas_figure(shown: Replicas, extent: Extent) -> Drawn:
    figure, plot = _small()
    colour = shown.entry.look.colour.light
    few = len(shown.single.x) == 1
    plot.fill_between(
        shown.single.x, shown.single.low, shown.single.high, color=colour, alpha=0.28, linewidth=0
    )
    if few:
        plot.vlines(shown.single.x, shown.single.low, shown.single.high, color=colour, alpha=0.4, linewidth=5)
    plot.plot(
        shown.whole.x,
        shown.whole.mean,
        color=INK.light,
        linewidth=1.2,
        marker="o" if few else "",
        markersize=3,
    )
    plot.set_ylim(extent.low, extent.high)
    end = float(shown.whole.x[-1])
    if end > 0:
        plot.set_xlim(0, end * 1.02)
    plot.locator_params(axis="x", nbins=5)
    plot.locator_params(axis="y", nbins=5)
    measured(plot, "x", SECONDS, end, "time")
    return Drawn(figure, above_in=titled(figure, shown.entry.label, TITLE))


# Staleness


def histogram(runs: Sequence[Row]) -> dict[int, int]:
    """How many updates were so stale, over all seeds."""
    total: dict[int, int] = {}
    for run in runs:
        for staleness, count in (run.get("staleness") or {}).items():
            total[int(staleness)] = total.get(int(staleness), 0) + int(count)
    return dict(sorted(total.items()))


def bins(largest: int) -> list[tuple[int, int]]:
    """From and to, both included: 0, 1, 2, … or 0, 1, 2, 3–4, 5–8, 9–16, …"""
    if largest < SINGLE_BINS:
        return [(each, each) for each in range(max(largest, 1) + 1)]
    ranges = [(0, 0), (1, 1), (2, 2)]
    while ranges[-1][1] < largest:
        end = ranges[-1][1]
        ranges.append((end + 1, 2 * end))
    return ranges


def shares(counts: dict[int, int], ranges: Sequence[tuple[int, int]]) -> list[float]:
    """The part of all updates in each range."""
    total = sum(counts.values())
    return [
        sum(count for staleness, count in counts.items() if low <= staleness <= high) / total
        for low, high in ranges
    ]


def staleness_figure(entry: Entry, ranges: Sequence[tuple[int, int]]) -> Drawn:
    from matplotlib.ticker import FuncFormatter

    figure, plot = _small()
    parts = shares(histogram(entry.runs), ranges)
    names = [str(low) if low == high else f"{low}–{high}" for low, high in ranges]
    tips = {}
    bars = plot.bar(range(len(parts)), parts, width=0.82, color=entry.look.colour.light)
    for place, (part, name) in enumerate(zip(parts, names, strict=True)):
        bars[place].set_gid(f"bar-{place}")
        tips[f"bar-{place}"] = f"staleness {name}: {part:.1%} of updates"
    every = -(-len(names) // (9 if max(map(len, names)) < 3 else 6))
    plot.set_xticks(range(0, len(names), every), names[::every])
    plot.set_xlim(-0.6, len(names) - 0.4)
    plot.set_ylim(0, 1.04)
    plot.set_yticks([0, 0.5, 1])
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    plot.set_xlabel("staleness (updates)", color=MUTED.light)
    return Drawn(figure, above_in=titled(figure, entry.label, TITLE), tips=tips)
