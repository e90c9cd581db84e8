"""Draws docs/pictures/<preset>.svg: who talks to whom, and a timeline of a simulated run;
and docs/pictures/topologies.svg: all topologies side by side; codecs.svg: their bytes against their error.

    python docs/make_pictures.py

Left, the graph: a line for whoever may exchange something. Right, what really happened on four
simulated workers, taken from the simulator's own records: computing, waiting, letters, means.
Everything is deterministic, so a picture changes only if a strategy or the simulator does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fast.adapters import TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.core import Replica, Strategy
from fast.errors import UsageError
from fast.parts import Topology
from fast.parts.codecs import Codec, Coder
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.sim.cluster import Hosts
from fast.strategies.central.proxies import Proxies
from fast.strategies.decentral.pairwise import drawn_pairs
from fast.strategies.decentral.streaming import FragmentSteps
from fast.strategies.expression import parse_strategy
from fast.testing.strategy import LeastSquares, batches, servers_of
from fast.trace import Included, Record, Reduced, Stepped, Waited
from fast.view import Layout

FOLDER = Path(__file__).resolve().parent / "pictures"
WIDTH, HEIGHT = 920, 344
WORKERS = 4
STEP_S = {0: 0.018, 1: 0.022, 2: 0.020, 3: 0.031}
"""How long each worker computes: the last one is the slow one."""
LATENCY_S = 0.005
SHOWN_NS = 160_000_000
STEPS = 12
CHANGE = "change of the memory"
GRADIENTS = frozenset(("push", "gradient", "factors", "up", "flush", CHANGE))
"""The tags of letters that carry gradients, or what they are made of."""

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
        """Of those that have a line of their own: who stands beside a worker shares its line."""
        if self.strategy.one_host:
            return 1  # the memory that all of them share
        return 0 if self.strategy.colocated else self.strategy.servers(WORKERS)

    def name(self, who: int) -> str:
        """What stands before its line."""
        if who < WORKERS:
            return f"worker {who}"
        if isinstance(self.strategy, Proxies):
            return "server" if who == WORKERS else f"proxy {who - WORKERS - 1}"
        return "memory" if self.strategy.one_host else "server"

    def line(self, who: int) -> int:
        return who % WORKERS if self.strategy.colocated else who

    def computing(self) -> Iterator[tuple[int, int, int]]:
        """Who, from when, until when: a step's computation begins where the last step ended."""
        for worker, ends in self.ended.items():
            for start_ns in (self._began_ns(worker), *ends):
                yield worker, start_ns, start_ns + round(STEP_S[worker] * 1e9)

    def _began_ns(self, worker: int) -> int:
        """Most begin at once; some strategies let a worker wait before its first step."""
        return max((end for who, start, end in self.waits if who == worker and start == 0), default=0)


def story_of(call: str) -> Story:
    """Simulate this strategy and keep what is drawn."""
    strategy = parse_strategy(call)
    records: list[Record] = []
    workers = [layered() if needs_layers(strategy) else least_squares(n) for n in range(WORKERS)]
    simulation = Simulation(
        strategy,
        workers,
        server_replicas=servers_for(strategy, workers[0].replica),
        network=Network(1e9, LATENCY_S, hosts=Hosts(each=None if strategy.one_host else 1)),
        compute=Compute(workers_s=STEP_S),
        observers=[records.append],
        seed=3,
        seed_torch=False,
    )
    story = Story(strategy)
    simulation.run(after_event=_follow(story))
    _read(story, records)
    return story


def needs_layers(strategy: Strategy) -> bool:
    """What looks at layers, or cuts the model, needs one that has some."""
    return strategy.uses_factors or isinstance(strategy, FragmentSteps)


def servers_for(strategy: Strategy, first: Replica) -> Sequence[Replica]:
    """Replicas of the workers' own model."""
    if isinstance(first, TorchReplica):
        return server_replicas(first, strategy.servers(WORKERS), sharded=strategy.sharded)
    return servers_of(strategy, WORKERS, 0.05)


def least_squares(worker: int) -> SimWorker:
    replica = LeastSquares(0.05)
    return SimWorker(replica, batches(worker, STEPS), replica.compute)


