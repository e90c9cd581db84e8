"""An advice as a picture: what a step of each candidate would take, how much of it computes, and what that means.

A bar is the predicted time of a worker's step. Beside it stands the time to the target against synchronous training,
which also counts how many samples a candidate needs: the ranking goes by that, so the shortest bar isn't always the
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fast.lab.planner.advice import Advice, Ranked
from fast.lab.report.canvas import Drawn, Margins, canvas, drawing, legend_below, shortened, titled
from fast.lab.report.look import GROUND, INK, MUTED, TIME
from fast.lab.report.svg import both_svgs
from fast.lab.report.words import SECONDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, LANE_IN = 8.6, 0.3
HALF = 0.33
"""Half the height of a bar, where lanes are 1 apart."""
NAME = 34
"""Longer calls are cut."""
LONGEST = 8.0
"""A bar that is so many times as long as the shortest one is broken off, and says how long it is."""
SAID = 0.44
"""The share of the width to the right of the bars, for the words."""


def advice_picture(advice: Advice) -> str:
    """The candidates of an advice, best first, as an SVG file."""
    with drawing():
        return both_svgs(advice_figure(advice), "plan", _title(advice))[1]


def advice_figure(advice: Advice) -> Drawn:
    from matplotlib.patches import Patch

    ranked = advice.ranked
    lanes = max(1, len(ranked))
    margins = Margins(left=2.35, right=0.1, top=0.06, bottom=0.46)
    figure, plot = canvas(WIDTH_IN, margins.top + margins.bottom + LANE_IN * lanes, margins)
    end_s = shown_s(ranked)
    for lane, each in enumerate(ranked):
        _bar(plot, lane, each, end_s, first=lane == 0)
    _axes(plot, ranked, end_s)
    kinds = (("compute", "computes"), ("wait", "waits and exchanges"))
    below = legend_below(
        figure, [Patch(color=TIME[kind].light) for kind, _ in kinds], [said for _, said in kinds]
    )
    return Drawn(figure, titled(figure, _title(advice), 84), below)


def shown_s(ranked: Sequence[Ranked]) -> float:
    """Where the axis of time ends: the longest bar, unless the shortest one could hardly be seen beside it."""
    steps = [each.prediction.step_s for each in ranked]
    return min(max(steps, default=1.0), LONGEST * min(steps, default=1.0)) or 1.0


def said_of(each: Ranked) -> str:
    """The words beside a bar."""
    return f"{SECONDS.write(each.prediction.step_s)}, {each.samples:.2g} x the samples: {each.time:.2f} x the time"


def _bar(plot: Axes, lane: int, each: Ranked, end_s: float, *, first: bool) -> None:
    step_s, computing = each.prediction.step_s, each.prediction.computing
    busy_s, shown = min(step_s * computing, end_s), min(step_s, end_s)
    _piece(plot, lane, 0.0, busy_s, TIME["compute"].light)
    _piece(plot, lane, busy_s, shown - busy_s, TIME["wait"].light)
    if step_s > end_s:
        _break(plot, lane, end_s)
    colour = INK.light if first else MUTED.light
    plot.text(1.03 * end_s, lane, said_of(each), va="center", color=colour, size=7.5)


def _piece(plot: Axes, lane: int, start: float, length: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    if length > 0:
        plot.add_artist(Rectangle((start, lane - HALF), length, 2 * HALF, facecolor=colour, linewidth=0))


def _break(plot: Axes, lane: int, end_s: float) -> None:
    """Two slanted cuts near the end of a bar that is longer than the axis."""
    for place in (0.95, 0.97):
        plot.plot(
            [(place - 0.006) * end_s, (place + 0.006) * end_s], [lane + HALF + 0.06, lane - HALF - 0.06],
            color=GROUND.light, linewidth=1.4,
        )  # fmt: skip


def _axes(plot: Axes, ranked: Sequence[Ranked], end_s: float) -> None:
    from matplotlib.ticker import FuncFormatter

    one, unit = SECONDS.unit(end_s)
    plot.set_ylim(max(1, len(ranked)) - 0.5, -0.5)
    plot.set_xlim(0, end_s / (1 - SAID))
    plot.set_yticks(range(len(ranked)), [shortened(each.call, NAME) for each in ranked])
    plot.set_xticks([end_s * part / 4 for part in range(5)])
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / one:.3g}"))
    plot.set_xlabel(f"predicted time of a step ({unit})", x=(1 - SAID) / 2)
    plot.spines["bottom"].set_bounds(0, end_s)
    plot.grid(visible=False)


def _title(advice: Advice) -> str:
    situation = advice.situation
    return (
        f"{situation.sizes.name}, {situation.workers} workers, {SECONDS.write(situation.step_s)} a step: candidates by "
        "predicted time to the target, against allreduce"
    )
