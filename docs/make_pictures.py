"""Draws docs/pictures/<preset>.svg: who talks to whom, and a timeline of a simulated run.

    python docs/make_pictures.py

Left, the graph: a line for whoever may exchange something. Right, what really happened on four
simulated workers, taken from the simulator's own records: computing, waiting, letters, means.
Everything is deterministic, so a picture changes only if a strategy or the simulator does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fast.core import Strategy
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.strategies.expression import parse_strategy
from fast.testing.strategy import LeastSquares, batches
from fast.trace import Record, Reduced, Stepped, Waited

FOLDER = Path(__file__).resolve().parent / "pictures"
WIDTH, HEIGHT = 920, 344
WORKERS = 4
STEP_S = {0: 0.018, 1: 0.022, 2: 0.020, 3: 0.031}
"""How long each worker computes: the last one is the slow one."""
LATENCY_S = 0.005
SHOWN_NS = 160_000_000
STEPS = 12

Point = tuple[float, float]


# What happened


@dataclass
class Flight:
    """A letter on its way."""

    sender: int
    to: int
    tag: str
    sent_ns: int
    arrived_ns: int = 0


@dataclass
class Story:
    """A run as the timeline tells it."""

    strategy: Strategy
    ended: dict[int, list[int]] = field(default_factory=dict)
    """By worker: when each of its steps ended."""
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    """Who, from when, until when."""
    means: list[tuple[int, int]] = field(default_factory=list)
    """When the last one came to a mean, and when everybody had it."""
    flights: list[Flight] = field(default_factory=list)

    @property
    def servers(self) -> int:
        return self.strategy.servers(WORKERS)

    def computing(self) -> Iterator[tuple[int, int, int]]:
        """Who, from when, until when: a step's computation begins where the last step ended."""
        for worker, ends in self.ended.items():
            for start_ns in (0, *ends):
                yield worker, start_ns, start_ns + round(STEP_S[worker] * 1e9)


def story_of(call: str) -> Story:
    """Simulate this strategy and keep what is drawn."""
    strategy = parse_strategy(call)
    records: list[Record] = []
    replicas = [LeastSquares(0.05) for _ in range(WORKERS)]
    simulation = Simulation(
        strategy,
        [SimWorker(replica, batches(n, STEPS), replica.compute) for n, replica in enumerate(replicas)],
        server_replicas=[LeastSquares(0.05) for _ in range(strategy.servers(WORKERS))],
        network=Network(1e9, LATENCY_S),
        compute=Compute(workers_s=STEP_S),
        observers=[records.append],
        seed=3,
        seed_torch=False,
    )
    story = Story(strategy)
    simulation.run(after_event=_follow(story))
    _read(story, records)
    return story


def _follow(story: Story) -> Callable[[Simulation], None]:
    """After every event: which letters have left, which have arrived."""
    flying: dict[int, tuple[object, Flight]] = {}

    def look(simulation: Simulation) -> None:
        now, seen = simulation.now_ns, {}
        for to, letter in simulation.on_the_way():
            flight = Flight(letter.sender, to, letter.tag, now)
            seen[id(letter)] = flying.get(id(letter), (letter, flight))
        for key, (_, flight) in flying.items():
            if key not in seen:
                flight.arrived_ns = now
                story.flights.append(flight)
        flying.clear()
        flying.update(seen)

    return look


def _read(story: Story, records: Sequence[Record]) -> None:
    means = set()
    for record in records:
        match record:
            case Stepped(who=who, at_ns=at_ns):
                story.ended.setdefault(who, []).append(at_ns)
            case Waited(who=who, at_ns=at_ns, waited_ns=waited_ns):
                story.waits.append((who, at_ns - waited_ns, at_ns))
            case Reduced(at_ns=at_ns, took_ns=took_ns):
                means.add((at_ns - took_ns, at_ns))
    story.means = sorted(means)


# How it is drawn

STYLE = """
  text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #333a44 }
  .small { font-size: 11px; fill: #5d6773 }
  .card { fill: #fcfcfa; stroke: #d5d9de }
  .rule { stroke: #d5d9de; stroke-width: 1 }
  .edge { stroke: #8a94a0; stroke-width: 1.6; fill: none }
  .maybe { stroke: #a9b1ba; stroke-width: 1.1; stroke-dasharray: 2 4; fill: none }
  .worker { fill: #dbe7f6; stroke: #3b6fb0; stroke-width: 1.6 }
  .server { fill: #f3e3c8; stroke: #a8752b; stroke-width: 1.6 }
  .compute { fill: #5b8fcf }
  .wait { fill: #ecd9b4 }
  .gradient { stroke: #c0392b; fill: #c0392b; stroke-width: 1.1 }
  .weights { stroke: #1f8a5b; fill: #1f8a5b; stroke-width: 1.1 }
  .mean { fill: #8e5bb5; fill-opacity: 0.45 }
  @media (prefers-color-scheme: dark) {
    text { fill: #d7dde4 }
    .small { fill: #9aa5b1 }
    .card { fill: #171b21; stroke: #343b44 }
    .rule { stroke: #343b44 }
    .edge { stroke: #7d8894 }
    .maybe { stroke: #58626d }
    .worker { fill: #1e3450; stroke: #7aa7e0 }
    .server { fill: #453418; stroke: #d9a557 }
    .compute { fill: #4d7fbd }
    .wait { fill: #57492c }
    .gradient { stroke: #ff7b6b; fill: #ff7b6b }
    .weights { stroke: #4fce94; fill: #4fce94 }
    .mean { fill: #b98be0 }
  }
"""


