"""Colours, line styles and markers: one list for the page (light and dark) and for paper.

Figures are drawn in the light colours. On the page each of them becomes a CSS variable, so a figure
changes with the theme. The eight colours of strategies differ in lightness too, so they stay apart for
people who don't see red, green or blue; from the ninth strategy on the line style changes as well, and
markers always do.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["compute", "send", "wait", "merge", "idle"]

KINDS: tuple[Kind, ...] = ("compute", "merge", "send", "wait", "idle")
"""What a participant's time is spent on, from useful to not, which is the order of stacked bars."""


@dataclass(frozen=True)
class Colour:
    """A role, and what it looks like on a light and on a dark ground."""

    name: str
    light: str
    dark: str

    @property
    def css(self) -> str:
        return f"var(--{self.name})"


INK = Colour("ink", "#1d2329", "#e4e8ec")
MUTED = Colour("muted", "#59626c", "#a0a9b2")
GRID = Colour("grid", "#e2e6ea", "#333a41")
GROUND = Colour("ground", "#fefefe", "#15181b")
"""Behind everything; also the edge between neighbouring marks. Not pure white, which others may use."""

STRATEGIES = (
    Colour("c0", "#1c4f94", "#85abf7"),
    Colour("c1", "#d85f0e", "#d5713e"),
    Colour("c2", "#3d8956", "#3fc48a"),
    Colour("c3", "#c46495", "#c96f9f"),
    Colour("c4", "#0099d6", "#87eaff"),
    Colour("c5", "#6c3700", "#ecbd49"),
    Colour("c6", "#191680", "#8a78ff"),
    Colour("c7", "#3b3832", "#f2ebdd"),
)
TIME = MappingProxyType(
    {
        "compute": Colour("compute", "#2f6690", "#4f8fc0"),
        "merge": Colour("merge", "#74bdb3", "#6fc2b8"),
        "send": Colour("send", "#e8c15a", "#f0d27a"),
        "wait": Colour("wait", "#d0735b", "#cf6b54"),
        "idle": Colour("idle", "#d9dde1", "#4a525a"),
    }
)
EVERY = (INK, MUTED, GRID, GROUND, *STRATEGIES, *TIME.values())

DASHES: tuple[tuple[float, ...], ...] = ((), (5.0, 2.0), (1.2, 1.6), (6.0, 1.8, 1.2, 1.8))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")


@dataclass(frozen=True)
class Look:
    """How one strategy is drawn, everywhere."""

    colour: Colour
    dashes: tuple[float, ...]
    marker: str

    @property
    def line(self) -> str | tuple[int, tuple[float, ...]]:
        return (0, self.dashes) if self.dashes else "solid"


def look(index: int) -> Look:
    """The look of the strategy at this place; the first 72 all differ."""
    return Look(
        STRATEGIES[index % len(STRATEGIES)],
        DASHES[index // len(STRATEGIES) % len(DASHES)],
        MARKERS[index % len(MARKERS)],
    )


def css_variables() -> str:
    """The colours as declarations of a style sheet."""
    return "\n".join(f"  --{each.name}: light-dark({each.light}, {each.dark});" for each in EVERY)
