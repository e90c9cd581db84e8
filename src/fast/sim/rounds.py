"""Collectives: a round ends when everybody of its group who has not left has come."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from functools import reduce
from typing import final

from fast.collectives.canonical import canonical_mean, parts_of
from fast.core import Reduction
from fast.core import world as core
from fast.core.letter import union
from fast.sim.cluster import Traffic
from fast.sim.events import Events
from fast.sim.interference import Interference
from fast.sim.programs import Request


@final
class MeanWait(Request):
    """One member's contribution to a round, and later its result."""

    def __init__(self, round_: core.Round) -> None:
        self.asked = round_
        self.missing: tuple[int, ...] = ()
        """Who had not come yet when this member came; nobody is named where they are many."""
        self.alone = False
        """Whether there was nobody to wait for."""
        self.round: Round | None = None
        self.closed_ns = 0
        """When the last member came; from then on the values move."""
        self.took_ns = 0
        """From then on, as far as its owner waited for it."""
        self.reduction: Reduction | None = None

    def whom(self) -> tuple[int, ...]:
        return tuple(sorted(self.round.missing)) if self.round else ()

    def describe(self) -> str:
        missing = sorted(self.round.missing) if self.round else []
        return f"the mean, to which {', '.join(map(str, missing))} must still come"


_Group = tuple[tuple[int, ...] | None, int]
"""Members (None for all workers) and lane."""
NAMED = 64
"""Of so many who must still come each is named to who waits; of more only their number matters, and
listing them for each other would take longer than the round."""


@dataclass
class Round:
    """Who has come so far, and who must still come."""

    missing: set[int]
    arrived: dict[int, MeanWait] = field(default_factory=dict)


@final
class Rounds:
    """At most one round is open per group and lane: nobody can start the next before all are in this one."""

    def __init__(
        self,
        events: Events,
        traffic: Traffic,
        workers: tuple[int, ...],
        left: Container[int],
        faults: Interference | None = None,
    ) -> None:
        self._events, self._traffic, self._workers = events, traffic, workers
        self._left, self._faults = left, faults
        self._open: dict[_Group, Round] = {}

    def join(self, who: int, wait: MeanWait) -> None:
        """Take part in a group's round. The last one to come closes it."""
        group = self._group(wait.asked)
        if group not in self._open:
            self._open[group] = Round({member for member in wait.asked.among if member not in self._left})
        round_ = self._open[group]
        round_.missing.discard(who)
        round_.arrived[who] = wait
        wait.round, wait.alone = round_, not round_.missing
        wait.missing = tuple(sorted(round_.missing)) if len(round_.missing) <= NAMED else ()
        self._close_if_complete(group)

    def _group(self, asked: core.Round) -> _Group:
        """Short for the group of all: the hash of ten thousand numbers takes longer than the rest."""
        everybody = asked.among is self._workers or asked.among == self._workers
        return None if everybody else asked.among, asked.lane

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
        parts = parts_of(members, asked[0].groups)
        result = canonical_mean([each.tensor for each in asked], [each.weight for each in asked], parts=parts)
        present = reduce(union, (each.present for each in asked))
        nbytes = result.numel() * result.element_size()
        ends_ns = self._traffic.mean(members, nbytes, group[0] or self._workers)
        if self._faults is not None:
            ends_ns += self._faults.held_ns(members, self._events.now_ns)
        for wait in waits:
            own = result if wait.asked.read_only else result.clone()
            wait.reduction, wait.closed_ns = Reduction(own, members, present), self._events.now_ns
            if wait.alone and len(members) == 1:
                wait.fulfilled = True  # alone: the result is there at once, nobody was suspended
                continue
            self._events.at(ends_ns, wait.resume)
