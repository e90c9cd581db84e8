"""Who talks to whom, as a picture: a circle, or a table if there are too many for one."""

from __future__ import annotations

from fast.lab.report.canvas import Drawn, blank, titled
from fast.lab.report.circle import HALF, SIDE_IN, draw_circle
from fast.lab.report.matrix import draw_matrix
from fast.lab.report.reading import Entry
from fast.lab.report.traffic import Graph

ON_CIRCLE = 64
"""More workers than these are put together in a table."""


def graph_figure(graph: Graph, entry: Entry) -> Drawn:
    figure = blank(SIDE_IN, SIDE_IN)
    plot = figure.add_axes((0, 0, 1, 1))
    plot.set_axis_off()
    plot.set_aspect("equal")
    plot.set_xlim(-HALF, HALF)
    plot.set_ylim(-HALF, HALF)
    draw = draw_circle if graph.workers <= ON_CIRCLE else draw_matrix
    draw(plot, graph, entry.look.colour)
    return Drawn(figure, above_in=titled(figure, entry.label, 36))
