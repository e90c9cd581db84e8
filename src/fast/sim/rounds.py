"""Collectives: a round ends when everybody of its group who has not left has come."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from functools import reduce
from typing import final

from torch import Tensor

from fast.collectives.canonical import canonical_mean
from fast.core import Reduction
from fast.core.letter import union
from fast.sim.events import Events
from fast.sim.network import Network
from fast.sim.programs import Request


@final
class MeanWait(Request):
    """One member's contribution to a round, and later its result."""

    def __init__(self, tensor: Tensor, weight: float, present: int | None, read_only: bool) -> None:
        self.tensor, self.weight, self.present, self.read_only = tensor, weight, present, read_only
        self.missing: tuple[int, ...] = ()
        """Who had not come yet when this member came."""
        self.round: Round | None = None
        self.closed_ns = 0
        """When the last member came; from then on the values move."""
        self.reduction: Reduction | None = None

    def describe(self) -> str:
        missing = sorted(self.round.missing) if self.round else []
        return f"the mean, to which {', '.join(map(str, missing))} must still come"


@dataclass
class Round:
    """Who has come so far, and who must still come."""

    missing: set[int]
    arrived: dict[int, MeanWait] = field(default_factory=dict)


@final
class Rounds:
    """At most one round is open per group: nobody can start the next before all are in this one."""

    def __init__(self, events: Events, network: Network, left: Container[int]) -> None:
        self._events, self._network, self._left = events, network, left
        self._open: dict[tuple[int, ...], Round] = {}

    def join(self, who: int, group: tuple[int, ...], wait: MeanWait) -> None:
        """Take part in this group's round. The last one to come closes it."""
        if group not in self._open:
            self._open[group] = Round({member for member in group if member not in self._left})
        round_ = self._open[group]
        round_.missing.discard(who)
        round_.arrived[who] = wait
        wait.round, wait.missing = round_, tuple(sorted(round_.missing))
        self._close_if_complete(group)

    def leave(self, who: int) -> None:
        """Nobody needs to wait for `who` any more."""
        for group in [group for group, round_ in self._open.items() if who in round_.missing]:
            self._open[group].missing.discard(who)
            self._close_if_complete(group)

    def _close_if_complete(self, group: tuple[int, ...]) -> None:
        if self._open[group].missing:
            return
        arrived = self._open.pop(group).arrived
        members = tuple(sorted(arrived))
        waits = [arrived[member] for member in members]
        result = canonical_mean([wait.tensor for wait in waits], [wait.weight for wait in waits])
        present = reduce(union, (wait.present for wait in waits))
        cost_ns = self._network.mean_ns(members, result.numel() * result.element_size())
        for wait in waits:
            own = result if wait.read_only else result.clone()
            wait.reduction, wait.closed_ns = Reduction(own, members, present), self._events.now_ns
            if not wait.missing and len(members) == 1:
                continue  # alone: the result is there at once, nobody was suspended
            self._events.at(self._events.now_ns + cost_ns, wait.resume)
