"""The model of local work: what turns cost on a machine, and how many can work at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fast.core.world import Labour
from fast.errors import UsageError
from fast.sim.cluster.units import NS_PER_S, seconds_to_ns

Measured = tuple[int, int, float]
"""A mean on one host: members, bytes, and the seconds it took."""
_TIMES = ("turn_s", "apply_s", "send_s", "message_s", "read_s", "op_s", "wake_s")
_RATES = ("apply_rate", "send_rate", "read_rate", "op_rate")


@dataclass(frozen=True)
class Work:
    """Times of local work. Nothing takes time unless it was measured or told.

    Rates are in bytes per second.
    """

    turn_s: float = 0.0
    """Each turn of a participant, whatever it does."""
    apply_s: float = 0.0
    apply_rate: float = math.inf
    """One step of the optimizer: a fixed part, and the bytes of the weights."""
    send_s: float = 0.0
    send_rate: float = math.inf
    """Handing over one letter."""
    message_s: float = 0.0
    """For each receiver of it after the first."""
    read_s: float = 0.0
    read_rate: float = math.inf
    """Taking one letter."""
    op_s: float = 0.0
    op_rate: float = math.inf
    """A strategy's own arithmetic: each operation on tensors, and the bytes that it reads and writes."""
    wake_s: float = 0.0
    """Going on after a wait for letters, besides the time that they are on the way: a core has to be got from whoever
    computes on it."""
    means: tuple[Measured, ...] = ()
    """Rounds of a mean on one host, by shared memory; in between they are interpolated."""
    servers: Work | None = None
    """What differs on servers: their own times; None if nothing does."""
    cores: int | None = None
    """How many participants of one host work at once; None for all of them."""
    slice_s: float = 0.003
    """Who works longer than this lets another one have the core."""
    cold: tuple[tuple[float, float], ...] = ()
    """Work after a sleep finds the caches cold: (seconds slept, seconds that it then takes longer),
    ascending; in between they are interpolated."""
    warm_s: float = 0.0
    """After so much work the caches are warm again."""
    crowding: tuple[tuple[int, float], ...] = ()
    """By how much computing and all local work take longer with so many participants on a host, which
    use the same cores and their caches: (participants, factor), ascending; 1 for no more than cores."""

    def __post_init__(self) -> None:
        times = [getattr(self, name) for name in _TIMES]
        rates = (self.apply_rate, self.send_rate, self.read_rate, self.op_rate, self.slice_s)
        if not all(0 <= time < math.inf for time in times) or not all(rate > 0 for rate in rates):
            raise UsageError(f"times of work are 0 or more and rates above 0, and found is {self}")
        if any(members < 2 or nbytes < 0 or not 0 <= took < math.inf for members, nbytes, took in self.means):
            raise UsageError(
                f"measured means are (2 or more members, bytes, seconds), and found is {self.means}"
            )
        if self.cores is not None and self.cores < 1:
            raise UsageError(
                f"a host with {self.cores} cores can't be; at least 1, or none named for no limit"
            )
        if self.cold and not 0 < self.warm_s < math.inf:
            raise UsageError("where work is slower after a sleep, `warm` says after how much work it isn't")
        if any(not 0 < slept < math.inf or not 0 <= extra < math.inf for slept, extra in self.cold):
            raise UsageError(f"cold is (seconds slept, seconds longer), and found is {self.cold}")
        if any(many < 1 or not 1 <= factor < math.inf for many, factor in self.crowding):
            raise UsageError(
                f"crowding is (participants, a factor of 1 or more), and found is {self.crowding}"
            )
        if self.servers is not None and (self.servers.means or self.servers.servers or self.servers.cores):
            raise UsageError(
                "servers have times of turns, letters and applying; means and cores are the hosts'"
            )

    def cost_ns(self, on: Labour, nbytes: int, server: bool, receivers: int = 1) -> int:
        """How long this takes one participant."""
        own = self.servers if server and self.servers is not None else self
        match on:
            case Labour.TURN:
                seconds = own.turn_s
            case Labour.APPLY:
                seconds = own.apply_s + nbytes / own.apply_rate
            case Labour.SEND:
                seconds = own.send_s + nbytes / own.send_rate + (receivers - 1) * own.message_s
            case Labour.READ:
                seconds = own.read_s + nbytes / own.read_rate
            case Labour.TAKE:
                seconds = nbytes / own.read_rate
            case Labour.WAKE:
                seconds = own.wake_s
            case Labour.MERGE:
                seconds = own.op_s + nbytes / own.op_rate
        return seconds_to_ns(seconds)

    def crowd_factor(self, participants: int) -> float:
        """By how much all of it takes longer with so many on a host."""
        points = [(self.cores or 1, 1.0), *self.crowding]
        return _along(points, min(participants, points[-1][0]))

    def slowed(self, factor: float) -> Work:
        """The same, but everything takes `factor` times as long; measured means stay as they are. A crowd has
        pushed out of the caches what a sleep would: that time isn't lost twice."""
        lost_s = (factor - 1) * self.warm_s
        return replace(
            self,
            **{name: getattr(self, name) * factor for name in _TIMES},
            **{name: getattr(self, name) / factor for name in _RATES},
            cold=tuple((slept, max(0.0, extra - lost_s)) for slept, extra in self.cold),
            warm_s=self.warm_s * factor,
            servers=None if self.servers is None else self.servers.slowed(factor),
        )

    @cached_property
    def counts(self) -> bool:
        """Whether a strategy's own arithmetic takes time."""
        owns = (self, self.servers or self)
        return any(own.cost_ns(Labour.MERGE, 1 << 40, server=False) for own in owns)

    def cold_ns(self, slept_ns: int | None) -> int:
        """How much longer work takes after a sleep; after a very long one for None."""
        points = self._cold_points
        longest_ns = points[-1][0]
        return round(_along(points, longest_ns if slept_ns is None else min(slept_ns, longest_ns)))

    @cached_property
    def _cold_points(self) -> list[tuple[int, float]]:
        return [(0, 0.0), *((seconds_to_ns(slept), extra * NS_PER_S) for slept, extra in self.cold)]

    @cached_property
    def warm_ns(self) -> int:
        return max(1, seconds_to_ns(self.warm_s))

    @cached_property
    def slice_ns(self) -> int:
        return max(1, seconds_to_ns(self.slice_s))

    @cached_property
    def free(self) -> bool:
        """Whether no turn takes any time and nobody waits for a core."""
        owns = (self, self.servers or self)
        costs = (own.cost_ns(on, 1 << 40, server=False, receivers=2) for own in owns for on in Labour)
        return self.cores is None and not self.cold and not any(costs)

    def mean_ns(self, members: int, nbytes: int) -> int:
        """How long a mean on one host takes, between those that were measured."""
        points = [(count, _along(sizes, nbytes)) for count, sizes in self._by_members]
        return round(_along(points, members) * NS_PER_S)

    @cached_property
    def _by_members(self) -> list[tuple[int, list[tuple[int, float]]]]:
        counts = sorted({members for members, _, _ in self.means})
        return [
            (count, sorted((nbytes, took) for members, nbytes, took in self.means if members == count))
            for count in counts
        ]


def _along(points: Sequence[tuple[int, float]], x: int) -> float:
    """Straight lines between the points; constant before the first, in proportion after the last."""
    if not points:
        return 0.0
    if x <= points[0][0]:
        return points[0][1]
    if x >= points[-1][0]:
        return points[-1][1] * x / points[-1][0] if points[-1][0] else points[-1][1]
    after = next(place for place, (at, _) in enumerate(points) if at >= x)
    (x0, y0), (x1, y1) = points[after - 1], points[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
