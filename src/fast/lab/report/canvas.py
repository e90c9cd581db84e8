"""Figures with the look of the house, through matplotlib's objects and none of its global state."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fast.lab.report.look import GRID, INK, MUTED
from fast.lab.report.words import Measure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 72.0
LEGEND_LINE_IN = 0.19
LABEL = 110
"""Longer labels are cut in a legend on paper."""


@dataclass(frozen=True)
class Margins:
    """Space around the axes, in inches: fixed, so that figures beside each other line up."""

    left: float = 0.62
    right: float = 0.12
    top: float = 0.1
    bottom: float = 0.52


@dataclass(frozen=True)
class Drawn:
    """A finished figure. Titles and legends in the strips above and below are for paper: the page
    has its own, so there the strips are cut off."""

    figure: Figure
    above_in: float = 0.0
    below_in: float = 0.0
    tips: Mapping[str, str] = field(default_factory=dict)
    """Texts for artists by their gid, shown when they are pointed at."""


@contextmanager
def drawing() -> Iterator[None]:
    """While figures are made: text stays text, and nothing depends on the user's own settings.

    A sign that the measuring font lacks is still written as text, for whoever shows it has it.
    """
    import matplotlib

    settings = {
        **matplotlib.rcParamsDefault,
        "svg.fonttype": "none",
        "svg.hashsalt": "fast",
        "text.parse_math": False,
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 8.5,
        "legend.fontsize": 8,
        "path.simplify_threshold": 0.05,
        "text.color": INK.light,
        "axes.labelcolor": MUTED.light,
        "xtick.color": MUTED.light,
        "ytick.color": MUTED.light,
    }
    settings = {key: value for key, value in settings.items() if not key.startswith("backend")}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def canvas(width_in: float, height_in: float, margins: Margins | None = None) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, without any background."""
    figure = blank(width_in, height_in)
    around = margins or Margins()
    axes = figure.add_axes(
        (
            around.left / width_in,
            around.bottom / height_in,
            1 - (around.left + around.right) / width_in,
            1 - (around.bottom + around.top) / height_in,
        )
    )
    tidy(axes)
    return figure, axes


def blank(width_in: float, height_in: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in))
    figure.patch.set_visible(False)
    return figure


def tidy(axes: Axes) -> None:
    """Quiet axes: a base line, thin grid lines, no box."""
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED.light)
    axes.spines["bottom"].set_linewidth(0.6)
    axes.grid(axis="y", color=GRID.light, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=4)
    axes.tick_params(axis="x", length=3, width=0.6, color=MUTED.light)


def measured(axes: Axes, side: str, measure: Measure, largest: float, what: str) -> None:
    """Ticks in one unit for the whole axis, which its label names."""
    from matplotlib.ticker import FuncFormatter

    one, unit = measure.unit(largest)
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / one:g}"))
    axis.set_label_text(f"{what} ({unit})" if unit else what)


def titled(figure: Figure, text: str, characters: int) -> float:
    """A title in a strip above, for paper only; on the page it is text beside the figure.

    Returns by how many inches the figure grew.
    """
    lines = shortened(text, characters, lines=3)
    above = 0.17 * (lines.count("\n") + 1) + 0.12
    grow(figure, above_in=above)
    height = figure.get_figheight()
    x = min((axes.get_position().x0 for axes in figure.axes), default=0.02)
    figure.text(x, 1 - 0.05 / height, lines, va="top", color=INK.light, gid="paper-title")
    return above


def shortened(text: str, width: int, lines: int = 1) -> str:
    """In at most so many lines; what doesn't fit is left out in the middle, for names often differ at
    their ends only."""
    broken = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    if len(broken) <= lines:
        return "\n".join(broken)
    room = lines * width - 1
    kept = f"{text[: room - room // 2]}…{text[len(text) - room // 2 :]}"
    return "\n".join(kept[start : start + width] for start in range(0, len(kept), width))


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> float:
    """A legend in a strip below, for paper only. Returns by how many inches the figure grew."""
    longest = max((len(label) for label in labels), default=1)
    columns = max(1, min(len(labels), int(figure.get_figwidth() / (0.42 + 0.068 * min(longest, LABEL)))))
    below = -(-len(labels) // columns) * LEGEND_LINE_IN + 0.08
    grow(figure, below_in=below)
    shown = [_legible(shortened(label, LABEL)) for label in labels]
    legend = figure.legend(
        handles, shown, loc="lower left", bbox_to_anchor=(0.0, 0.0), ncols=columns, frameon=False,
        handlelength=2.6, columnspacing=1.4, labelspacing=0.35, borderaxespad=0.3,
    )  # fmt: skip
    legend.set_gid("paper-legend")
    return below


def grow(figure: Figure, *, above_in: float = 0.0, below_in: float = 0.0) -> None:
    """Make a figure taller; what is in it keeps its size."""
    width, height = figure.get_size_inches()
    taller = height + above_in + below_in
    for axes in figure.axes:
        box = axes.get_position()
        axes.set_position(
            (box.x0, (box.y0 * height + below_in) / taller, box.width, box.height * height / taller)
        )
    figure.set_size_inches(width, taller)


def _legible(label: str) -> str:
    """matplotlib leaves out labels that begin with an underscore."""
    return f"\u200a{label}" if label.startswith("_") else label