def line(kind: str, a: Point, b: Point) -> str:
    return f'<line class="{kind}" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"/>'


def box(kind: str, x: float, y: float, width: float, height: float, corner: float = 0) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{corner:g}"/>'
    )


def words(at: Point, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">{text}</text>'


def arrow(kind: str, a: Point, b: Point) -> str:
    """A line with a small head that ends at `b`."""
    length = math.hypot(b[0] - a[0], b[1] - a[1]) or 1.0
    x, y = (b[0] - a[0]) / length, (b[1] - a[1]) / length
    left = (b[0] - 6 * x - 2.6 * y, b[1] - 6 * y + 2.6 * x)
    right = (b[0] - 6 * x + 2.6 * y, b[1] - 6 * y - 2.6 * x)
    head = " ".join(f"{px:.1f},{py:.1f}" for px, py in (b, left, right))
    return line(kind, a, (b[0] - 5 * x, b[1] - 5 * y)) + f'<polygon class="{kind}" points="{head}"/>'


# The graph

CENTRE: Point = (154, 178)
RADIUS = 92


def around(count: int) -> list[Point]:
    """Places on a circle, the first one at the top."""
    turn = [2 * math.pi * n / count - math.pi / 2 for n in range(count)]
    return [(CENTRE[0] + RADIUS * math.cos(a), CENTRE[1] + RADIUS * math.sin(a)) for a in turn]


def dots(places: Sequence[Point], kind: str = "worker") -> list[str]:
    drawn = []
    for number, (x, y) in enumerate(places):
        drawn.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="15"/>')
        drawn.append(words((x, y + 4), str(number) if kind == "worker" else "S", anchor="middle"))
    return drawn


def complete(places: Sequence[Point], kind: str) -> list[str]:
    return [line(kind, a, b) for n, a in enumerate(places) for b in places[n + 1 :]]


def everybody(kind: str) -> Callable[[Strategy], list[str]]:
    def draw(strategy: Strategy) -> list[str]:
        places = around(WORKERS)
        return [*complete(places, kind), *dots(places)]

    return draw


def star(strategy: Strategy) -> list[str]:
    places = around(WORKERS)
    spokes = [line("edge", CENTRE, place) for place in places]
    return [*spokes, *dots(places), *dots([CENTRE], "server")]


def ring(strategy: Strategy) -> list[str]:
    places = around(8)
    assert strategy.topology is not None
    edges = [
        line("edge", places[n], places[m])
        for n in range(8)
        for m in strategy.topology.links(n, 8, 0)
        if n < m
    ]
    return [*edges, *dots(places)]


def grid(strategy: Strategy) -> list[str]:
    """Eight workers on 2 x 4. The edges that close a row are bent around it."""
    assert strategy.topology is not None
    places = [(46 + 72 * (n % 4), 133 + 90 * (n // 4)) for n in range(8)]
    edges = []
    for n in range(8):
        for m in strategy.topology.links(n, 8, 0):
            if n < m:
                far = m - n == 3
                edges.append(_bent(places[n], places[m]) if far else line("edge", places[n], places[m]))
    return [*edges, *dots(places)]


def _bent(a: Point, b: Point) -> str:
    rise = -66 if a[1] < CENTRE[1] else 66
    middle = f"{a[0]:.1f},{a[1] + rise:.1f} {b[0]:.1f},{b[1] + rise:.1f}"
    return f'<path class="edge" d="M{a[0]:.1f},{a[1]:.1f} C{middle} {b[0]:.1f},{b[1]:.1f}"/>'


def pairs(strategy: Strategy) -> list[str]:
    places = around(8)
    chosen = ((0, 3), (5, 1), (6, 7))
    sent = [arrow("weights", places[a], _short_of(places[a], places[b])) for a, b in chosen]
    return [*complete(places, "maybe"), *sent, *dots(places)]


def _short_of(a: Point, b: Point) -> Point:
    """The edge of the circle around `b`, as seen from `a`."""
    length = math.hypot(b[0] - a[0], b[1] - a[1])
    return b[0] - 16 * (b[0] - a[0]) / length, b[1] - 16 * (b[1] - a[1]) / length


# The timeline

LEFT, RIGHT, TOP = 388, 896, 52
BAR = 16


def row_height(story: Story) -> float:
    return 200 / (WORKERS + story.servers - 1)


def x_of(time_ns: int) -> float:
    return LEFT + (RIGHT - LEFT) * time_ns / SHOWN_NS


def y_of(story: Story, who: int) -> float:
    return TOP + 12 + row_height(story) * who


def timeline(story: Story) -> list[str]:
    drawn = [*_axis(story)]
    for kind, spans in (("wait", story.waits), ("compute", story.computing())):
        for who, start_ns, end_ns in spans:
            if start_ns < SHOWN_NS and who < WORKERS:
                left, right = x_of(start_ns), min(x_of(end_ns), RIGHT)
                drawn.append(box(kind, left, y_of(story, who) - BAR / 2, max(0.6, right - left - 1), BAR))
    drawn += _means(story)
    drawn += _letters(story)
    return drawn


def _axis(story: Story) -> Iterator[str]:
    bottom = y_of(story, WORKERS + story.servers - 1) + 22
    for ms in range(0, SHOWN_NS // 1_000_000 + 1, 20):
        x = x_of(ms * 1_000_000)
        yield line("rule", (x, TOP - 8), (x, bottom))
        yield words((x, bottom + 15), f"{ms}" + " ms" * (ms == 0), "small", "middle")
    for who in range(WORKERS + story.servers):
        name = f"worker {who}" if who < WORKERS else "server"
        yield words((LEFT - 12, y_of(story, who) + 4), name, anchor="end")
        yield line("rule", (LEFT, y_of(story, who)), (RIGHT, y_of(story, who)))


def _means(story: Story) -> Iterator[str]:
    top, bottom = y_of(story, 0) - BAR / 2 - 5, y_of(story, WORKERS - 1) + BAR / 2 + 5
    for start_ns, end_ns in story.means:
        if end_ns < SHOWN_NS:
            yield box("mean", x_of(start_ns), top, x_of(end_ns) - x_of(start_ns), bottom - top, 3)


def _letters(story: Story) -> Iterator[str]:
    for flight in story.flights:
        if flight.arrived_ns < SHOWN_NS:
            down = 1 if flight.to > flight.sender else -1
            start = (x_of(flight.sent_ns), y_of(story, flight.sender) + down * BAR / 2)
            end = (x_of(flight.arrived_ns), y_of(story, flight.to) - down * BAR / 2)
            yield arrow("gradient" if flight.tag in ("push", "gradient") else "weights", start, end)


def legend(story: Story) -> Iterator[str]:
    tags = {flight.tag for flight in story.flights}
    shown = [("compute", "computes"), ("wait", "waits")] if story.waits else [("compute", "computes")]
    shown += [("mean", "mean of all")] * bool(story.means)
    shown += [("gradient", "gradient")] * bool(tags & {"push", "gradient"})
    shown += [("weights", "weights")] * bool(tags - {"push", "gradient"})
    x = LEFT
    for kind, text in shown:
        if kind in ("gradient", "weights"):
            yield arrow(kind, (x, HEIGHT - 30), (x + 16, HEIGHT - 22))
        else:
            yield box(kind, x, HEIGHT - 32, 16, 11)
        yield words((x + 22, HEIGHT - 22), text, "small")
        x += 40 + 6.2 * len(text)


# The pictures


@dataclass(frozen=True)
class Picture:
    """What is drawn for one preset."""

    call: str
    graph: Callable[[Strategy], list[str]]
    says: str


PICTURES = {
    "allreduce": Picture("allreduce", everybody("edge"), "everybody with everybody, every step"),
    "local_sgd": Picture("local_sgd(tau=3)", everybody("maybe"), "everybody with everybody, now and then"),
    "ssp": Picture("ssp(bound=1)", star, "every worker with the server"),
    "dpsgd": Picture("dpsgd", ring, "neighbours on a ring (8 workers)"),
    "torus": Picture("torus", grid, "neighbours on a torus (8 workers, 2 x 4)"),
    "gossip": Picture("gossip(p=0.4)", pairs, "one at random, now and then (8 workers)"),
}


def draw(name: str) -> str:
    """The whole picture of one preset, as SVG."""
    picture = PICTURES[name]
    story = story_of(picture.call)
    caption = f"{picture.call}: 4 simulated workers, the last one slow; a letter takes 5 ms"
    parts = [
        box("card", 0.5, 0.5, WIDTH - 1, HEIGHT - 1, 8),
        words((CENTRE[0], 26), picture.says, anchor="middle"),
        words((LEFT, 26), caption),
        line("rule", (308, 14), (308, HEIGHT - 14)),
        *picture.graph(story.strategy),
        *timeline(story),
        *legend(story),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">'
    )
    title = f"<title>{name}: {picture.says}</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")
        print(f"docs/pictures/{name}.svg")


if __name__ == "__main__":
    main()
