"""The trade-off as a picture: time to the target against bytes sent until then, one mark per setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from fast.lab.report.canvas import POINTS, Drawn, Margins, canvas, drawing, legend_below, titled
from fast.lab.report.look import GRID, GROUND, INK, MUTED, Look, look
from fast.lab.report.svg import both_svgs
from fast.lab.report.words import BYTES, SECONDS, Measure
from fast.lab.settings import Simulated
from fast.lab.sweep.labels import Box, Label, placed
from fast.lab.sweep.points import Point, best
from fast.lab.sweep.running import Swept

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

SIZE_IN = (9.4, 5.4)
MARK = 6.5
"""The width of a mark in points; those that another setting beats are smaller."""
ROOM = 1.25
"""The axes end so many times beyond the outermost marks, and farther where there is much between them."""
NAMED = 24
"""So many labels at most."""
TITLE = 120


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis: its ends, and where a zero is drawn if there is one, for it has no place of its own."""

    low: float
    high: float
    zero: float | None = None

    @staticmethod
    def of(values: Sequence[float]) -> Scale:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = min(positive), max(positive)
        zero = low / 10 if any(value <= 0 for value in values) else None
        low = low if zero is None else zero
        room = max(ROOM, (high / low) ** 0.08)
        return Scale(low / room, high * room, zero)

    def at(self, value: float) -> float:
        return value if value > 0 or self.zero is None else self.zero

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; of many decades the powers only, of a short stretch more."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        fine = (1.0,) if len(decades) > 5 else (1.0, 2.0, 5.0)
        found = self._inside([step * 10.0**decade for decade in decades for step in fine])
        if len(found) < 3:
            found = self._inside(self._even())
        if self.zero is None:
            return found
        return [self.zero, *(tick for tick in found if tick > 2 * self.zero)]

    def _even(self) -> list[float]:
        """Equally far apart in numbers rather than in powers, for a short stretch."""
        most = (self.high - self.low) / 4
        decade = 10.0 ** math.floor(math.log10(most))
        step = max(each * decade for each in (1.0, 2.0, 5.0) if each * decade <= most)
        return [
            number * step for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        ]

    def _inside(self, ticks: Sequence[float]) -> list[float]:
        return [tick for tick in ticks if self.low <= tick <= self.high]


def draw_trade_off(swept: Swept) -> str | None:
    """As SVG; None if nobody reached the target, for then there is nothing to draw."""
    if not swept.reached:
        return None
    with drawing():
        drawn = _Drawing(swept).draw()
        settings = swept.sweep.plan.settings
        alt = f"Trade-off of {settings.task} on {settings.workers} workers: " + "; ".join(
            f"{point.label}: {_words(point)}" for point in swept.front
        )
        return both_svgs(drawn, "trade-off", alt)[1]


def _words(point: Point) -> str:
    return f"{SECONDS.write(point.time_to_target_s)}, {BYTES.write(point.bytes_to_target)}"


@dataclass(frozen=True)
class _Drawing:
    swept: Swept

    def draw(self) -> Drawn:
        figure, plot = canvas(*SIZE_IN, Margins(left=0.72, right=0.2))
        points = [point for point in self.swept.points if point.cost is not None]
        times = Scale.of([point.cost[0] for point in points if point.cost])
        volumes = Scale.of([point.cost[1] for point in points if point.cost])
        _axis(plot, "x", times, SECONDS, "time to target")
        _axis(plot, "y", volumes, BYTES, "sent until then")
        plot.grid(axis="both", color=GRID.light, linewidth=0.7)
        steps = _front_line(plot, [_place(point, times, volumes) for point in self.swept.front])
        places = {point: _place(point, times, volumes) for point in points}
        handles = self._marks(plot, places)
        below = legend_below(figure, list(handles.values()), list(handles))
        above = titled(figure, self._title(), TITLE)
        named = {point: self._colour(point) for point in self._named(points)}
        _label(figure, plot, named, places, steps)  # last: now the figure has its size
        return Drawn(figure, above_in=above, below_in=below)

    def _looks(self) -> dict[str, Look]:
        return {asked: look(number) for number, asked in enumerate(self.swept.tried)}

    def _colour(self, point: Point) -> str:
        """Of the first strategy that has tried it."""
        return next(
            style.colour.light for asked, style in self._looks().items() if point in self.swept.tried[asked]
        )

    def _marks(self, plot: Plot, places: Mapping[Point, tuple[float, float]]) -> dict[str, Artist]:
        """By the names of the legend. What is beaten is pale and lies below."""
        handles: dict[str, Artist] = {}
        unbeaten = set(self.swept.front)
        for asked, style in self._looks().items():
            mine = [point for point in self.swept.tried[asked] if point in places]
            for point in mine:
                x, y = places[point]
                top = point in unbeaten
                plot.plot(
                    [x], [y], linestyle="none", marker=style.marker, markersize=MARK if top else MARK - 1.5,
                    color=style.colour.light, alpha=1.0 if top else 0.4, markeredgecolor=GROUND.light,
                    markeredgewidth=0.6, zorder=4 if top else 3,
                )  # fmt: skip
            (handle,) = plot.plot(
                [], [], linestyle="none", marker=style.marker, markersize=MARK, color=style.colour.light
            )
            label = self.swept.labels[asked]
            handles[label if mine else f"{label} (never at the target)"] = handle
        (line,) = plot.plot([], [], color=INK.light, linewidth=1.1)
        handles["no setting is faster with fewer bytes"] = line
        return handles

    def _named(self, points: Sequence[Point]) -> list[Point]:
        """What no other beats, then the fastest of each strategy."""
        fastest = [best(each) for each in self.swept.tried.values() if each]
        named = dict.fromkeys([*self.swept.front, *(point for point in fastest if point in points)])
        return list(named)[:NAMED]

    def _title(self) -> str:
        settings, world = self.swept.sweep.plan.settings, self.swept.sweep.plan.settings.world
        words = [settings.task, f"{settings.workers} worker{'s' * (settings.workers > 1)}"]
        words += [world.short()] if isinstance(world, Simulated) else []
        return ", ".join([*words, f"target {settings.target:g}"])


