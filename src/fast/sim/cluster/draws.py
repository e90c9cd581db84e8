"""Random numbers by address: a hash of (seed, stream, worker, step), the same on every machine.

There is no generator to carry along, so any draw can be asked for at any time. Mixing is that of
splitmix64 (Steele, Lea and Flood 2014), in integers alone; one draw costs about a microsecond.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache
from statistics import NormalDist

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
QUANTILE_BITS = 12
"""A log-normal draw is one of 4096 equally likely values, the middles of its quantiles."""
FACTOR_BITS = 32
"""Factors are integers: so many bits behind the point."""
_DIGITS = 9


def draw_bits(seed: int, stream: int, worker: int, step: int) -> int:
    """64 random bits."""
    return _mix(_mix(_mix(seed + stream * _GOLDEN) + worker) + step)


def draw_unit(seed: int, stream: int, worker: int, step: int) -> float:
    """A number in [0, 1)."""
    return (draw_bits(seed, stream, worker, step) >> 11) * 2.0**-53


def _mix(number: int) -> int:
    number = (number + _GOLDEN) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


@lru_cache(maxsize=1 << 15)
def log_normal_factor(sigma: float, place: int) -> int:
    """exp(sigma z) at the middle z of one of the quantiles of a standard normal distribution.

    The mathematical functions of machines differ in their last bits. So z is rounded to nine digits,
    far above such differences, and the exponential is taken in decimal, where it is exact.
    """
    exact = Context(prec=25)
    power = exact.multiply(Decimal(sigma), normal_quantile(place))
    return round(exact.multiply(exact.exp(power), Decimal(1 << FACTOR_BITS)))


def normal_quantile(place: int) -> Decimal:
    """z at the middle of one of 4096 equal quantiles, to nine digits."""
    return Decimal(f"{NormalDist().inv_cdf((place + 0.5) / (1 << QUANTILE_BITS)):.{_DIGITS}f}")
