"""Quantities as people write them: `20ms`, `100mbit`, `4gbyte`; read, and written so that they read back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType

from fast.errors import UsageError

NS_PER_S = 1_000_000_000
UNLIMITED = "unlimited"
LONGEST_S = 1e9
"""Thirty years: what is longer is a slip, and nanoseconds of it would fill a float's digits."""
_PREFIXES = (("", "1"), ("k", "1e3"), ("m", "1e6"), ("g", "1e9"))
_SECONDS: Mapping[str, Decimal] = MappingProxyType(
    {
        unit: Decimal(scale)
        for unit, scale in (
            ("s", "1"),
            ("ms", "1e-3"),
            ("us", "1e-6"),
            ("µs", "1e-6"),
            ("ns", "1e-9"),
        )
    }
)
_BYTES: Mapping[str, Decimal] = MappingProxyType(
    {"": Decimal("0.125")}
    | {prefix + "bit": Decimal(scale) / 8 for prefix, scale in _PREFIXES}
    | {prefix + "byte": Decimal(scale) for prefix, scale in _PREFIXES}
)
_QUANTITY = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]{1,4})?)\s*([a-zµ]*)(?:/s)?\s*", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """`20ms` in nanoseconds. Units: s, ms, us, ns; a number without one could be meant in any, and is
    refused unless it is 0.

    >>> parse_duration("20ms"), parse_duration("0.5s")
    (20000000, 500000000)
    """
    return seconds_to_ns(parse_seconds(text))


def parse_seconds(text: str) -> float:
    """The same in seconds, to the last digit.

    >>> parse_seconds("1.5us")
    1.5e-06
    """
    if text.strip() == "0":
        return 0.0
    seconds = _quantity(text, _SECONDS, "a duration with its unit", "20ms, 1.5s or 100us")
    if seconds > LONGEST_S:
        raise UsageError(f"{text!r} is longer than {LONGEST_S:g} s, which is the most")
    return seconds


def parse_rate(text: str) -> float:
    """`100mbit` in bytes per second. Units: bit, kbit, mbit, gbit, byte and so on; a plain number counts bit/s.

    >>> parse_rate("1gbit"), parse_rate("4 gbyte/s"), parse_rate("unlimited")
    (125000000.0, 4000000000.0, inf)
    """
    if text.strip().lower() == UNLIMITED:
        return math.inf
    rate = _quantity(text, _BYTES, "a rate", "100mbit, 2.5gbit or 1e9 (bits per second)")
    if rate == 0:
        raise UsageError(f"{text!r} is a link that carries nothing; a rate is more than 0")
    return rate


def seconds_to_ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def duration_text(seconds: float) -> str:
    """In the unit in which it reads best; `parse_seconds` gives exactly the same number back.

    >>> duration_text(0.02), duration_text(1.5e-6), duration_text(0)
    ('20ms', '1.5us', '0s')
    """
    exact = Decimal(repr(float(seconds)))
    unit = next((unit for unit in ("s", "ms", "us", "ns") if exact >= _SECONDS[unit]), "s")
    text = f"{(exact / _SECONDS[unit]).normalize():f}{unit}"
    return text if exact else "0s"


def rate_text(bytes_per_s: float, unit: str = "bit") -> str:
    """Likewise for rates, in bits or bytes per second.

    >>> rate_text(125e6), rate_text(4e9, "byte"), rate_text(math.inf)
    ('1gbit', '4gbyte', 'unlimited')
    """
    if math.isinf(bytes_per_s):
        return UNLIMITED
    exact = Decimal(repr(float(bytes_per_s)))
    scale = next((name for name in ("g", "m", "k") if exact >= _BYTES[name + unit]), "")
    return f"{(exact / _BYTES[scale + unit]).normalize():f}{scale}{unit}"


def _quantity(text: str, units: Mapping[str, Decimal], what: str, examples: str) -> float:
    """The nearest float; in decimal, so that 100us and 0.1ms are the same one."""
    match = _QUANTITY.fullmatch(text)
    unit = match[2].lower() if match else "?"
    try:
        value = float(Decimal(match[1]) * units[unit]) if match and unit in units else math.nan
    except ArithmeticError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{text!r} is not {what}. Write for example {examples}.")
    return value