def _place(point: Point, times: Scale, volumes: Scale) -> tuple[float, float]:
    assert point.cost is not None
    return times.at(point.cost[0]), volumes.at(point.cost[1])


def _axis(plot: Plot, side: str, scale: Scale, measure: Measure, what: str) -> None:
    """In one unit, which the label names."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    one, unit = measure.unit(math.sqrt(scale.low * scale.high))
    ticks = scale.ticks()
    names = {tick: "0" if tick == scale.zero else f"{tick / one:.6g}" for tick in ticks}
    axis = plot.xaxis if side == "x" else plot.yaxis
    if side == "x":
        plot.set_xscale("log")
        plot.set_xlim(scale.low, scale.high)
    else:
        plot.set_yscale("log")
        plot.set_ylim(scale.low, scale.high)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, f"{value / one:.6g}")))
    axis.set_label_text(f"{what} ({unit})", color=MUTED.light)


def _front_line(plot: Plot, places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A staircase: between two settings the one before is still the best that there is. Returns its corners."""
    corners = [corner for here, there in pairwise(places) for corner in (here, (there[0], here[1]))]
    corners += places[-1:]
    plot.plot(*zip(*corners, strict=True), color=INK.light, linewidth=1.1, zorder=2)
    return corners


def _label(
    figure: Figure,
    plot: Plot,
    named: Mapping[Point, str],
    places: Mapping[Point, tuple[float, float]],
    corners: Sequence[tuple[float, float]],
) -> None:
    """Each in its colour, beside its mark or with a thin line to it."""
    to_points = _to_points(figure, plot)
    marks = {point: to_points(*place) for point, place in places.items()}
    taken = [Box(x, y, x, y).grown(MARK / 2) for x, y in marks.values()]
    taken += [_between(to_points(*one), to_points(*other)).grown(1.0) for one, other in pairwise(corners)]
    width, height = figure.get_size_inches() * POINTS
    box = plot.get_position()
    bounds = Box(box.x0 * width, box.y0 * height, width - 2, box.y1 * height)
    labels = [Label(*marks[point], *_extent(figure, point.label)) for point in named]
    for point, label, place in zip(named, labels, placed(labels, taken, bounds), strict=True):
        if place is not None:
            _write(figure, point.label, named[point], label, place)


def _write(figure: Figure, text: str, colour: str, label: Label, place: Box) -> None:
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches() * POINTS
    near_x = min(max(label.x, place.left), place.right)
    near_y = min(max(label.y, place.bottom), place.top)
    if math.dist((label.x, label.y), (near_x, near_y)) > 2 * MARK:
        ends = [label.x / width, near_x / width], [label.y / height, near_y / height]
        figure.add_artist(Line2D(*ends, color=MUTED.light, linewidth=0.5, zorder=1))
    figure.text(
        place.left / width, place.bottom / height, text, fontsize=7.5, color=colour, va="bottom", ha="left"
    )


def _to_points(figure: Figure, plot: Plot) -> _ToPoints:
    width, height = figure.get_size_inches() * POINTS
    return _ToPoints(plot, width, height)


@dataclass(frozen=True)
class _ToPoints:
    """From the values of both axes to points from the figure's lower left corner."""

    plot: Plot
    width: float
    height: float

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        box = self.plot.get_position()
        across, up = _share(x, *self.plot.get_xlim()), _share(y, *self.plot.get_ylim())
        return (box.x0 + across * box.width) * self.width, (box.y0 + up * box.height) * self.height


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _between(one: tuple[float, float], other: tuple[float, float]) -> Box:
    (x, y), (u, v) = one, other
    return Box(min(x, u), min(y, v), max(x, u), max(y, v))


def _extent(figure: Figure, text: str) -> tuple[float, float]:
    """In points, with a little room: whoever shows the picture may have another font."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    probe = figure.text(0, 0, text, fontsize=7.5)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    size = probe.get_window_extent(renderer)
    probe.remove()
    scale = POINTS / figure.dpi
    return size.width * scale * 1.06 + 2, size.height * scale + 2
