"""Topologies that a sentence describes: ring, full, star, tree, bipartite."""

from __future__ import annotations

from dataclasses import dataclass

from fast.parts.arguments import check_whole
from fast.parts.topology.base import Topology, others


@dataclass(frozen=True, repr=False)
class Ring(Topology):
    """Each worker hears the one before and the one after it."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return others(index, ((index - 1) % size, (index + 1) % size))


@dataclass(frozen=True, repr=False)
class Full(Topology):
    """Everybody hears everybody."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return (*range(index), *range(index + 1, size))

    def in_degree(self, index: int, size: int, round_: int) -> int:
        return size - 1

    def describe(self, size: int) -> str:
        return f"full graph of {size}: everybody hears everybody"


@dataclass(frozen=True, repr=False)
class Star(Topology):
    """Everybody hears the worker in the middle, which is place 0, and it hears everybody."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return tuple(range(1, size)) if index == 0 else (0,)

    def in_degree(self, index: int, size: int, round_: int) -> int:
        return size - 1 if index == 0 else 1

    def describe(self, size: int) -> str:
        return f"star of {size} with the first worker in the middle"


@dataclass(frozen=True, repr=False)
class Tree(Topology):
    """Each worker hears its parent and up to `arity` children: place i has the children
    arity * i + 1 to arity * i + arity, level by level. With an arity of 1 it is a line."""

    arity: int = 2

    def __post_init__(self) -> None:
        check_whole("tree", "arity", self.arity, 1)

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        first = self.arity * index + 1
        children = range(first, min(first + self.arity, size))
        return tuple(children) if index == 0 else ((index - 1) // self.arity, *children)

    def describe(self, size: int) -> str:
        levels, last = 1, size - 1
        while last > 0:
            levels, last = levels + 1, (last - 1) // self.arity
        return f"tree of {size} with up to {self.arity} children each, {levels} levels"


@dataclass(frozen=True, repr=False)
class Bipartite(Topology):
    """Two sides, the even places and the odd ones: each worker hears everybody on the other side.

    This is the graph for exchanges in pairs, where one side asks and the other answers, so that
    no circle of workers can wait for each other. It is the complete one, because it stays
    bipartite for every number of workers (a ring does so only while their number is even), and
    because whoever picks one partner at a time pays nothing for having many to pick from.
    """

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return tuple(range(1 - index % 2, size, 2))

    def in_degree(self, index: int, size: int, round_: int) -> int:
        return size // 2 if index % 2 == 0 else (size + 1) // 2

    def describe(self, size: int) -> str:
        return f"two sides of {(size + 1) // 2} and {size // 2}: even places hear the odd ones, odd the even ones"
