"""Workers in rows and columns: the grid, and the torus that closes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from fast.errors import UsageError
from fast.parts.topology.base import Topology, others


@dataclass(frozen=True, repr=False)
class Rectangular(Topology):
    """Places row by row. Sides that are left out are as equal as the number of workers allows, and
    so are given ones when they don't fit any more because somebody has left."""

    rows: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        for side_name in ("rows", "columns"):
            side = getattr(self, side_name)
            if side is None:
                continue
            if isinstance(side, bool) or not isinstance(side, int):
                raise UsageError(
                    f"a {self.name} with {side_name}={side!r} can't be: a side is a whole number"
                )
            if side < 1:
                raise UsageError(f"a {self.name} with {side_name}={side} is empty; a side is at least 1")

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

    def _in_words(self, size: int, one_row: str) -> str:
        rows, columns = self.sides(size)
        if min(rows, columns) > 1 or size <= 3:
            return f"{self.name} of {rows} x {columns}"
        prime = all(size % side for side in range(2, isqrt(size) + 1))
        why = f"{size} has no other divisors, so " if prime else ""
        return f"{self.name} of {rows} x {columns}: {why}the workers form a {one_row}"


@dataclass(frozen=True, repr=False)
class Torus(Rectangular):
    """Workers on a grid of `rows` x `columns` that closes in both directions.

    Left out, the grid is as square as the number of workers allows. A neighbour that is reached
    twice (a side of 2) counts once; a side of 1 adds none.
    """

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        rows, columns = self.sides(size)
        row, column = divmod(index, columns)
        around = (
            ((row - 1) % rows, column),
            ((row + 1) % rows, column),
            (row, (column - 1) % columns),
            (row, (column + 1) % columns),
        )
        return others(index, (r * columns + c for r, c in around))

    def describe(self, size: int) -> str:
        return self._in_words(size, "ring")


@dataclass(frozen=True, repr=False)
class Grid(Rectangular):
    """Workers on a grid of `rows` x `columns` that ends at its edges: up to four neighbours.

    Left out, the grid is as square as the number of workers allows.
    """

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        rows, columns = self.sides(size)
        row, column = divmod(index, columns)
        around = ((row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column))
        return tuple(r * columns + c for r, c in around if 0 <= r < rows and 0 <= c < columns)

    def describe(self, size: int) -> str:
        return self._in_words(size, "line")