def layered() -> SimWorker:
    """A model with a linear layer that is large compared with its batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    replica = TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.01))

    def compute(x: Tensor) -> None:
        replica.backward(model(x).square().mean())

    return SimWorker(replica, iter([torch.ones(2, 64)] * STEPS), compute)


def _follow(story: Story) -> Callable[[Simulation], None]:
    """After every event: which letters have left, which have arrived."""
    flying: dict[int, tuple[object, Flight]] = {}

    def look(simulation: Simulation) -> None:
        now, seen = simulation.now_ns, {}
        for to, letter in () if story.strategy.one_host else simulation.on_the_way():
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
            case Waited(who=who, at_ns=at_ns, waited_ns=waited_ns) if not story.strategy.one_host:
                story.waits.append((who, at_ns - waited_ns, at_ns))
            case Reduced(at_ns=at_ns, took_ns=took_ns):
                means.add((at_ns - took_ns, at_ns))
            case Included(who=who, sender=sender, at_ns=at_ns) if who == sender:
                story.flights.append(Flight(who, WORKERS, CHANGE, at_ns, at_ns))
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


def nobody(strategy: Strategy) -> list[str]:
    return dots(around(WORKERS))


def star(strategy: Strategy) -> list[str]:
    places = around(WORKERS)
    spokes = [line("edge", CENTRE, place) for place in places]
    return [*spokes, *dots(places), *dots([CENTRE], "server")]


def shards(strategy: Strategy) -> list[str]:
    """Every worker with every server; the servers lie side by side in the middle."""
    places, count = around(WORKERS), strategy.servers(WORKERS)
    aside = [number - (count - 1) / 2 for number in range(count)]
    middle = [(CENTRE[0] + 40 * each, CENTRE[1] + 34 * each) for each in aside]
    spokes = [line("edge", server, place) for server in middle for place in places]
    return [*spokes, *dots(places), *dots(middle, "server")]


def beside(strategy: Strategy) -> list[str]:
    """Every worker with the servers beside all the others."""
    places = around(WORKERS)
    outside = [(x + 0.27 * (x - CENTRE[0]), y + 0.27 * (y - CENTRE[1])) for x, y in places]
    return [*complete(places, "edge"), *dots(outside, "server"), *dots(places)]


def binomial(strategy: Strategy) -> list[str]:
    """Seven workers: a place's parent is the place without its lowest bit; worker i is at place i + 1."""
    across = {0: 78, 1: 30, 2: 96, 3: 72, 4: 198, 5: 150, 6: 216, 7: 240}
    at = {place: (across[place] + 20, 90 + 60 * place.bit_count()) for place in across}
    edges = [line("edge", at[place], at[place & (place - 1)]) for place in range(1, 8)]
    return [*edges, *dots([at[0]], "server"), *dots([at[place] for place in range(1, 8)])]


