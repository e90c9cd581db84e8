"""Topologies made by hand: channels attached one by one, or taken from a networkx graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fast.errors import UsageError
from fast.parts.topology.base import Topology

if TYPE_CHECKING:
    import networkx

Arrow = tuple[int, int]
"""From one place to another: the second hears the first."""


class Attached(Topology):
    """Whatever the places are attached by, it comes down to arrows.

    When workers leave, the last places go, and the channels of each are taken over by the lowest
    place that it was attached to. So what hung together still does: a ring stays a ring, a line a
    line, and a star gets a new middle.
    """

    arrows: frozenset[Arrow]
    """A channel both ways is two of them."""

    @property
    def directed(self) -> bool:
        return _one_way(self.arrows) != ()

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return _wired(self.arrows, size).heard[index]

    def told(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return _wired(self.arrows, size).told[index]

    def describe(self, size: int) -> str:
        wires = _wired(self.arrows, size)
        arrows = {(other, index) for index in range(size) for other in wires.heard[index]}
        channels = {(min(arrow), max(arrow)) for arrow in arrows}
        one_way, deaf = 2 * len(channels) - len(arrows), wires.heard.count(())
        words = f"{len(channels)} channel{'s' * (len(channels) != 1)} among {size}"
        words += f", {one_way} of them one way" if one_way else ""
        return words + (f"; {deaf} workers hear nobody" if deaf and size > 1 else "")

    def __repr__(self) -> str:
        """As channels, which the command line can read."""
        one_way = _one_way(self.arrows)
        both = sorted({(min(arrow), max(arrow)) for arrow in self.arrows - {*one_way}})
        return f"channels({both}, one_way={[*one_way]})" if one_way else f"channels({both})"


class Channels(Attached):
    """A topology built by hand: attach workers to one another.

    >>> line = Channels().attach(0, 1).attach(1, 2)
    >>> line.links(1, 3, 0)
    (0, 2)
    >>> line.attach(2, 0, one_way=True)
    channels([(0, 1), (1, 2)], one_way=[(2, 0)])

    When workers leave, the last places go, and the channels of each are taken over by the lowest
    place that it was attached to: a ring stays a ring, a line a line, and a star gets a new middle.
    """

    def __init__(self, channels: Iterable[Arrow] = (), one_way: Iterable[Arrow] = ()) -> None:
        both = (arrow for a, b in channels for arrow in _arrows(a, b, one_way=False))
        single = (arrow for a, b in one_way for arrow in _arrows(a, b, one_way=True))
        self.arrows = frozenset((*both, *single))

    def attach(self, a: int, b: int, *, one_way: bool = False) -> Channels:
        """A channel between two places, both ways; or one way, and then `b` hears `a` only.
        Returns the same object, to attach further."""
        self.arrows = self.arrows.union(_arrows(a, b, one_way=one_way))
        return self

    def check(self, size: int) -> None:
        last = max((place for arrow in self.arrows for place in arrow), default=0)
        if last >= size:
            raise UsageError(
                f"a channel is attached to place {last}, and there are only {size} workers (0 to {size - 1}). "
                "Start more workers or attach fewer."
            )


class Graph(Attached):
    """The topology of a networkx graph: its labels, sorted, are the places 0, 1, 2 and so on.

    An edge of an undirected graph is a channel both ways; by an arc (u, v) of a directed one v hears
    u. Weights, double edges and loops say nothing here. It is shown as `Channels`, since a graph
    can't be written on a command line, and behaves like those when workers leave.
    """

    def __init__(self, graph: networkx.Graph) -> None:
        if not callable(getattr(graph, "is_directed", None)):
            raise UsageError(f"Graph needs a graph of networkx and got {graph!r}")
        places = {label: place for place, label in enumerate(_sorted_labels(graph))}
        found = {(places[u], places[v]) for u, v in graph.edges() if u != v}
        self.arrows = frozenset(found if graph.is_directed() else found | {(b, a) for a, b in found})
        self.size = len(places)
        """How many workers it is made for."""

    def check(self, size: int) -> None:
        if size != self.size:
            raise UsageError(
                f"the graph has {self.size} places, and there are {size} workers; start {self.size}."
            )


def _arrows(a: int, b: int, *, one_way: bool) -> tuple[Arrow, ...]:
    if not all(isinstance(place, int) and not isinstance(place, bool) for place in (a, b)):
        raise UsageError(f"attach({a!r}, {b!r}) names no places: they are whole numbers from 0 on")
    if a == b or min(a, b) < 0:
        raise UsageError(f"attach({a}, {b}) joins nothing: a channel needs two different places from 0 on")
    return ((a, b),) if one_way else ((a, b), (b, a))


def _sorted_labels(graph: networkx.Graph) -> list[object]:
    try:
        return sorted(graph.nodes)
    except TypeError as error:
        raise UsageError(
            f"the labels of this graph can't be sorted ({error}), so it isn't known which is the first. Give all "
            "of them the same kind, for instance with networkx.convert_node_labels_to_integers."
        ) from error


@lru_cache(maxsize=64)
def _one_way(arrows: frozenset[Arrow]) -> tuple[Arrow, ...]:
    return tuple(sorted((a, b) for a, b in arrows if (b, a) not in arrows))


@dataclass(frozen=True)
class Wires:
    """By place, whom it hears and who hears it."""

    heard: tuple[tuple[int, ...], ...]
    told: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def _wired(arrows: frozenset[Arrow], size: int) -> Wires:
    """The channels among the first `size` places, after the others have gone one by one."""
    heard: defaultdict[int, set[int]] = defaultdict(set)
    told: defaultdict[int, set[int]] = defaultdict(set)
    for a, b in arrows:
        heard[b].add(a)
        told[a].add(b)
    for gone in sorted({place for arrow in arrows for place in arrow if place >= size}, reverse=True):
        _hand_over(gone, heard, told)
    return Wires(
        tuple(tuple(sorted(heard[place])) for place in range(size)),
        tuple(tuple(sorted(told[place])) for place in range(size)),
    )


def _hand_over(gone: int, heard: dict[int, set[int]], told: dict[int, set[int]]) -> None:
    """The lowest of those who are attached to `gone` takes its place in the channels of the others."""
    heir = min(heard[gone] | told[gone], default=None)
    for theirs, back in ((heard, told), (told, heard)):
        for other in theirs[gone]:
            back[other].discard(gone)
            if heir is not None and other != heir:
                theirs[heir].add(other)
                back[other].add(heir)
