"""Where labels go so that none covers another, a mark or a line: beside their marks, or farther away if need be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DISTANCES = (5.0, 10.0, 17.0, 26.0, 38.0, 54.0, 75.0, 100.0)
"""From the mark, in points; the nearest that is free is taken."""
DIRECTIONS = tuple(
    math.radians(degrees) for degrees in (0, 45, -45, 90, -90, 180, 135, -135, 22, -22, 68, 112)
)
"""Counted from the right, against the clock, in the order in which they are tried."""


@dataclass(frozen=True)
class Box:
    """A rectangle, from its lower left to its upper right corner."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )

    def holds(self, other: Box) -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.bottom <= other.bottom
            and other.top <= self.top
        )

    def grown(self, by: float) -> Box:
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)


@dataclass(frozen=True)
class Label:
    """How large it is, and what it belongs to."""

    x: float
    y: float
    width: float
    height: float


def placed(labels: Sequence[Label], taken: Sequence[Box], bounds: Box) -> list[Box | None]:
    """A place for each, the first labels first; None where none is free."""
    occupied, places = list(taken), list[Box | None]()
    for label in labels:
        free = (
            box
            for box in _ideas(label)
            if bounds.holds(box) and not any(box.meets(other) for other in occupied)
        )
        place = next(free, None)
        places.append(place)
        if place is not None:
            occupied.append(place)
    return places


def _ideas(label: Label) -> Iterator[Box]:
    """The nearest first. A label to the right begins there, one above has its middle there, and so on."""
    for distance in DISTANCES:
        for direction in DIRECTIONS:
            across, up = math.cos(direction), math.sin(direction)
            left = label.x + distance * across - label.width * (1 - _side(across)) / 2
            bottom = label.y + distance * up - label.height * (1 - _side(up)) / 2
            yield Box(left, bottom, left + label.width, bottom + label.height)


def _side(part: float) -> float:
    """-1, 0 or 1: whether this direction is left of, at, or right of the middle."""
    return 0.0 if abs(part) < 0.3 else math.copysign(1.0, part)
