"""Distances that are powers of two: hypercube and exponential, all at once or one peer per round."""

from __future__ import annotations

from dataclasses import dataclass

from fast.errors import UsageError
from fast.parts.arguments import check_flag
from fast.parts.topology.base import Topology


def dimensions(size: int) -> int:
    """How many powers of two are below `size`: floor(log2(size - 1)) + 1, and none for one worker."""
    return (size - 1).bit_length()


@dataclass(frozen=True, repr=False)
class Hypercube(Topology):
    """Each worker hears those whose place differs from its own in one binary digit.

    With `one_peer` the digits take turns: in round t, i and i XOR 2^(t mod log2 P) hear each other.
    Mixing halves then makes the exact mean of all in log2 P rounds, where the full graph needs one
    round of P - 1 letters each.

    Once somebody has left, the corners that are missing are heard by nobody; the rest still hangs
    together, because every place hears the lower one in which its highest digit is 0.
    """

    one_peer: bool = False

    def __post_init__(self) -> None:
        check_flag("hypercube", "one_peer", self.one_peer)

    @property
    def changing(self) -> bool:
        return self.one_peer

    def check(self, size: int) -> None:
        if size & (size - 1):
            below = 1 << (size.bit_length() - 1)
            raise UsageError(
                f"{self!r} needs a power of two, and there are {size} workers. Start {below} or {2 * below}, "
                "or take exponential or torus, which hold any number."
            )

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        found = (index ^ (1 << digit) for digit in _turns(self.one_peer, size, round_))
        return tuple(sorted(other for other in found if other < size))

    def period(self, size: int) -> int:
        return max(1, dimensions(size)) if self.one_peer else 1

    def describe(self, size: int) -> str:
        how = ", one of them per round" if self.one_peer else ""
        return f"hypercube of {size} in {dimensions(size)} dimensions{how}"


@dataclass(frozen=True, repr=False)
class Exponential(Topology):
    """Directed: in round t place i tells (i + 2^(t mod K)) mod P, with K = floor(log2(P - 1)) + 1.

    One letter per worker and round. Everybody tells one and hears one, so the shares of 1/2 are
    mixing weights as well. If P is a power of two, K rounds make the exact mean of all. Without
    `one_peer` all K distances are used in every round. (Assran et al., 2019)
    """

    one_peer: bool = True
    directed = True

    def __post_init__(self) -> None:
        check_flag("exponential", "one_peer", self.one_peer)

    @property
    def changing(self) -> bool:
        return self.one_peer

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return tuple(sorted((index - step) % size for step in self._steps(size, round_)))

    def told(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        return tuple(sorted((index + step) % size for step in self._steps(size, round_)))

    def _steps(self, size: int, round_: int) -> list[int]:
        return [1 << digit for digit in _turns(self.one_peer, size, round_)]

    def period(self, size: int) -> int:
        return max(1, dimensions(size)) if self.one_peer else 1

    def describe(self, size: int) -> str:
        if size == 1:
            return "exponential graph of 1"
        steps = ", ".join(str(1 << digit) for digit in range(dimensions(size)))
        turns = " in turn" if self.one_peer and size > 2 else ""
        return f"exponential graph of {size}: each tells the one {steps} further on{turns}"


def _turns(one_peer: bool, size: int, round_: int) -> range:
    """The powers that are used in this round."""
    count = dimensions(size)
    if not one_peer or count == 0:
        return range(count)
    return range(round_ % count, round_ % count + 1)
