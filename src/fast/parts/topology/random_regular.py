"""Random graphs in which everybody has the same number of neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, count
from struct import unpack

from fast.errors import UsageError
from fast.parts.arguments import check_flag, check_whole
from fast.parts.topology.base import Topology

Links = tuple[tuple[int, ...], ...]
"""By place, the places that it hears."""
Edge = tuple[int, int]
"""The lower place first."""


@dataclass(frozen=True, repr=False)
class RandomRegular(Topology):
    """A random connected graph in which everybody hears `degree` others; with `changing`, another
    one in every round.

    The graph follows from seed, number of workers and round by a hash, the same on every machine
    and in every version: workers that drew different graphs would wait for each other for ever.
    Chance is good at this: a few random neighbours mix nearly as well as any that could be chosen.

    If leavers make it impossible (an odd number of workers with an odd degree), one worker has a
    neighbour less; when too few are left, everybody hears everybody.
    """

    degree: int = 3
    seed: int = 0
    changing: bool = False

    def __post_init__(self) -> None:
        check_whole("random_regular", "degree", self.degree, 2)
        check_whole("random_regular", "seed", self.seed, 0)
        check_flag("random_regular", "changing", self.changing)

    def check(self, size: int) -> None:
        if 1 < size <= self.degree:
            raise UsageError(
                f"{self!r} needs more than {self.degree} workers, and there are {size}. Start more, or take full."
            )
        if size % 2 and self.degree % 2 and size > 1:
            raise UsageError(
                f"{self!r} can't be: {size} workers with {self.degree} neighbours each would need half a channel. "
                "Take an even degree or an even number of workers."
            )

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return random_regular(size, self.degree, self.seed, round_ if self.changing else 0)[index]

    def describe(self, size: int) -> str:
        degree = min(self.degree, size - 1)
        when = "another one every round" if self.changing else f"seed {self.seed}"
        return f"random graph of {size} with {degree} neighbours each, {when}"


@lru_cache(maxsize=256)
def random_regular(size: int, degree: int, seed: int, round_: int) -> Links:
    """Whom each place hears. Graphs that fall apart, or can't be finished, are drawn again."""
    if degree >= size - 1:
        return tuple((*range(index), *range(index + 1, size)) for index in range(size))
    words = f"random_regular {size} {degree} {seed} {round_}"
    if degree == 2:  # connected, this is a ring: no use to wait until chance makes one
        ring = _shuffled(range(size), words)
        return _links(size, zip(ring, (*ring[1:], ring[0]), strict=True))
    for attempt in count():
        edges = _draw(size, degree, f"{words} {attempt}")
        if edges is not None and _is_connected(links := _links(size, edges)):
            return links
    raise AssertionError("counting never ends")


def _draw(size: int, degree: int, words: str) -> set[Edge] | None:
    """Pair up the ends of all channels at random; those that would be loops or double are paired
    anew among themselves, until none is left or it is no use. (Steger and Wormald, 1999)"""
    ends = [place for place in range(size) for _ in range(degree)]
    edges: set[Edge] = set()
    for turn in count():
        shuffled = _shuffled(ends, f"{words} {turn}")
        ends = []
        for a, b in zip(shuffled[::2], shuffled[1::2], strict=False):  # an odd one stays out
            edge = (min(a, b), max(a, b))
            if a == b or edge in edges:
                ends += edge
            else:
                edges.add(edge)
        if not ends:
            return edges
        if all(pair in edges for pair in combinations(sorted(set(ends)), 2)):
            return None
    raise AssertionError("counting never ends")


def _shuffled(ends: Sequence[int], words: str) -> list[int]:
    """Ordered by random numbers of 64 bits that are a hash of these words."""
    drawn = unpack(f"<{len(ends)}Q", hashlib.shake_256(words.encode()).digest(8 * len(ends)))
    return [ends[place] for place in sorted(range(len(ends)), key=drawn.__getitem__)]


def _links(size: int, edges: Iterable[Edge]) -> Links:
    found: list[list[int]] = [[] for _ in range(size)]
    for a, b in edges:
        found[a].append(b)
        found[b].append(a)
    return tuple(tuple(sorted(heard)) for heard in found)


def _is_connected(links: Links) -> bool:
    reached, waiting = {0}, [0]
    while waiting:
        fresh = set(links[waiting.pop()]) - reached
        reached |= fresh
        waiting += fresh
    return len(reached) == len(links)
