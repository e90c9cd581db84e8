"""Who sent to whom among very many: a table of groups of neighbours, the darker the more bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fast.lab.report.look import GRID, MUTED, Colour
from fast.lab.report.traffic import Graph
from fast.lab.report.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

CELLS = 32
"""At most so many groups of workers."""
SHADES = (0.08, 0.2, 0.4, 0.62, 0.85)
"""How dark; each step down stands for a tenth of the bytes."""
LEFT, TOP, SIDE = -0.9, 0.95, 1.95


def draw_matrix(plot: Plot, graph: Graph, colour: Colour) -> None:
    group = math.ceil(graph.workers / CELLS)
    table = traffic(graph)
    _cells(plot, table, colour)
    _frame(plot, math.ceil(graph.workers / group), len(table))
    servers = f" and {plural(graph.servers, 'server')}" if graph.servers else ""
    _text(
        plot, LEFT, TOP + 0.06, f"{graph.workers} workers{servers}, {group} to a cell", va="bottom", size=7.5
    )
    _text(plot, LEFT + SIDE / 2, TOP - SIDE - 0.07, "to", ha="center", va="top")
    _text(plot, LEFT - 0.07, TOP - SIDE / 2, "from", ha="right", va="center", rotation=90)


def _text(plot: Plot, x: float, y: float, text: str, **options: Any) -> None:
    plot.text(x, y, text, **{"color": MUTED.light, "size": 8, **options})


def traffic(graph: Graph) -> NDArray[np.float64]:
    """Bytes between groups of workers, servers last. A mean's bytes go evenly from all members to all."""
    group = math.ceil(graph.workers / CELLS)
    groups = math.ceil(graph.workers / group)
    size = groups + math.ceil(graph.servers / group)
    table = np.zeros((size, size))

    def cell(peer: int) -> int:
        return peer // group if peer < graph.workers else groups + (peer - graph.workers) // group

    for sender, receiver, _, sent in graph.letters:
        table[cell(sender), cell(receiver)] += sent
    for members, _, sent in graph.means:
        share = np.bincount([cell(each) for each in members], minlength=size) / len(members)
        table += sent * np.outer(share, share)
    return table


def _cells(plot: Plot, table: NDArray[np.float64], colour: Colour) -> None:
    """Each shade as one shape."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    step, largest = SIDE / len(table), table.max() or 1.0
    for shade, darkness in enumerate(SHADES):
        points, codes = [], []
        for row, column in zip(*np.nonzero(shades(table, largest) == shade), strict=True):
            x, y = LEFT + column * step, TOP - row * step
            points += [(x, y), (x + step, y), (x + step, y - step), (x, y - step), (x, y)]
            codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
        if points:
            plot.add_artist(
                PathPatch(Path(points, codes), facecolor=colour.light, alpha=darkness, linewidth=0)
            )


def shades(table: NDArray[np.float64], largest: float) -> NDArray[np.int64]:
    """The darkest for the most bytes, one step down for each tenth, -1 for none."""
    positive = table > 0
    tenths = np.zeros(table.shape)
    tenths[positive] = np.floor(np.log10(largest / table[positive]) + 1e-9)
    return np.where(positive, np.maximum(len(SHADES) - 1 - tenths, 0), -1).astype(np.int64)


def _frame(plot: Plot, groups: int, cells: int) -> None:
    from matplotlib.patches import Rectangle

    plot.add_artist(
        Rectangle((LEFT, TOP - SIDE), SIDE, SIDE, fill=False, edgecolor=GRID.light, linewidth=0.8)
    )
    if cells > groups:
        edge = SIDE * groups / cells
        plot.plot([LEFT + edge] * 2, [TOP, TOP - SIDE], color=MUTED.light, linewidth=0.6)
        plot.plot([LEFT, LEFT + SIDE], [TOP - edge] * 2, color=MUTED.light, linewidth=0.6)
