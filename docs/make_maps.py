"""Draws what the planner knows: docs/pictures/delays.svg, map_network.svg and map_stragglers.svg.

    python docs/make_maps.py              # all of them, minutes: the maps ask the advisor for every cell
    python docs/make_maps.py delays       # or one: delays, network, stragglers
    python docs/make_maps.py network --parameters 132.9e6 --step 0.2s --workers 8 --out .      # of a model of yours

delays: what one exchange of a model takes by pattern, model, cluster size and network, against the time of a step's
computing: figure 14 of the taxonomy (Langer et al., 2020), with link rates and computing times that are stated here.
network and stragglers: what the advisor takes first, over rate and latency of the links, and over the number of
workers and how they straggle. Everything is deterministic: a picture changes only if the models do.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from fast.errors import UsageError
from fast.lab.planner.advisor import advise
from fast.lab.planner.closed_forms import PATTERNS, Exchange
from fast.lab.planner.situation import Situation
from fast.lab.planner.techniques import TECHNIQUES
from fast.lab.report.look import STRATEGIES
from fast.lab.settings import Simulated
from fast.lab.sizes import Sizes

FOLDER = Path(__file__).resolve().parent / "pictures"
WIDTH = 920
Point = tuple[float, float]

STYLE = """
  text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #333a44 }
  .small { font-size: 11px; fill: #5d6773 }
  .tiny { font-size: 9.5px }
  .card { fill: #fcfcfa; stroke: #d5d9de }
  .rule { stroke: #d5d9de; stroke-width: 1 }
  .computing { stroke: #333a44; stroke-width: 1.5; stroke-dasharray: 9 3 2 3; fill: none }
  .curve { stroke-width: 1.7; fill: none }
  .cell { fill-opacity: 0.22; stroke: #fcfcfa; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #d7dde4 }
    .small { fill: #9aa5b1 }
    .card { fill: #171b21; stroke: #343b44 }
    .rule { stroke: #343b44 }
    .computing { stroke: #d7dde4 }
    .cell { fill-opacity: 0.3; stroke: #171b21 }
  }
"""


def colours(kind: str, role: str) -> str:
    """The colours of the house as classes, light and dark."""
    light = "\n".join(f"  .{kind}{n} {{ {role}: {each.light} }}" for n, each in enumerate(STRATEGIES))
    dark = "\n".join(f"    .{kind}{n} {{ {role}: {each.dark} }}" for n, each in enumerate(STRATEGIES))
    return f"{light}\n  @media (prefers-color-scheme: dark) {{\n{dark}\n  }}\n"


def line(kind: str, a: Point, b: Point) -> str:
    return f'<line class="{kind}" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"/>'


def box(
    kind: str, x: float, y: float, width: float, height: float, corner: float = 0, title: str = ""
) -> str:
    body = f"><title>{escape(title)}</title></rect>" if title else "/>"
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{corner:g}"{body}'
    )


def words(at: Point, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def picture(height: float, title: str, style: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" role="img">'
    )
    card = box("card", 0.5, 0.5, WIDTH - 1, height - 1, 8)
    return "\n".join(
        [head, f"<title>{escape(title)}</title>", f"<style>{style}</style>", card, *parts, "</svg>", ""]
    )


# Delays


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    step_s: float
    """Of computing, on one worker: stated, not measured."""


@dataclass(frozen=True)
class Links:
    name: str
    rate_bytes_per_s: float


MODELS = (
    Model("GoogLeNet", 6.8e6, 0.25),
    Model("ResNet-50", 25.6e6, 0.2),
    Model("VGG-A", 132.9e6, 0.2),
)
LINKS = (
    Links("1 Gbit/s Ethernet", 125e6),
    Links("10 Gbit/s Ethernet", 1.25e9),
    Links("InfiniBand FDR, 7 GB/s", 7e9),
)
COUNTS = tuple(range(2, 65))
SHORTEST_S, LONGEST_S = 1e-2, 1e3
DASHES = ("", "", "", "2 3", "2 3", "", "", "6 4")
"""By pattern: those of one worker or without order are dotted, and the ring hides nearly nothing of the shards."""
ACROSS, DOWN, PANEL_WIDTH, PANEL_HEIGHT = 66, 62, 256, 176
GAP_X, GAP_Y = 28, 46


def draw_delays() -> str:
    """A panel for each model and network: seconds over workers, both logarithmic."""
    parts = [words((24, 28), "One exchange of the model by pattern, against computing one step (log scales)")]
    for row, links in enumerate(LINKS):
        for column, model in enumerate(MODELS):
            corner = ACROSS + column * (PANEL_WIDTH + GAP_X), DOWN + row * (PANEL_HEIGHT + GAP_Y)
            parts += delay_panel(model, links, corner, labelled=column == 0, last=row == len(LINKS) - 1)
    bottom = DOWN + len(LINKS) * (PANEL_HEIGHT + GAP_Y) + 14
    parts += delay_legend(bottom)
    style = STYLE + colours("p", "stroke")
    return picture(bottom + 50, "Delay of one exchange by pattern, model, network and workers", style, parts)


def delay_panel(model: Model, links: Links, corner: Point, *, labelled: bool, last: bool) -> Iterator[str]:
    left, top = corner
    exchange = Exchange.of(4 * model.parameters, links.rate_bytes_per_s)
    yield words((left, top - 8), f"{model.name}, {links.name}")
    for power in range(-2, 4):
        y = delay_y(top, 10.0**power)
        yield line("rule", (left, y), (left + PANEL_WIDTH, y))
        if labelled:
            yield words((left - 6, y + 4), seconds_text(10.0**power), "small", "end")
    for count in (2, 4, 8, 16, 32, 64):
        x = delay_x(left, count)
        yield line("rule", (x, top + PANEL_HEIGHT), (x, top + PANEL_HEIGHT + 4))
        yield words((x, top + PANEL_HEIGHT + 16), f"{count}", "small", "middle")
    if last:
        yield words((left + PANEL_WIDTH / 2, top + PANEL_HEIGHT + 31), "workers", "small", "middle")
    for number, pattern in enumerate(PATTERNS):
        points = [(delay_x(left, n), delay_y(top, exchange.seconds(pattern, n))) for n in COUNTS]
        yield curve(number, points)
    y = delay_y(top, model.step_s)
    yield line("computing", (left, y), (left + PANEL_WIDTH, y))


def delay_x(left: float, workers: int) -> float:
    return left + PANEL_WIDTH * (math.log2(workers) - 1) / 5


def delay_y(top: float, seconds: float) -> float:
    place = math.log(LONGEST_S / seconds) / math.log(LONGEST_S / SHORTEST_S)
    return top + PANEL_HEIGHT * min(max(place, 0.0), 1.0)


def curve(number: int, points: Sequence[Point]) -> str:
    dashes = f' stroke-dasharray="{DASHES[number]}"' if DASHES[number] else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="curve p{number}" points="{path}"{dashes}/>'


def delay_legend(top: float) -> Iterator[str]:
    shown = [*PATTERNS, "computing a step"]
    for number, name in enumerate(shown):
        x, y = 66 + (number % 5) * 168, top + 20 * (number // 5)
        if name in PATTERNS:
            yield curve(number, [(x, y - 4), (x + 24, y - 4)])
        else:
            yield line("computing", (x, y - 4), (x + 24, y - 4))
        yield words((x + 30, y), name, "small")


def seconds_text(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


# Maps


@dataclass(frozen=True)
class Axis:
    """The words of an option of `fast plan` for each place, and how they are shown."""

    title: str
    values: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """Whose map it is; of workers and network each map needs the one that isn't on its axes."""

    name: str
    parameters: float
    step: str
    workers: int = 16
    network: str = "10gbit"

    def __str__(self) -> str:
        return f"{self.name} ({self.parameters / 1e6:g} million parameters)"


@dataclass(frozen=True)
class Map:
    file: str
    subject: Subject
    says: Callable[[Subject], str]
    across: Axis
    down: Axis
    situation: Callable[[Subject, str, str], Situation]
    cell: tuple[float, float]

    @property
    def title(self) -> str:
        return self.says(self.subject)


@dataclass(frozen=True)
class Choice:
    """What the advisor takes first."""

    technique: str
    call: str


def on_network(subject: Subject, rate: str, latency: str) -> Situation:
    world = Simulated(network=f"{rate},{latency}", step=subject.step)
    return Situation.of(Sizes.of_parameters(subject.parameters), subject.workers, world)


def network_title(subject: Subject) -> str:
    return f"{subject} on {subject.workers} workers, {spaced(subject.step)} of computing a step"


def straggler_title(subject: Subject) -> str:
    network = spaced(subject.network).replace("bit", "bit/s")
    return f"{subject} on {network}, {spaced(subject.step)} of computing a step"


def spaced(text: str) -> str:
    """A number and its unit as one reads them.

    >>> spaced("0.2s"), spaced("10gbit"), spaced("infiniband")
    ('0.2 s', '10 Gbit', 'infiniband')
    """
    found = re.fullmatch(r"([\d.]+)([a-z]+)", text)
    if found is None:
        return text
    number, unit = found.groups()
    return f"{number} {unit.capitalize() if unit.endswith('bit') else unit}"


def on_stragglers(subject: Subject, workers: str, straggling: str) -> Situation:
    kind, _, value = straggling.partition(" ")
    world = Simulated(
        network=subject.network,
        step=subject.step,
        spread=float(value) if kind == "spread" else None,
        straggler=value if kind == "straggler" else None,
    )
    return Situation.of(Sizes.of_parameters(subject.parameters), int(workers), world)


NETWORK = Map(
    "map_network.svg",
    Subject("ResNet-50", 25.6e6, "0.2s"),
    network_title,
    Axis(
        "rate of a link",
        ("10mbit", "100mbit", "300mbit", "1gbit", "3gbit", "10gbit", "100gbit"),
        ("10 Mbit/s", "100 Mbit/s", "300 Mbit/s", "1 Gbit/s", "3 Gbit/s", "10 Gbit/s", "100 Gbit/s"),
    ),
    Axis("latency", ("10ms", "1ms", "100us", "10us"), ("10 ms", "1 ms", "100 µs", "10 µs")),
    on_network,
    (114, 44),
)
STRAGGLERS = Map(
    "map_stragglers.svg",
    Subject("GoogLeNet", 6.8e6, "0.25s"),
    straggler_title,
    Axis("workers", ("4", "8", "16", "32"), ("4", "8", "16", "32")),
    Axis(
        "straggling",
        (
            "none",
            "spread 0.3",
            "straggler 4x@0.02",
            "straggler 4x@0.2",
            "straggler 2x",
            "straggler 4x",
            "straggler 8x",
        ),
        (
            "all alike",
            "steps scatter, sigma 0.3",
            "4 x slower in 2 % of steps",
            "4 x slower in 20 % of steps",
            "one always 2 x slower",
            "one always 4 x slower",
            "one always 8 x slower",
        ),
    ),
    on_stragglers,
    (172, 40),
)
MAPS = {"network": NETWORK, "stragglers": STRAGGLERS}
MAP_STYLE = """
  .strong { fill-opacity: 0.75 }
"""


def choice(asked: tuple[Map, int, int]) -> Choice:
    """Of one cell: which map, row, column."""
    map_, row, column = asked
    situation = map_.situation(map_.subject, map_.across.values[column], map_.down.values[row])
    best = advise(situation, what_ifs=False).ranked[0]
    return Choice(best.technique.name, best.call)


def choices(map_: Map, processes: int) -> list[list[Choice]]:
    """Row by row. Cells are independent, so it makes no difference who works them out."""
    rows, columns = len(map_.down.values), len(map_.across.values)
    asked = [(map_, row, column) for row in range(rows) for column in range(columns)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn) as pool:
        found = list(pool.map(choice, asked))
    return [found[row * columns : (row + 1) * columns] for row in range(rows)]


def draw_map(map_: Map, found: Sequence[Sequence[Choice]]) -> str:
    width, height = map_.cell
    left, top = WIDTH - 22 - width * len(map_.across.values), 58
    bottom = top + height * len(map_.down.values)
    parts = [words((24, 28), f"What the advisor takes first: {map_.title}")]
    parts += [
        words((left - 8, top + height * (row + 0.5) + 4), text, "small", "end")
        for row, text in enumerate(map_.down.names)
    ]
    parts += [
        words((left + width * (column + 0.5), bottom + 16), text, "small", "middle")
        for column, text in enumerate(map_.across.names)
    ]
    parts.append(words(((left + WIDTH - 22) / 2, bottom + 33), map_.across.title, "small", "middle"))
    parts.append(words((left - 8, top - 8), map_.down.title, "small", "end"))
    for row, cells in enumerate(found):
        for column, each in enumerate(cells):
            parts += draw_cell(each, (left + width * column, top + height * row), map_.cell)
    parts += map_legend(found, bottom + 54)
    return picture(bottom + 92, map_.title, STYLE + MAP_STYLE + colours("t", "fill"), parts)


def draw_cell(each: Choice, corner: Point, size: tuple[float, float]) -> Iterator[str]:
    """The colour says the technique, the words say the preset."""
    (x, y), (width, height) = corner, size
    number = list(TECHNIQUES).index(each.technique)
    yield box(f"cell t{number}", x, y, width, height, 3, each.call)
    name, bracket, rest = each.call.partition("(")
    middle = x + width / 2
    if not bracket:
        yield words((middle, y + height / 2 + 4), name, "tiny", "middle")
        return
    yield words((middle, y + height / 2 - 2), name, "tiny", "middle")
    yield words((middle, y + height / 2 + 11), shortened(rest[:-1], int(width / 5.6)), "tiny", "middle")


def shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def map_legend(found: Sequence[Sequence[Choice]], top: float) -> Iterator[str]:
    """Of the techniques that are there; two lines, if they need them."""
    x, y = 24.0, top
    for number, (name, technique) in enumerate(TECHNIQUES.items()):
        if any(each.technique == name for row in found for each in row):
            needed = 44 + 5.8 * len(technique.words)
            if x + needed > WIDTH:
                x, y = 24.0, y + 20
            yield box(f"cell strong t{number}", x, y - 10, 16, 12, 2)
            yield words((x + 22, y), technique.words, "small")
            x += needed


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw what the planner knows.")
    parser.add_argument("pictures", nargs="*", help="all, unless told")
    parser.add_argument("--parameters", type=float, help="of a model of yours, for the maps")
    parser.add_argument("--step", help="how long it computes a step, such as 0.2s")
    parser.add_argument("--workers", type=int, help="on how many, for the map of networks")
    parser.add_argument("--network", help="over which links, for the map of stragglers")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write them to")
    asked = parser.parse_args()
    for name in asked.pictures:
        if name not in ("delays", *MAPS):
            parser.error(f"{name}: there is no such picture; there are delays, {', '.join(MAPS)}")
    return asked


def asked_for(map_: Map, asked: argparse.Namespace) -> Map:
    """The map for what the call says of the model; for what it doesn't say, as it is."""
    given = {name: getattr(asked, name) for name in ("parameters", "step", "workers", "network")}
    known = {name: value for name, value in given.items() if value is not None}
    name = {"name": "a model"} if asked.parameters is not None else {}
    return replace(map_, subject=replace(map_.subject, **known, **name))


def main() -> None:
    asked = options()
    for name in asked.pictures or ["delays", *MAPS]:
        if name == "delays":
            (asked.out / "delays.svg").write_text(draw_delays(), encoding="utf-8")
        else:
            map_ = asked_for(MAPS[name], asked)
            try:
                drawn = draw_map(map_, choices(map_, os.cpu_count() or 1))
            except UsageError as error:
                sys.exit(str(error))
            (asked.out / map_.file).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
