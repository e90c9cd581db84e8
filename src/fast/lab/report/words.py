"""Numbers as people read them: three digits, a unit, and the same way everywhere on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOTHING = "–"
SPACE = "\u202f"
"""Narrow and unbreakable, before a unit."""


@dataclass(frozen=True)
class Measure:
    """A kind of number: its units, each from some size on, and how many decimals if that is fixed."""

    units: tuple[tuple[float, float, str], ...]
    """(below this size, one of the unit is so many, its name), the smallest first."""
    decimals: int | None = None

    def unit(self, value: float) -> tuple[float, str]:
        """One unit in plain numbers, and its name, for numbers about as large as this one."""
        plain = [each[1:] for each in self.units if each[1] == 1]
        if value == 0 and plain:
            return plain[0]
        return next(each[1:] for each in self.units if abs(value) < each[0])

    def places(self, value: float) -> int:
        """Decimals so that three digits matter; whole numbers stay whole."""
        one, _ = self.unit(value)
        number = abs(value / one)
        if self.decimals is not None:
            return self.decimals
        if number == 0 or (one == 1 and number >= 1 and number == int(number)):
            return 0
        return min(6, max(0, 2 - math.floor(math.log10(number) + 1e-9)))

    def write(self, value: float | None) -> str:
        if value is None:
            return NOTHING
        one, name = self.unit(value)
        if self.decimals is None and 0 < abs(value / one) < 1e-4:
            return f"{value / one:.1e}{_spaced(name)}"
        return f"{value / one:.{self.places(value)}f}{_spaced(name)}"

    def spread(self, stat: Mapping[str, Any] | None) -> tuple[str, str]:
        """1.23 s and ± 0.10: mean and standard deviation over seeds; one seed has no spread."""
        if stat is None or stat.get("mean") is None:
            return NOTHING, ""
        mean, deviation = stat["mean"], stat.get("std")
        one, _ = self.unit(mean)
        if (stat.get("n") or 0) < 2 or deviation is None:
            return self.write(mean), ""
        places = self.places(mean) if mean else self.places(deviation)
        return self.write(mean), f"±{SPACE}{deviation / one:.{places}f}"

    def extent(self, stat: Mapping[str, Any] | None) -> str:
        """The smallest and the largest over seeds, for a hint; nothing for one seed."""
        if stat is None or stat.get("min") is None or (stat.get("n") or 0) < 2:
            return ""
        return f"{self.write(stat['min'])} to {self.write(stat['max'])} over {stat['n']} seeds"


def _spaced(unit: str) -> str:
    return f"{SPACE}{unit}" if unit else ""


SECONDS = Measure(
    ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (600, 1, "s"), (6e4, 60, "min"), (math.inf, 3600, "h"))
)
BYTES = Measure(
    ((1e3, 1, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB"), (math.inf, 1e12, "TB"))
)
"""In powers of 1000, as traffic is counted."""
MEMORY = Measure(((2**20, 2**10, "KiB"), (2**30, 2**20, "MiB"), (math.inf, 2**30, "GiB")))
"""In powers of 1024, as memory is counted."""
COUNT = Measure(((1e4, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (math.inf, 1e9, "G")))
SHARE = Measure(((math.inf, 0.01, "%"),), decimals=0)
SCORE = Measure(((math.inf, 1, ""),), decimals=3)
PLAIN = Measure(((math.inf, 1, ""),))


def exact(value: float) -> str:
    """All digits, in groups of three."""
    return f"{value:,}".replace(",", SPACE)


def plural(number: int, noun: str) -> str:
    """1 seed, 3 seeds, 2 strategies."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"
