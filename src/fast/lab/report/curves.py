"""Scores and distances over the course of training: lines with bands, one per strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fast.lab.report.canvas import POINTS, Drawn, Margins, canvas, legend_below, measured
from fast.lab.report.look import GROUND, INK, MUTED
from fast.lab.report.reading import Entry
from fast.lab.report.region import near_region, whole_region
from fast.lab.report.series import Band, Numbers, band
from fast.lab.report.words import BYTES, COUNT, PLAIN, SECONDS, Measure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

SIZE_IN = (10.4, 4.5)
MARKS = 7
"""So many markers along a line."""
MANY = 12
"""More bands than these are paler, or they would cover each other."""
WIDE = 25
"""If the longest line is so many times as long as the shortest, a logarithmic axis shows both."""


@dataclass(frozen=True)
class Axis:
    """Something to draw a score against."""

    name: str
    curve: str
    """Its name in a row's curve."""
    measure: Measure
    title: str


AXES = (
    Axis("time", "at_s", SECONDS, "time"),
    Axis("epochs", "epochs", PLAIN, "epochs"),
    Axis("samples", "samples", COUNT, "samples seen by all workers"),
    Axis("bytes", "bytes", BYTES, "sent by everybody"),
)


STEPS = Axis("step", "step", COUNT, "steps of a worker")


@dataclass(frozen=True)
class Lines:
    """What a figure of lines shows: the bands by strategy, and how its x axis is."""

    axis: Axis
    bands: Mapping[Entry, Band]
    logarithmic: bool

    @staticmethod
    def of(entries: Sequence[Entry], axis: Axis, value: str = "score") -> Lines:
        found = {entry: band(entry.runs, axis.curve, value) for entry in entries}
        bands = {entry: each for entry, each in found.items() if each}
        ends = [each.x[-1] for each in bands.values() if each.x[-1] > 0]
        wide = axis.name in ("time", "bytes") and bool(ends) and max(ends) > WIDE * min(ends)
        return Lines(axis, bands, wide)

    @property
    def furthest(self) -> float:
        return max((float(each.x[-1]) for each in self.bands.values()), default=0.0)


@dataclass(frozen=True)
class Chart:
    """A figure of lines, and what is needed to find values in it."""

    drawn: Drawn
    values: Mapping[str, Any]


def score_chart(lines: Lines, target: float, *, near: bool) -> Chart:
    """Score against x: mean over seeds as a line, smallest to largest as a band, and the target.

    Most of a curve is its climb or its plateau: `near` shows only the region where strategies differ.
    """
    figure, plot = canvas(*SIZE_IN, Margins(right=0.55))
    handles = _draw(plot, lines)
    region = near_region(lines.bands.values(), target) if near else whole_region(lines.bands.values(), target)
    room = 0.04 * (region.high - region.low or 1)
    plot.set_ylim(region.low - room, region.high + 1.5 * room)
    _target(plot, target)
    _x_axis(plot, lines, region.until)
    plot.set_ylabel("score on test data")
    return _finished(figure, plot, lines, handles)


def distance_chart(lines: Lines) -> Chart:
    """How far the replicas are from their mean, on a logarithmic axis: it spans many sizes.

    Strategies that average now and then are at zero each time; the foot of the axis stands for it.
    """
    figure, plot = canvas(SIZE_IN[0], 3.4)
    floor, name = foot(
        np.concatenate([values for each in lines.bands.values() for values in (each.low, each.high)])
    )
    raised = {entry: each.at_least(floor) for entry, each in lines.bands.items()}
    plot.set_yscale("log")
    handles = _draw(plot, replace(lines, bands=raised))
    plot.set_ylim(bottom=floor)
    _x_axis(plot, lines, lines.furthest)
    _powers(plot, floor, name)
    plot.set_ylabel("distance of the replicas")
    return _finished(figure, plot, lines, handles)


def value_chart(lines: Lines, title: str) -> Chart:
    """Any value against x, as far as it goes."""
    figure, plot = canvas(SIZE_IN[0], 3.0)
    handles = _draw(plot, lines)
    _x_axis(plot, lines, lines.furthest)
    plot.set_ylabel(title)
    return _finished(figure, plot, lines, handles)


