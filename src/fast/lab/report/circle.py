"""Workers on a circle, servers in the middle as squares, an arrow for the letters from one to another.

A mean is a hub with a line to everybody who takes part in it, on a shaded polygon, and how often it
was taken. The more bytes, the wider a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fast.lab.report.canvas import POINTS
from fast.lab.report.look import GROUND, INK, MUTED, Colour
from fast.lab.report.traffic import Graph
from fast.lab.report.words import COUNT

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

SIDE_IN = 2.7
HALF = 1.25
"""From the middle to the edge of the drawing; the circle's radius is 1."""
SCALE = SIDE_IN * POINTS / (2 * HALF)
"""Points per unit of the drawing."""
NUMBERED = 20
"""Up to these workers have their number inside."""
ARROWS = 300
"""More letters than these are lines without heads."""
SERVER = 0.22
"""The side of a server's square."""

Point = tuple[float, float]


def places(workers: int, servers: int) -> list[Point]:
    """Workers clockwise from the top (two of them side by side), servers in the middle."""
    if workers == 1:
        ring: list[Point] = [(0.0, 0.0)] if not servers else [(-0.75, 0.0)]
    elif workers == 2:
        ring = [(-0.8, 0.0), (0.8, 0.0)]
    else:
        turns = [2 * math.pi * index / workers for index in range(workers)]
        ring = [(math.sin(turn), math.cos(turn)) for turn in turns]
    if servers == 1:
        return [*ring, (0.75, 0.0) if workers == 1 else (0.0, 0.0)]
    inner = [2 * math.pi * index / max(1, servers) for index in range(servers)]
    radius = 0.32 if servers <= 8 else 0.5
    return ring + [(radius * math.sin(turn), radius * math.cos(turn)) for turn in inner]


def _radius(workers: int) -> float:
    """Small enough that there is room for an arrow between neighbours."""
    return 0.13 if workers < 3 else min(0.13, 0.26 * 2 * math.sin(math.pi / workers))


def draw_circle(plot: Plot, graph: Graph, colour: Colour) -> None:
    where, radius = places(graph.workers, graph.servers), _radius(graph.workers)
    _means(plot, graph, where, colour)
    _letters(plot, graph, where, radius, colour)
    for index, point in enumerate(where):
        if index >= graph.workers:
            _server(plot, point, f"s{index - graph.workers}")
        else:
            _worker(plot, point, radius, index, graph.workers)


def _server(plot: Plot, point: Point, name: str) -> None:
    from matplotlib.patches import Rectangle

    corner = (point[0] - SERVER / 2, point[1] - SERVER / 2)
    plot.add_artist(Rectangle(corner, SERVER, SERVER, facecolor=INK.light, edgecolor=GROUND.light, zorder=5))
    _name(plot, point, name, GROUND, 7.5)


def _worker(plot: Plot, point: Point, radius: float, index: int, workers: int) -> None:
    """With many workers only some have their number, and outside of the circle."""
    from matplotlib.patches import Circle

    plot.add_artist(
        Circle(point, radius, facecolor=GROUND.light, edgecolor=INK.light, linewidth=0.8, zorder=5)
    )
    if workers <= NUMBERED:
        _name(plot, point, str(index), INK, 7.5 if workers <= 12 else 6)
    elif index % (-(-workers // 16)) == 0:
        _name(plot, (1.13 * point[0], 1.13 * point[1]), str(index), MUTED, 6.5)


def _name(plot: Plot, point: Point, text: str, colour: Colour, size: float) -> None:
    plot.text(*point, text, ha="center", va="center_baseline", fontsize=size, color=colour.light, zorder=6)


def _widths(sizes: Sequence[float], thickest: float) -> list[float]:
    """Proportional to the bytes, and still to be seen for the fewest."""
    largest = max(sizes, default=0) or 1
    return [max(0.35, thickest * size / largest) for size in sizes]


def _strength(lines: int) -> tuple[float, float]:
    """How thick the thickest line is, and how opaque: many thin ones still show where they are dense."""
    if lines <= 40:
        return 2.0, 0.9
    return (1.2, 0.8) if lines <= ARROWS else (0.6, max(0.08, 40 / lines))


def _letters(plot: Plot, graph: Graph, where: Sequence[Point], radius: float, colour: Colour) -> None:
    thickest, opaque = _strength(len(graph.letters))
    widths = _widths([size for *_, size in graph.letters], thickest)
    if len(graph.letters) > ARROWS:
        _lines(plot, [(where[a], where[b]) for a, b, _, _ in graph.letters], widths, colour, opaque)
    else:
        _arrows(plot, graph, where, radius, widths, color=colour.light, alpha=opaque)


def _arrows(
    plot: Plot, graph: Graph, where: Sequence[Point], radius: float, widths: Sequence[float], **ink: Any
) -> None:
    """Two that send to each other have two arrows that bend apart."""
    from matplotlib.patches import FancyArrowPatch

    both = {(a, b) for a, b, _, _ in graph.letters}
    for (a, b, _, _), width in zip(graph.letters, widths, strict=True):
        ends = [SCALE * (SERVER / 2 if each >= graph.workers else radius) for each in (a, b)]
        plot.add_artist(
            FancyArrowPatch(
                where[a], where[b], arrowstyle="-|>",
                connectionstyle=f"arc3,rad={0.13 if (b, a) in both else 0.0}",
                mutation_scale=(5 if graph.workers <= 16 else 3) + 1.6 * width,
                shrinkA=ends[0], shrinkB=ends[1] + 0.6, linewidth=width, zorder=3, **ink,
            )
        )  # fmt: skip


def _lines(
    plot: Plot, pairs: Sequence[tuple[Point, Point]], widths: Sequence[float], colour: Colour, opaque: float
) -> None:
    from matplotlib.collections import LineCollection

    plot.add_artist(LineCollection(pairs, linewidths=widths, colors=colour.light, alpha=opaque, zorder=2))


# Means


def _means(plot: Plot, graph: Graph, where: Sequence[Point], colour: Colour) -> None:
    """Two that meet are a line; more are a hub on a polygon."""
    from matplotlib.patches import Polygon

    thickest, opaque = _strength(sum(len(members) for members, _, _ in graph.means))
    widths = _widths([size / len(members) for members, _, size in graph.means], thickest)
    for (members, times, _), width in zip(graph.means, widths, strict=True):
        corners = [where[each] for each in members]
        hub = _hub(corners)
        spokes = [(hub, corner) for corner in corners] if len(corners) > 2 else [(corners[0], corners[1])]
        _lines(plot, spokes, [width] * len(spokes), colour, opaque)
        if len(corners) > 2:
            plot.add_artist(Polygon(corners, facecolor=colour.light, alpha=0.1, linewidth=0, zorder=1))
            plot.plot(*hub, marker="o", markersize=5, color=colour.light, zorder=4)
        if len(graph.means) <= 4:
            _count(plot, (hub[0], hub[1] + 0.33) if graph.servers else hub, times)


def _hub(corners: Sequence[Point]) -> Point:
    return sum(x for x, _ in corners) / len(corners), sum(y for _, y in corners) / len(corners)


def _count(plot: Plot, point: Point, times: int) -> None:
    plot.text(
        *point, f"{COUNT.write(times)} ×", ha="center", va="center", fontsize=8, color=INK.light, zorder=7,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": GROUND.light, "edgecolor": MUTED.light, "linewidth": 0.5},
    )  # fmt: skip
