"""Quantities as people write them: `20ms`, `100mbit`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from fast.errors import UsageError

NS_PER_S = 1_000_000_000
_SECONDS: Mapping[str, float] = MappingProxyType(
    {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
)
_BITS: Mapping[str, float] = MappingProxyType({"": 1.0, "bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9})
_QUANTITY = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)(?:/s)?\s*", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """`20ms` in nanoseconds. Units: s, ms, us, ns; a plain number counts seconds.

    >>> parse_duration("20ms"), parse_duration("0.5")
    (20000000, 500000000)
    """
    return seconds_to_ns(_quantity(text, _SECONDS, "a duration", "20ms, 1.5s or 100us"))


def parse_rate(text: str) -> float:
    """`100mbit` in bytes per second. Units: bit, kbit, mbit, gbit; a plain number counts bit/s.

    >>> parse_rate("1gbit")
    125000000.0
    """
    rate = _quantity(text, _BITS, "a rate", "100mbit, 2.5gbit or 1e9 (bits per second)") / 8
    if rate == 0:
        raise UsageError(f"{text!r} is a link that carries nothing; a rate is more than 0")
    return rate


def seconds_to_ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _quantity(text: str, units: Mapping[str, float], what: str, examples: str) -> float:
    match = _QUANTITY.fullmatch(text)
    unit = match[2].lower() if match else "?"
    try:
        value = float(match[1]) if match else math.nan
    except ValueError:
        value = math.nan
    if unit not in units or not math.isfinite(value):
        raise UsageError(f"{text!r} is not {what}. Write for example {examples}.")
    return value * units[unit]
