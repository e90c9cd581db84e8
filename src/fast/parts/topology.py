"""Topologies: who hears whom. Pure functions of a worker's place, the view and the round.

A topology is undirected and gets Metropolis-Hastings mixing weights, 1 / (1 + the larger degree
of the two ends): symmetric and doubly stochastic on any graph, 1/3 on a ring, 1/5 on a torus.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import isqrt
from types import MappingProxyType

from fast.errors import UsageError
from fast.view import View


class Topology(ABC):
    """Subclasses say which places are linked; weights and ids follow from that."""

    @abstractmethod
    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        """The places that `index` hears among `size` workers: sorted, without itself, each once."""

    def degree(self, index: int, size: int, round_: int) -> int:
        return len(self.links(index, size, round_))

    def neighbours(self, index: int, view: View, round_: int) -> Mapping[int, float]:
        """The ids of those whom `index` hears, with their mixing weights. The rest is its own."""
        size = len(view.workers)
        own = self.degree(index, size, round_)
        return {
            view.workers[other]: 1.0 / (1 + max(own, self.degree(other, size, round_)))
            for other in self.links(index, size, round_)
        }

    def check(self, size: int) -> None:  # noqa: B027 (most topologies connect any number)
        """Refuse a number of workers that this topology can't connect."""

    def describe(self, size: int) -> str:
        """What it does with this many workers, in words."""
        return f"{type(self).__name__.lower()} of {size}"

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}()"


class Ring(Topology):
    """Each worker hears the one before and the one after it."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return _others(index, ((index - 1) % size, (index + 1) % size))


class Full(Topology):
    """Everybody hears everybody."""

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return _others(index, range(size))

    def degree(self, index: int, size: int, round_: int) -> int:
        return size - 1


class Torus(Topology):
    """Workers on a grid of `rows` x `columns` that closes in both directions.

    Left out, the grid is as square as the number of workers allows. A neighbour that is reached
    twice (a side of 2) counts once; a side of 1 adds none.
    """

    def __init__(self, rows: int | None = None, columns: int | None = None) -> None:
        for name, side in (("rows", rows), ("columns", columns)):
            if side is not None and side < 1:
                raise UsageError(f"a torus with {name}={side} is empty; a side is at least 1")
        self.rows, self.columns = rows, columns

    def sides(self, size: int) -> tuple[int, int]:
        """Rows and columns for this many workers."""
        if self.rows is not None and self.columns is not None and self.rows * self.columns == size:
            return self.rows, self.columns
        if self.rows is not None and self.columns is None and size % self.rows == 0:
            return self.rows, size // self.rows
        if self.columns is not None and self.rows is None and size % self.columns == 0:
            return size // self.columns, self.columns
        rows = next(side for side in range(isqrt(size), 0, -1) if size % side == 0)
        return rows, size // rows

    def check(self, size: int) -> None:
        rows, columns = self.sides(size)
        if self.rows not in (None, rows) or self.columns not in (None, columns):
            raise UsageError(
                f"{self!r} doesn't hold {size} workers. Leave the sides out, or choose two whose product is {size}."
            )

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        rows, columns = self.sides(size)
        row, column = divmod(index, columns)
        around = (
            ((row - 1) % rows, column),
            ((row + 1) % rows, column),
            (row, (column - 1) % columns),
            (row, (column + 1) % columns),
        )
        return _others(index, (r * columns + c for r, c in around))

    def describe(self, size: int) -> str:
        rows, columns = self.sides(size)
        if rows == 1 and size > 3:
            return f"torus of 1 x {columns}: {size} has no other divisors, so the workers form a ring"
        return f"torus of {rows} x {columns}"

    def __repr__(self) -> str:
        return f"torus(rows={self.rows}, columns={self.columns})"


class Channels(Topology):
    """A topology built by hand: attach workers to one another.

    >>> line = Channels().attach(0, 1).attach(1, 2)
    >>> line.links(1, 3, 0)
    (0, 2)
    """

    def __init__(self, channels: Iterable[tuple[int, int]] = ()) -> None:
        self._channels: frozenset[tuple[int, int]] = frozenset()
        for a, b in channels:
            self.attach(a, b)

    def attach(self, a: int, b: int) -> Channels:
        """A channel between two places, both ways. Returns the same object, to attach further."""
        if a == b or min(a, b) < 0:
            raise UsageError(
                f"attach({a}, {b}) joins nothing: a channel needs two different places from 0 on"
            )
        self._channels |= {(min(a, b), max(a, b))}
        return self

    def check(self, size: int) -> None:
        outside = sorted({place for channel in self._channels for place in channel if place >= size})
        if outside:
            raise UsageError(
                f"a channel is attached to place {outside[0]}, and there are only {size} workers (0 to {size - 1}). "
                "Start more workers or attach fewer."
            )

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        ends = (b if a == index else a for a, b in self._channels if index in (a, b))
        return _others(index, (end for end in ends if end < size))

    def describe(self, size: int) -> str:
        return f"{len(self._channels)} channels among {size}"

    def __repr__(self) -> str:
        return f"channels({sorted(self._channels)})"


TOPOLOGIES: Mapping[str, type[Topology]] = MappingProxyType(
    {"ring": Ring, "full": Full, "torus": Torus, "channels": Channels}
)
"""By the name that the command line uses."""


def _others(index: int, places: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(places) - {index}))
