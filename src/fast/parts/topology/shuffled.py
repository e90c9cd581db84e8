"""A topology whose places are dealt anew, again and again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import unpack

from fast.errors import UsageError
from fast.parts.arguments import check_whole
from fast.parts.topology.base import Topology
from fast.parts.topology.powers import Exponential

_ONE_PEER = Exponential()
Deal = tuple[tuple[int, ...], tuple[int, ...]]
"""By worker, the place that it has; and by place, the worker who has it."""


@dataclass(frozen=True, repr=False)
class Shuffled(Topology):
    """Another topology, in which workers change places at random: after as many rounds as it needs to
    join all of them (its `period`), the places are dealt anew.

    So a worker meets others than the log2 P partners that a hypercube or an exponential graph has for
    it. This is how GossipGraD rotates its partners (Daily et al., 2018). Who gets which place follows
    from seed, number of workers and deal by a hash, the same on every machine: nobody has to ask.

    >>> dealt = Shuffled(Exponential())
    >>> [dealt.told(0, 8, round_) for round_ in range(6)]
    [(5,), (7,), (4,), (3,), (2,), (6,)]
    """

    topology: Topology = _ONE_PEER
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Topology):
            raise UsageError(
                f"shuffled needs a topology whose places it deals, such as shuffled(hypercube), and got "
                f"{self.topology!r}"
            )
        check_whole("shuffled", "seed", self.seed, 0)

    @property
    def directed(self) -> bool:
        return self.topology.directed

    @property
    def changing(self) -> bool:
        return True

    def links(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        place, worker = self._deal(size, round_)
        return _named(self.topology.links(place[index], size, round_), worker)

    def told(self, index: int, size: int, round_: int) -> tuple[int, ...]:
        place, worker = self._deal(size, round_)
        return _named(self.topology.told(place[index], size, round_), worker)

    def in_degree(self, index: int, size: int, round_: int) -> int:
        return self.topology.in_degree(self._deal(size, round_)[0][index], size, round_)

    def period(self, size: int) -> int:
        """Rounds of two deals don't add up; so many in a row hold one deal as a whole."""
        return 2 * self.topology.period(size) - 1

    def check(self, size: int) -> None:
        self.topology.check(size)

    def describe(self, size: int) -> str:
        rounds = self.topology.period(size)
        when = "in every round" if rounds == 1 else f"every {rounds} rounds"
        return f"{self.topology.describe(size)}; places are dealt anew {when}"

    def _deal(self, size: int, round_: int) -> Deal:
        return deal(size, self.seed, round_ // self.topology.period(size))


@lru_cache(maxsize=128)
def deal(size: int, seed: int, number: int) -> Deal:
    """Who gets which place in this deal: workers ordered by random numbers of 64 bits."""
    words = f"shuffled {size} {seed} {number}"
    drawn = unpack(f"<{size}Q", hashlib.shake_256(words.encode()).digest(8 * size))
    worker = tuple(sorted(range(size), key=drawn.__getitem__))
    place = [0] * size
    for at, who in enumerate(worker):
        place[who] = at
    return tuple(place), worker


def _named(places: Sequence[int], worker: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(worker[place] for place in places))
