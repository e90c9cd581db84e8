"""Collectives: a round ends when everybody of its group who has not left has come."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from functools import reduce
from typing import final

from fast.collectives.canonical import canonical_mean
from fast.core import Reduction
from fast.core import world as core
from fast.core.letter import union
from fast.sim.events import Events
from fast.sim.network import Network
from fast.sim.programs import Request


@final
class MeanWait(Request):
    """One member's contribution to a round, and later its result."""

    def __init__(self, round_: core.Round) -> None:
        self.asked = round_
        self.missing: tuple[int, ...] = ()
        """Who had not come yet when this member came."""
        self.round: Round | None = None
        self.closed_ns = 0
        """When the last member came; from then on the values move."""
        self.took_ns = 0
        """From then on, as far as its owner waited for it."""
        self.reduction: Reduction | None = None

    def describe(self) -> str:
        missing = sorted(self.round.missing) if self.round else []
        return f"the mean, to which {', '.join(map(str, missing))} must still come"


_Group = tuple[tuple[int, ...], int]
"""Members and lane."""


@dataclass
class Round:
    """Who has come so far, and who must still come."""

    missing: set[int]
    arrived: dict[int, MeanWait] = field(default_factory=dict)


@final
class Rounds:
    """At most one round is open per group and lane: nobody can start the next before all are in this one."""

    def __init__(self, events: Events, network: Network, left: Container[int]) -> None:
        self._events, self._network, self._left = events, network, left
        self._open: dict[_Group, Round] = {}
        self._free_ns: dict[tuple[int, ...], int] = {}

    def join(self, who: int, wait: MeanWait) -> None:
        """Take part in a group's round. The last one to come closes it."""
        group = (wait.asked.among, wait.asked.lane)
        if group not in self._open:
            self._open[group] = Round({member for member in wait.asked.among if member not in self._left})
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

    def _close_if_complete(self, group: _Group) -> None:
        if self._open[group].missing:
            return
        arrived = self._open.pop(group).arrived
        members = tuple(sorted(arrived))
        waits = [arrived[member] for member in members]
        asked = [wait.asked for wait in waits]
        result = canonical_mean([each.tensor for each in asked], [each.weight for each in asked])
        present = reduce(union, (each.present for each in asked))
        ends_ns = self._transfer(group[0], members, result.numel() * result.element_size())
        for wait in waits:
            own = result if wait.asked.read_only else result.clone()
            wait.reduction, wait.closed_ns = Reduction(own, members, present), self._events.now_ns
            if not wait.missing and len(members) == 1:
                wait.fulfilled = True  # alone: the result is there at once, nobody was suspended
                continue
            self._events.at(ends_ns, wait.resume)

    def _transfer(self, group: tuple[int, ...], members: tuple[int, ...], nbytes: int) -> int:
        """When a round that is closed now has moved its bytes. Rounds of one group that are under way
        at once share their links: each moves when the one before it has."""
        begins_ns = max(self._events.now_ns, self._free_ns.get(group, 0))
        self._free_ns[group] = begins_ns + self._network.moving_ns(members, nbytes)
        return begins_ns + self._network.mean_ns(members, nbytes)
