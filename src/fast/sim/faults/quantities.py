"""Numbers and times as a scenario writes them: exact both ways, so that what is printed reads back as it was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import count, groupby
from types import MappingProxyType

from fast.errors import UsageError

UNITS_NS: Mapping[str, int] = MappingProxyType(
    {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1}
)


def show_time(ns: int) -> str:
    """In the largest unit that leaves something before the point.

    >>> show_time(1_500_000_000), show_time(50_000_000), show_time(0)
    ('1.5s', '50ms', '0s')
    """
    unit = next((unit for unit in ("s", "ms", "us") if ns >= UNITS_NS[unit]), "ns" if ns else "s")
    return f"{show_number(Decimal(ns) / UNITS_NS[unit])}{unit}"


def read_time(text: str) -> int:
    """Nanoseconds, exactly; a unit is needed, since a plain number could be a step.

    >>> read_time("1.5s"), read_time("500ms")
    (1500000000, 500000000)
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzµ")
    ns = Decimal(number) * UNITS_NS[text[len(number) :]]
    if ns != int(ns):
        raise UsageError(f"{text} is less than a nanosecond exact; times are whole nanoseconds")
    return int(ns)


def show_number(value: float | Decimal) -> str:
    """All its digits, never with an exponent.

    >>> show_number(100.0), show_number(1e-7), show_number(0.5)
    ('100', '0.0000001', '0.5')
    """
    text = format(Decimal(repr(value)) if isinstance(value, float) else Decimal(value), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def check_number(value: float, what: str, *, least: float = -math.inf) -> None:
    """A finite number above `least`."""
    if not (math.isfinite(value) and value > least):
        needed = "a finite number" if least == -math.inf else f"a finite number above {least:g}"
        raise UsageError(f"{what} {value:g} can't be; it is {needed}")


def check_ns(ns: int, what: str, *, least: int = 1) -> None:
    """A whole number of nanoseconds, not less than `least`."""
    if ns < least:
        raise UsageError(f"{what} {ns} ns can't be; it is {'longer than 0' if least else '0 or more'}")


def show_ids(ids: Iterable[int]) -> str:
    """Three or more in a row become a range.

    >>> show_ids([0, 1, 2, 3, 6, 8, 9])
    '0-3,6,8,9'
    """
    runs = (list(run) for _, run in groupby(zip(ids, count(), strict=False), lambda pair: pair[0] - pair[1]))
    return ",".join(_run([number for number, _ in run]) for run in runs)


def _run(ids: list[int]) -> str:
    return f"{ids[0]}-{ids[-1]}" if len(ids) > 2 else ",".join(map(str, ids))


MOST_IDS = 100_000
"""A range of more would only fill the memory; no simulation is that large."""


def read_ids(text: str) -> tuple[int, ...]:
    """
    >>> read_ids("0-3,6")
    (0, 1, 2, 3, 6)
    """
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST_IDS:
            raise UsageError(f"{part}: a range goes upwards, such as 0-3, and ids stay under {MOST_IDS:,}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))
