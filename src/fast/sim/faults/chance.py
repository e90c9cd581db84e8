"""Random numbers that are a function of seed, pair and letter: no letter's luck depends on another's.

A generator that is drawn from would reshuffle everything behind a letter more or less, and shrinking a
scenario would change what it is meant to keep. So each number is a hash of (seed, sender, receiver, the
how-manieth letter of this pair, what for).
"""

from __future__ import annotations

from typing import final

from fast.core.seeds import stream_seed

_FULL = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
_UNIT = 2.0**-53
_PURPOSE = 20
"""A purpose has room for so many bits of further numbers."""


def drawn(key: int, number: int) -> int:
    """The number-th number of a stream, 64 bits: Steele, Lea and Flood's SplitMix, at any place."""
    value = (key + (number + 1) * _ODD) & _FULL
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _FULL
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _FULL
    return value ^ (value >> 31)


@final
class Luck:
    """The random numbers of one letter."""

    __slots__ = ("_key",)

    def __init__(self, key: int) -> None:
        self._key = key

    def draw(self, purpose: int, again: int = 0) -> float:
        """In [0, 1): the one for this purpose, or another one for it."""
        return (drawn(self._key, purpose << _PURPOSE | again) >> 11) * _UNIT


@final
class Chances:
    """Counts the letters of every pair, and gives each its luck."""

    def __init__(self, seed: int, name: str) -> None:
        self._seed, self._name = seed, name
        self._pairs: dict[object, list[int]] = {}

    def next(self, pair: object) -> Luck:
        """Of the next letter of this pair."""
        known = self._pairs.get(pair)
        if known is None:
            known = self._pairs[pair] = [stream_seed(self._seed, self._name, pair), -1]
        known[1] += 1
        return Luck(drawn(known[0], known[1]))
