"""Where time went: as shares per participant, and moment by moment at the beginning of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from fast.lab.report.canvas import Drawn, Margins, canvas, legend_below, measured, titled
from fast.lab.report.look import GRID, GROUND, KINDS, MUTED, TIME, Colour, Kind
from fast.lab.report.reading import Entry, Row
from fast.lab.report.words import SECONDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch

WIDTH_IN = 4.6
LANE_IN = 0.19
HALF = 0.37
"""Half the height of a bar, where lanes are 1 apart."""
LANES = 24
"""So many participants are drawn; of more, an even choice with the first and the last of them."""
SLICES = 150
"""So many pieces of one participant can be told apart."""

Shares = Mapping[str, Mapping[Kind, float]]
Slice = tuple[Kind, float, float]


# Shares


def shares_by_participant(runs: Sequence[Row]) -> Shares:
    """For each participant the part of its time that went into each kind, over all seeds."""
    spent: dict[str, dict[Kind, float]] = {}
    for run in runs:
        for participant in run.get("participants") or []:
            mine = spent.setdefault(participant["name"], dict.fromkeys(KINDS, 0.0))
            for kind in KINDS:
                mine[kind] += participant.get(f"{kind}_s") or 0.0
    return {name: _parts(mine) for name, mine in spent.items()}


def shares_of_workers(runs: Sequence[Row]) -> Mapping[Kind, float]:
    """The mean over workers; servers are not in."""
    workers = [mine for name, mine in shares_by_participant(runs).items() if name.startswith("worker")]
    if not workers:
        return {}
    return {kind: sum(mine[kind] for mine in workers) / len(workers) for kind in KINDS}


def _parts(spent: Mapping[Kind, float]) -> dict[Kind, float]:
    total = sum(spent.values())
    return {kind: seconds / total if total else 0.0 for kind, seconds in spent.items()}


def chosen(names: Sequence[str], limit: int = LANES) -> list[str]:
    """At most so many, spread evenly, with the first and the last."""
    if len(names) <= limit:
        return list(names)
    return [names[round(place * (len(names) - 1) / (limit - 1))] for place in range(limit)]


def shares_figure(entry: Entry) -> Drawn:
    """A stacked bar for each participant."""
    from matplotlib.ticker import FuncFormatter

    shares = shares_by_participant(entry.runs)
    names = chosen(list(shares))
    figure, plot = _lanes(names)
    tips = {}
    for place, name in enumerate(names):
        begin = 0.0
        for kind in KINDS:
            part = shares[name][kind]
            if part > 0:
                gid = f"part-{place}-{kind}"
                _piece(plot, place, (begin, part), TIME[kind], gid)
                tips[gid] = f"{name}: {part:.1%} {kind}"
            begin += part
    plot.set_xlim(0, 1)
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    plot.set_xlabel("share of its time")
    return _finished(figure, entry, tips)


def _lanes(names: Sequence[str]) -> tuple[Figure, Plot]:
    """One lane per participant, the first on top."""
    lanes = max(2, len(names))
    margins = Margins(left=0.78, right=0.16, top=0.06, bottom=0.42)
    figure, plot = canvas(WIDTH_IN, margins.top + margins.bottom + LANE_IN * lanes, margins)
    plot.set_ylim(lanes - 0.5, -0.5)
    plot.set_yticks(range(len(names)), list(names))
    plot.tick_params(axis="y", labelsize=7.5)
    plot.grid(visible=False)
    return figure, plot


def _piece(plot: Plot, lane: int, span: tuple[float, float], colour: Colour, gid: str | None = None) -> None:
    """A box in a lane, from somewhere and so long; unlike a bar it doesn't touch the limits of the axes,
    which takes most of the time of a bar."""
    from matplotlib.patches import Rectangle

    (start, length), height = span, 2 * HALF
    plot.add_artist(
        Rectangle((start, lane - HALF), length, height, facecolor=colour.light, linewidth=0, gid=gid)
    )


def _finished(figure: Figure, entry: Entry, tips: Mapping[str, str]) -> Drawn:
    from matplotlib.patches import Patch

    below = legend_below(figure, [Patch(color=TIME[kind].light) for kind in KINDS], list(KINDS))
    return Drawn(figure, titled(figure, entry.label, 52), below, tips)


# The timeline


def timeline_of(entry: Entry) -> dict[str, list[Slice]]:
    """The pieces of time of each participant, in the run with the first seed that has them."""
    for run in entry.runs:
        found: dict[str, Any] = run.get("timeline") or {}
        lanes = {each["name"]: _slices(each["slices"]) for each in found.get("participants") or []}
        if any(lanes.values()):
            return lanes
    return {}


def _slices(raw: Sequence[Sequence[Any]]) -> list[Slice]:
    return [(kind, float(start), float(lasts)) for kind, start, lasts in raw if kind in TIME]


def horizon(timelines: Sequence[Mapping[str, Sequence[Slice]]], slices: int = SLICES) -> float:
    """How much of the beginning is shown: the same for all strategies, so that they can be compared.

    As much as all of them have, but a run that ended very early doesn't cut the others; and no more
    than can be told apart in the busiest.
    """
    ends = [max(start + lasts for lane in each.values() for _, start, lasts in lane) for each in timelines]
    common = min(ends) if min(ends) > 0.25 * median(ends) else median(ends)
    busy = [lane[slices][1] for each in timelines for lane in each.values() if len(lane) > slices]
    return min([common, *busy])


def timeline_figure(entry: Entry, until_s: float) -> Drawn:
    lanes = timeline_of(entry)
    names = chosen(list(lanes))
    figure, plot = _lanes(names)
    for place, name in enumerate(names):
        known = min(until_s, max((start + lasts for _, start, lasts in lanes[name]), default=0.0))
        _piece(plot, place, (0.0, known), GRID)
    for kind in KINDS:
        boxes = [
            (place, start, min(lasts, until_s - start))
            for place, name in enumerate(names)
            for what, start, lasts in lanes[name]
            if what == kind and start < until_s
        ]
        if boxes:
            plot.add_artist(_pieces(kind, boxes))
    plot.set_xlim(0, until_s)
    plot.tick_params(axis="x", colors=MUTED.light)
    measured(plot, "x", SECONDS, until_s, "time")
    return _finished(figure, entry, {})


def _pieces(kind: Kind, boxes: Sequence[tuple[int, float, float]]) -> PathPatch:
    """All pieces of a kind as one shape: thousands of single ones would make a page slow. Computing has
    an edge, so that steps that follow each other can be counted."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points, codes = [], []
    for lane, start, lasts in boxes:
        low, high, end = lane - HALF, lane + HALF, start + lasts
        points += [(start, low), (end, low), (end, high), (start, high), (start, low)]
        codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    edge = 0.35 if kind == "compute" else 0.0
    return PathPatch(Path(points, codes), facecolor=TIME[kind].light, edgecolor=GROUND.light, linewidth=edge)