def foot(values: Numbers) -> tuple[float, str]:
    """Where a logarithmic axis begins, a power of ten, and what is written there.

    It is the one below the smallest number, or a decade lower if there are zeros to stand on it.
    More than six decades are not shown.
    """
    smallest, largest = float(values[values > 0].min()), float(values.max())
    decade = max(
        math.floor(math.log10(smallest)) - bool((values == 0).any()), math.floor(math.log10(largest)) - 6
    )
    floor = 10.0**decade
    if (values >= floor).all():
        return floor, f"{floor:g}"
    return floor, "0" if smallest >= floor else f"≤ {floor:g}"


def _finished(figure: Figure, plot: Plot, lines: Lines, handles: Mapping[Entry, Artist]) -> Chart:
    below = legend_below(figure, list(handles.values()), [entry.label for entry in handles])
    return Chart(Drawn(figure, below_in=below), _values(figure, plot, lines))


def _draw(plot: Plot, lines: Lines) -> dict[Entry, Artist]:
    handles: dict[Entry, Artist] = {}
    opaque = 0.14 if len(lines.bands) <= MANY else 0.06
    for entry, each in lines.bands.items():
        colour = entry.look.colour.light
        if len(entry.runs) > 1:
            shade = plot.fill_between(each.x, each.low, each.high, color=colour, alpha=opaque, linewidth=0)
            shade.set_gid(f"series-{entry.key}-band")
        every = max(1, len(each.x) // MARKS)
        (line,) = plot.plot(
            each.x, each.mean, color=colour, linestyle=entry.look.line, linewidth=1.5, marker=entry.look.marker,
            markersize=5, markeredgecolor=GROUND.light, markeredgewidth=0.6,
            markevery=(entry.index * 3 % every, every), gid=f"series-{entry.key}-line",
        )  # fmt: skip
        for x, y in each.lost:
            plot.plot([x], [y], marker="x", markersize=7, markeredgewidth=1.8, color=colour,
                      gid=f"series-{entry.key}-lost")  # fmt: skip
        handles[entry] = line
    return handles


def _target(plot: Plot, target: float) -> None:
    """Its name stands beside the axes, where no curve is."""
    plot.axhline(target, color=INK.light, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1.5)
    plot.annotate(
        f"target\n{target:g}", (1, target), xycoords=("axes fraction", "data"), xytext=(5, 0),
        textcoords="offset points", va="center", color=INK.light, fontsize=8,
    )  # fmt: skip


def _x_axis(plot: Plot, lines: Lines, until: float) -> None:
    if lines.logarithmic:
        plot.set_xscale("log")
        plot.minorticks_off()
        if until < lines.furthest:
            plot.set_xlim(right=until)
    elif until > 0:
        plot.set_xlim(0, until * 1.02)
    measured(plot, "x", lines.axis.measure, until, lines.axis.title)


def _powers(plot: Plot, floor: float, name: str) -> None:
    """Powers of ten as plain text."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    plot.yaxis.set_major_locator(LogLocator(numticks=8))
    plot.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: name if math.isclose(value, floor) else f"{value:g}")
    )
    plot.yaxis.minorticks_off()
    plot.tick_params(axis="y", colors=MUTED.light)


def _values(figure: Figure, plot: Plot, lines: Lines) -> dict[str, Any]:
    """Where the axes are in the drawing (in points, from the top) and the values of each line."""
    width, height = figure.get_size_inches() * POINTS
    box = plot.get_position()
    edges = (box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height)
    return {
        "axis": lines.axis.name,
        "box": [round(float(edge), 2) for edge in edges],
        "x": [float(limit) for limit in plot.get_xlim()],
        "y": [float(limit) for limit in plot.get_ylim()],
        "logX": plot.get_xscale() == "log",
        "logY": plot.get_yscale() == "log",
        "series": {
            entry.key: {
                "x": _digits(each.x),
                "mean": _digits(each.mean),
                "low": _digits(each.low) if len(entry.runs) > 1 else None,
                "high": _digits(each.high) if len(entry.runs) > 1 else None,
            }
            for entry, each in lines.bands.items()
        },
    }


def _digits(values: Any) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