def branches(strategy: Strategy) -> list[str]:
    """Seven workers, all of whom train: place i has the children 2 i + 1 and 2 i + 2."""
    places = [(154, 88), (86, 178), (222, 178), (52, 268), (120, 268), (188, 268), (256, 268)]
    edges = [line("edge", places[n], places[(n - 1) // 2]) for n in range(1, 7)]
    return [*edges, *dots(places)]


def groups(strategy: Strategy) -> list[str]:
    """Two groups of two workers, each with its proxy, and the server between them."""
    workers = [(52.0, 120.0), (52.0, 236.0), (256.0, 120.0), (256.0, 236.0)]
    proxies = [(100.0, 178.0), (208.0, 178.0)]
    edges = [line("edge", proxies[n // 2], place) for n, place in enumerate(workers)]
    edges += [line("edge", CENTRE, place) for place in proxies]
    return [*edges, *dots(workers), *dots(proxies, "server"), *dots([CENTRE], "server")]


def memory(strategy: Strategy) -> list[str]:
    """One memory in the middle, in which every worker writes by itself."""
    places, (x, y) = around(WORKERS), CENTRE
    spokes = [line("edge", CENTRE, place) for place in places]
    cells = [box("server", x - 44 + 11 * n, y - 12, 11, 24) for n in range(8)]
    return [*spokes, *cells, *dots(places)]


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


def two_sides(strategy: Strategy) -> list[str]:
    """Eight workers: those on the left ask, three of them now, and those on the right answer."""
    places = [(72.0 if n % 2 == 0 else 236.0, 72.0 + 72 * (n // 2)) for n in range(8)]
    links = [line("maybe", places[a], places[b]) for a in range(0, 8, 2) for b in range(1, 8, 2)]
    chosen = ((0, 3), (4, 1), (6, 7))
    asked = [arrow("weights", places[a], _short_of(places[a], places[b])) for a, b in chosen]
    return [*links, *asked, *dots(places)]


def told(strategy: Strategy) -> list[str]:
    """Arrows: whom each of eight tells in one round. Dotted: in the others."""
    places, topology = around(8), strategy.topology
    assert topology is not None
    rounds = range(topology.period(8))
    ever = {(min(a, b), max(a, b)) for t in rounds for a in range(8) for b in topology.told(a, 8, t)}
    now = [(a, b) for a in range(8) for b in topology.told(a, 8, 1)]
    drawn = [line("maybe", places[a], places[b]) for a, b in sorted(ever)]
    drawn += [arrow("weights", places[a], _short_of(places[a], places[b])) for a, b in now]
    return [*drawn, *dots(places)]


def matched(strategy: Strategy) -> list[str]:
    """The pairs of one round; dotted: all others that may be."""
    places, met = around(8), drawn_pairs(8, seed=3, round_=1)
    now = [line("edge", places[a], places[b]) for a, b in enumerate(met) if b is not None and a < b]
    return [*complete(places, "maybe"), *now, *dots(places)]


def _short_of(a: Point, b: Point, radius: float = 16) -> Point:
    """The edge of the circle around `b`, as seen from `a`."""
    length = math.hypot(b[0] - a[0], b[1] - a[1])
    return b[0] - radius * (b[0] - a[0]) / length, b[1] - radius * (b[1] - a[1]) / length


# The timeline

LEFT, RIGHT, TOP = 388, 896, 52
BAR = 16


def row_height(story: Story) -> float:
    return 200 / (WORKERS + story.servers - 1)


def x_of(time_ns: int) -> float:
    return LEFT + (RIGHT - LEFT) * time_ns / SHOWN_NS


def y_of(story: Story, who: int) -> float:
    return TOP + 12 + row_height(story) * story.line(who)


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
        yield words((LEFT - 12, y_of(story, who) + 4), story.name(who), anchor="end")
        yield line("rule", (LEFT, y_of(story, who)), (RIGHT, y_of(story, who)))


def _means(story: Story) -> Iterator[str]:
    top, bottom = y_of(story, 0) - BAR / 2 - 5, y_of(story, WORKERS - 1) + BAR / 2 + 5
    for start_ns, end_ns in story.means:
        if end_ns < SHOWN_NS:
            yield box("mean", x_of(start_ns), top, x_of(end_ns) - x_of(start_ns), bottom - top, 3)


def _letters(story: Story) -> Iterator[str]:
    for flight in story.flights:
        if flight.arrived_ns < SHOWN_NS and story.line(flight.to) != story.line(flight.sender):
            down = 1 if story.line(flight.to) > story.line(flight.sender) else -1
            start = (x_of(flight.sent_ns), y_of(story, flight.sender) + down * BAR / 2)
            end = (x_of(flight.arrived_ns), y_of(story, flight.to) - down * BAR / 2)
            yield arrow("gradient" if flight.tag in GRADIENTS else "weights", start, end)


def legend(story: Story) -> Iterator[str]:
    tags = {flight.tag for flight in story.flights}
    shown = [("compute", "computes"), ("wait", "waits")] if story.waits else [("compute", "computes")]
    shown += [("mean", "mean of all")] * bool(story.means)
    shown += [("gradient", CHANGE if CHANGE in tags else "gradient")] * bool(tags & GRADIENTS)
    shown += [("weights", "weights")] * bool(tags - GRADIENTS)
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
    "post_local_sgd": Picture(
        "post_local_sgd(2, after=2)", everybody("edge"), "everybody with everybody, later now and then"
    ),
    "sparknet": Picture("sparknet(tau=3)", star, "every worker with the master, now and then"),
    "one_shot": Picture("one_shot", nobody, "nobody with anybody, until the end"),
    "slowmo": Picture("slowmo(tau=3)", everybody("maybe"), "everybody with everybody, now and then"),
    "diloco": Picture("diloco(interval=4)", everybody("maybe"), "everybody with everybody, seldom"),
    "streaming_diloco": Picture(
        "streaming_diloco(2, 4, 3)", everybody("maybe"), "everybody with everybody, in fragments"
    ),
    "noloco": Picture("noloco(interval=2)", matched, "in pairs, others each time (8 workers)"),
    "pytorch": Picture("pytorch", everybody("edge"), "everybody with everybody, every step"),
    "ssp": Picture("ssp(bound=1)", star, "every worker with the server"),
    "essp": Picture("essp(bound=2)", star, "every worker with the server"),
    "vap": Picture("vap(limit=0.05)", star, "every worker with the server"),
    "parameter_server": Picture("parameter_server(tau=1)", shards, "every worker with every shard"),
    "petuum": Picture("petuum(bound=2)", beside, "every worker with the shards beside the others"),
    "mxnet": Picture("mxnet('dist_async')", beside, "every worker with the shards beside the others"),
    "bigdl": Picture("bigdl", beside, "every worker with the shards beside the others"),
    "caffeonspark": Picture("caffeonspark", beside, "every worker with the shards beside the others"),
    "tensorflow": Picture("tensorflow(backups=1)", star, "every worker with the server; three are enough"),
    "downpour": Picture("downpour(fetch=2)", star, "every worker with the server"),
    "distbelief": Picture("distbelief(warm=2)", shards, "every worker with every shard"),
    "dc_asgd": Picture("dc_asgd", star, "every worker with the server"),
    "staleness_aware": Picture("staleness_aware(n=2)", star, "every worker with the server"),
    "agn": Picture("agn(steps=3)", star, "every worker with the server, now and then"),
    "firecaffe": Picture("firecaffe", binomial, "a binomial tree to the server (7 workers)"),
    "proxies": Picture("proxies(group=2, flush=2)", groups, "groups, their proxies, and the server"),
    "project_adam": Picture("project_adam", star, "every worker with the server"),
    "hogwild": Picture("hogwild", memory, "every worker with one memory"),
    "easgd": Picture("easgd(tau=3)", star, "every worker with the centre, now and then"),
    "eamsgd": Picture("eamsgd(tau=2)", star, "every worker with the centre, now and then"),
    "tree_easgd": Picture("tree_easgd(up=2, down=3)", branches, "a tree of workers (7 of them)"),
    "mpca_sgd": Picture("mpca_sgd(tau=2)", binomial, "a binomial tree to the master (7 workers)"),
    "dpsgd": Picture("dpsgd", ring, "neighbours on a ring (8 workers)"),
    "torus": Picture("torus", grid, "neighbours on a torus (8 workers, 2 x 4)"),
    "gossip": Picture("gossip(p=0.4)", pairs, "one at random, now and then (8 workers)"),
    "gosgd": Picture("gosgd(p=0.4)", pairs, "one at random, now and then (8 workers)"),
    "ad_psgd": Picture("ad_psgd", two_sides, "one side asks, the other answers (8 workers)"),
    "sgp": Picture("sgp", told, "whose turn it is, further on (8 workers)"),
    "osgp": Picture("osgp", told, "whose turn it is, further on (8 workers)"),
    "gossipgrad": Picture("gossipgrad", told, "the partner of the step (8 workers)"),
    "choco": Picture("choco", ring, "neighbours on a ring (8 workers)"),
    "sfb": Picture("sfb", everybody("edge"), "everybody with everybody, every step"),
}


def draw(name: str) -> str:
    """The whole picture of one preset, as SVG."""
    picture = PICTURES[name]
    story = story_of(picture.call)
    caption = f"{picture.call}: 4 simulated workers, the last one slow"
    caption += "" if story.strategy.one_host else "; a letter takes 5 ms"
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


# All topologies side by side

PANELS_ACROSS, PANEL_WIDTH, PANEL_HEIGHT = 4, 230, 236
PLACES = 16
SMALLER = """
  .thin { stroke: #8a94a0; stroke-width: 0.7; fill: none }
  .heads { stroke: #8a94a0; fill: #8a94a0; stroke-width: 1.4 }
  .tiny { font-size: 9px }
  @media (prefers-color-scheme: dark) {
    .thin { stroke: #7d8894 }
    .heads { stroke: #7d8894; fill: #7d8894 }
  }
"""
HANDMADE = (
    "channels([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 4), "
    "(7, 8), (8, 9), (9, 10), (10, 11), (11, 8)], one_way=[(11, 12), (12, 13), (13, 14), (14, 15), (15, 0)])"
)


@dataclass(frozen=True)
class Panel:
    """One topology: where its places lie, in units of the panel from -1 to 1, and what is said of it."""

    topology: str
    places: list[Point]
    name: str = ""
    says: str = ""
    edges: str = "edge"
    bent: bool = False
    """Whether the edges that close a row or a column go around it."""


def on_circle(count: int) -> list[Point]:
    turn = [2 * math.pi * n / count - math.pi / 2 for n in range(count)]
    return [(math.cos(a), math.sin(a)) for a in turn]


def on_grid(spread: float) -> list[Point]:
    return [(spread * (n % 4 * 2 / 3 - 1), spread * (n // 4 * 2 / 3 - 1)) for n in range(PLACES)]


def on_levels() -> list[Point]:
    """A tree: each level has room for twice as many as the one above."""
    found = []
    for n in range(PLACES):
        level = (n + 1).bit_length() - 1
        width = 2**level if level < 4 else 8
        found.append((1.1 * (2 * (n + 1 - 2**level) + 1) / width - 1.1, level / 2 - 1))
    found[15] = (found[7][0], found[15][1])
    return found


def on_two_lines() -> list[Point]:
    return [(1.05 * (n // 2 * 2 / 7 - 1), -0.75 if n % 2 == 0 else 0.75) for n in range(PLACES)]


def on_two_octagons() -> list[Point]:
    """The corners of a hypercube: each digit is a step in a direction of its own."""
    found = []
    for n in range(PLACES):
        signs = [2 * (n >> digit & 1) - 1 for digit in range(4)]
        x = sum(sign * math.cos(math.pi / 4 * digit) for digit, sign in enumerate(signs))
        y = sum(sign * math.sin(math.pi / 4 * digit) for digit, sign in enumerate(signs))
        found.append((0.38 * x, 0.38 * y))
    return found


def on_four_squares() -> list[Point]:
    """Groups of four, one after the other around the panel."""
    square = [(-1, 1), (-1, -1), (1, -1), (1, 1)]
    turned = square[2:] + square[:2]
    groups = [((-1, -1), square), ((1, -1), square), ((1, 1), turned), ((-1, 1), turned)]
    return [(0.55 * gx + 0.3 * x, 0.55 * gy + 0.3 * y) for (gx, gy), group in groups for x, y in group]


PANELS = (
    Panel("ring", on_circle(PLACES)),
    Panel("torus", on_grid(0.8), bent=True),
    Panel("grid", on_grid(0.8)),
    Panel("star", [(0.0, 0.0), *on_circle(PLACES - 1)]),
    Panel("tree", on_levels()),
    Panel("bipartite", on_two_lines(), edges="thin"),
    Panel("full", on_circle(PLACES), edges="thin"),
    Panel("random_regular", on_circle(PLACES), says="another one for each seed"),
    Panel("hypercube", on_two_octagons()),
    Panel("hypercube(one_peer=True)", on_two_octagons(), says="one digit per round: here the second"),
    Panel("exponential", on_circle(PLACES), says="one step per round: here the second"),
    Panel(HANDMADE, on_four_squares(), "channels([...], one_way=[...])", "attached by hand"),
)


def draw_topologies() -> str:
    """The whole picture of all topologies, as SVG."""
    width = PANELS_ACROSS * PANEL_WIDTH
    height = -(-len(PANELS) // PANELS_ACROSS) * PANEL_HEIGHT
    parts = [box("card", 0.5, 0.5, width - 1, height - 1, 8)]
    for number, panel in enumerate(PANELS):
        row, column = divmod(number, PANELS_ACROSS)
        parts += draw_panel(panel, (PANEL_WIDTH * (column + 0.5), PANEL_HEIGHT * (row + 0.5)))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
    )
    title = f"<title>The topologies, with {PLACES} workers each</title>"
    return "\n".join([head, title, f"<style>{STYLE}{SMALLER}</style>", *parts, "</svg>", ""])


def draw_panel(panel: Panel, centre: Point) -> list[str]:
    """Solid: who hears whom in round 1. Dotted: in the other rounds."""
    topology = parse_strategy(f"dpsgd(topology={panel.topology})").topology
    assert topology is not None
    x, y = centre
    places = [(x + 84 * px, y + 6 + 84 * py) for px, py in panel.places]
    drawn = [words((x, y - 98), panel.name or panel.topology, anchor="middle")]
    drawn += [words((x, y + 112), panel.says, "small", "middle")] if panel.says else []
    if topology.changing:
        drawn += [line("maybe", places[a], places[b]) for a, b in ever_linked(topology)]
    for a in range(PLACES):
        for b in topology.told(a, PLACES, 1):
            drawn += draw_link(panel, topology, places, a, b)
    for number, (px, py) in enumerate(places):
        drawn.append(f'<circle class="worker" cx="{px:.1f}" cy="{py:.1f}" r="8"/>')
        drawn.append(words((px, py + 3), str(number), "tiny", "middle"))
    return drawn


def ever_linked(topology: Topology) -> list[tuple[int, int]]:
    """The pairs that are linked in some round but the one that is drawn."""
    rounds = [round_ for round_ in range(topology.period(PLACES)) if round_ != 1]
    found = {
        (min(a, b), max(a, b)) for t in rounds for a in range(PLACES) for b in topology.told(a, PLACES, t)
    }
    return sorted(found)


def draw_link(panel: Panel, topology: Topology, places: Sequence[Point], a: int, b: int) -> list[str]:
    """An arrow where only `b` hears `a`; a line, drawn once, where they hear each other."""
    if b not in topology.links(a, PLACES, 1):
        return [arrow("heads", places[a], _short_of(places[a], places[b], 9))]
    if a > b:
        return []
    if panel.bent and b - a in (3, 12):
        return [_around(places[a], places[b])]
    return [line(panel.edges, places[a], places[b])]


def _around(a: Point, b: Point) -> str:
    """A line that leaves a row at the top, or a column at the left, and comes back at its end."""
    x, y = (0, -26) if a[1] == b[1] else (-26, 0)
    middle = f"{a[0] + x:.1f},{a[1] + y:.1f} {b[0] + x:.1f},{b[1] + y:.1f}"
    return f'<path class="edge" d="M{a[0]:.1f},{a[1]:.1f} C{middle} {b[0]:.1f},{b[1]:.1f}"/>'


# All codecs: bytes against error

ENCODINGS = 50
CHART_HEIGHT, CHART_WIDTH = 560, 372
CHART_TOP, CHART_BOTTOM = 50, 484
FEWEST_BYTES, MOST_BYTES = 0.04, 3.2
LEAST_ERROR, LARGEST_ERROR = 1e-5, 10.0
ROW = 16
CHART_STYLE = """
  .quantized { fill: #3f7ac0; stroke: #3f7ac0 }
  .few { fill: #c0392b; stroke: #c0392b }
  .factors { fill: #1f8a5b; stroke: #1f8a5b }
  .hollow { fill: #fcfcfa; stroke-width: 1.4 }
  .leader { stroke: #a9b1ba; stroke-width: 0.8; fill: none }
  @media (prefers-color-scheme: dark) {
    .quantized { fill: #7aa7e0; stroke: #7aa7e0 }
    .few { fill: #ff7b6b; stroke: #ff7b6b }
    .factors { fill: #4fce94; stroke: #4fce94 }
    .hollow { fill: #171b21 }
    .leader { stroke: #58626d }
  }
"""
SHOWN = {
    "quantized": (
        *("fp16", "bf16", "scaled_fp16", "int8", "block_int8", "qsgd(7)", "qsgd(1)", "terngrad"),
        *("two_bit(0.02)", "column_means", "scaled_sign", "sign"),
    ),
    "few": (
        *("top_k(0.1)", "top_k(0.01)", "sampled_top_k(0.01)", "random_k(0.1)", "threshold(0.02)"),
        *("dgc(0.01, momentum=0)", "chain(top_k(0.01), int8)"),
    ),
    "factors": ("low_rank(2)", "low_rank(4)"),
}

RIGHT_OF, LEFT_OF = (8, 4, "start"), (-8, 4, "end")
BESIDE = {
    **dict.fromkeys(("qsgd(7)", "random_k(0.1)", "top_k(0.1)", "int8", "block_int8"), RIGHT_OF),
    **dict.fromkeys(("bf16", "fp16"), LEFT_OF),
}
BESIDE_ONCE = {**BESIDE, "sign": RIGHT_OF, "qsgd(1)": LEFT_OF}
BESIDE_SUM = {**BESIDE, "sign": LEFT_OF, "qsgd(1)": (0, -9, "middle"), "qsgd(7)": (2, -8, "start")}


@dataclass(frozen=True)
class Mark:
    """A codec in a chart: bytes per value, and the relative error; a second one without error feedback."""

    label: str
    kind: str
    at: Point
    without: Point | None = None


def digits_gradients() -> tuple[Layout, list[Tensor]]:
    """The gradients of the first steps of a small network on handwritten digits, plain SGD."""
    images, labels = load_digits(return_X_y=True)
    draw, sizes = torch.Generator().manual_seed(0), (64, 128, 128, 10)
    weights = [torch.randn(n, m, generator=draw) * (2 / m) ** 0.5 for m, n in pairwise(sizes)]
    parameters = [each.requires_grad_() for w in weights for each in (w, torch.zeros(len(w)))]
    layout = Layout.of([(str(n), each.shape) for n, each in enumerate(parameters)], torch.float32)
    found = []
    for _ in range(ENCODINGS):
        batch = torch.randint(len(labels), (32,), generator=draw)
        x = torch.tensor(images[batch], dtype=torch.float32) / 16
        for w, b in zip(parameters[::2], parameters[1::2], strict=True):
            x = torch.nn.functional.linear(x if w is parameters[0] else x.relu(), w, b)
        loss = torch.nn.functional.cross_entropy(x, torch.tensor(labels[batch]))
        found.append(torch.zeros(layout.size))
        for segment, each, slope in zip(
            layout.segments, parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            segment.of(found[-1]).copy_(slope)
            each.data.sub_(slope, alpha=0.1)
    return layout, found


def codec_named(call: str) -> Codec:
    codec = getattr(parse_strategy(f"allreduce(codec={call})"), "codec", None)
    assert isinstance(codec, Codec)
    return codec


def measured(codec: Codec, layout: Layout, gradients: Sequence[Tensor]) -> Point:
    """Bytes per value, and how far the sum of what arrives is from the sum of these gradients."""
    coder, total, sent, nbytes = Coder(codec, layout), torch.zeros(layout.size), torch.zeros(layout.size), 0
    for gradient in gradients:
        packed = coder.encode(gradient)
        nbytes += packed.numel()
        sent += coder.decode(packed)
        total += gradient
    return nbytes / layout.size / len(gradients), float((sent - total).norm() / total.norm())


def marks_once() -> Iterator[Mark]:
    layout, gradients = digits_gradients()
    for kind, calls in SHOWN.items():
        for call in calls:
            yield Mark(call, kind, measured(codec_named(call), layout, gradients[25:26]))


def marks_of_the_sum() -> Iterator[Mark]:
    """With error feedback and without; one mark only where a codec remembers by itself or refuses to."""
    layout, gradients = digits_gradients()
    for kind, calls in SHOWN.items():
        for call in calls:
            plain, found = codec_named(call), measured(codec_named(call), layout, gradients)
            inside = "random_k(0.1, scaled=False)" if call.startswith("random_k") else call
            try:
                with_feedback = codec_named(f"error_feedback({inside})")
            except UsageError:
                yield Mark(call, kind if plain.remembers else f"{kind} hollow", found)
            else:
                yield Mark(call, kind, measured(with_feedback, layout, gradients), found)


@dataclass(frozen=True)
class Chart:
    """Both axes are logarithmic. What is beyond the upper end is drawn there, with its number."""

    left: float
    beside: Mapping[str, tuple[float, float, str]]
    """Where labels are beside their dots: how far to the right, how far down, and how they are aligned."""

    def place(self, found: Point) -> Point:
        across = math.log(found[0] / FEWEST_BYTES) / math.log(MOST_BYTES / FEWEST_BYTES)
        error = min(max(found[1], LEAST_ERROR), LARGEST_ERROR)
        up = math.log(error / LEAST_ERROR) / math.log(LARGEST_ERROR / LEAST_ERROR)
        return self.left + CHART_WIDTH * across, CHART_BOTTOM - (CHART_BOTTOM - CHART_TOP) * up

    def axes(self) -> Iterator[str]:
        for nbytes in (0.05, 0.1, 0.2, 0.5, 1, 2):
            x, _ = self.place((nbytes, 1))
            yield line("rule", (x, CHART_TOP), (x, CHART_BOTTOM))
            yield words((x, CHART_BOTTOM + 16), f"{nbytes:g}", "small", "middle")
        for power in range(-5, 2):
            _, y = self.place((1, 10.0**power))
            yield line("rule", (self.left, y), (self.left + CHART_WIDTH, y))
            yield words((self.left - 6, y + 4), f"{10.0**power:.{max(0, -power)}f}", "small", "end")
        yield words((self.left + CHART_WIDTH / 2, CHART_BOTTOM + 34), "bytes per value", "small", "middle")
        nothing = (self.left + CHART_WIDTH, self.place((1, 1))[1] - 5)
        yield words(nothing, "1: as if nothing arrived", "small", "end")

    def draw(self, marks: Sequence[Mark]) -> Iterator[str]:
        yield from self.axes()
        yield from (line("leader", self.place(m.without), self.place(m.at)) for m in marks if m.without)
        yield from self._labels(marks)
        for mark in marks:
            yield from [dot(f"{mark.kind} hollow", self.place(mark.without))] if mark.without else []
            yield dot(mark.kind, self.place(mark.at))

    def _labels(self, marks: Sequence[Mark]) -> Iterator[str]:
        """Beside the dot where there is room. Others hang below, from right to left each in a row below
        the one before, so that no line crosses a word."""
        first = {self.place(mark.at): mark.label for mark in reversed(marks)}
        hanging = []
        for at, text in self._joined(marks):
            if first[at] in self.beside:
                dx, dy, anchor = self.beside[first[at]]
                yield words((at[0] + dx, at[1] + dy), text, "small", anchor)
            else:
                hanging.append((at, text))
        row = max(y for (_, y), _ in hanging) + 34
        for (x, y), text in sorted(hanging, reverse=True):
            yield f'<path class="leader" d="M{x:.1f},{y:.1f} V{row - 4:.1f} h4"/>'
            yield words((x + 6, row), text, "small")
            row += ROW

    def _joined(self, marks: Sequence[Mark]) -> list[tuple[Point, str]]:
        """Codecs in the same place have one label together."""
        found: list[tuple[Point, str]] = []
        for mark in marks:
            at = self.place(mark.at)
            text = mark.label
            if mark.at[1] > LARGEST_ERROR:
                text += f": {float(f'{mark.at[1]:.1e}'):,.0f}"
            same = [n for n, (other, _) in enumerate(found) if math.dist(at, other) < 3]
            if same:
                found[same[0]] = (found[same[0]][0], f"{found[same[0]][1]}, {text}")
            else:
                found.append((at, text))
        return found


def dot(kind: str, at: Point) -> str:
    return f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3.6"/>'


def draw_codecs() -> str:
    """The whole picture of all codecs, as SVG."""
    once, summed = Chart(62, BESIDE_ONCE), Chart(62 + CHART_WIDTH + 92, BESIDE_SUM)
    parts = [
        box("card", 0.5, 0.5, WIDTH - 1, CHART_HEIGHT - 1, 8),
        words((once.left, 26), "One gradient: how far off is what arrives, relative to it"),
        words((summed.left, 26), f"The sum of {ENCODINGS} gradients, encoded with error feedback"),
        *once.draw(list(marks_once())),
        *summed.draw(list(marks_of_the_sum())),
        *chart_legend(once.left),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {CHART_HEIGHT}" '
        f'width="{WIDTH}" height="{CHART_HEIGHT}" role="img">'
    )
    title = "<title>The codecs: bytes per value against the relative error</title>"
    return "\n".join([head, title, f"<style>{STYLE}{CHART_STYLE}</style>", *parts, "</svg>", ""])


def chart_legend(x: float) -> Iterator[str]:
    shown = {
        "quantized": "all values, with fewer bits",
        "few": "few values",
        "factors": "factors of matrices",
        "quantized hollow": "without error feedback",
    }
    for kind, text in shown.items():
        yield dot(kind, (x + 4, CHART_HEIGHT - 24))
        yield words((x + 14, CHART_HEIGHT - 20), text, "small")
        x += 44 + 5.2 * len(text)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")
        print(f"docs/pictures/{name}.svg")
    (FOLDER / "topologies.svg").write_text(draw_topologies(), encoding="utf-8")
    print("docs/pictures/topologies.svg")
    (FOLDER / "codecs.svg").write_text(draw_codecs(), encoding="utf-8")
    print("docs/pictures/codecs.svg")


if __name__ == "__main__":
    main()
