"""Reads: what the weights that a worker got from servers must hold, and how far theirs may move meanwhile."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

from torch import Tensor

from fast.core import WEIGHTS, Strategy
from fast.sim.checkers.base import Checker, Takers
from fast.trace import Applied, Included, Received, Sent, Stepped

if TYPE_CHECKING:
    from fast.sim.simulation import Simulation

_Steps = dict[int, int]
"""By worker: the last of its steps whose update is inside."""


def weight_tags(strategy: Strategy) -> frozenset[str]:
    """The tags under which weights travel."""
    return frozenset(tag.name for tag in strategy.tags if tag.carries == WEIGHTS)


@final
class ReadsComplete(Checker):
    """What a worker computes on at clock c holds everybody's updates up to clock c - misses - 1.

    Clock c is a worker's (c+1)-th step. What a server had included when it sent its weights is known from
    its records, and letters of one server to one worker arrive in order; so what a worker has is known
    too. Updates that nobody will make are not missed: of who has left after n steps there are n, of who
    came late there are none before.
    """

    promise = "a read must hold everybody's updates up to the strategy's bound"

    def __init__(self, strategy: Strategy) -> None:
        self._misses, self._tags = strategy.misses, weight_tags(strategy)
        self._included: dict[int, _Steps] = {}
        """By server: what it has included so far. Replaced when it changes, so that it can be kept."""
        self._sent: dict[tuple[int, int], deque[_Steps]] = {}
        """By server and worker: what was inside of the letters that it has not read yet."""
        self._has: dict[tuple[int, int], _Steps] = {}
        """By server and worker: what is inside of what it read last."""
        self._since: dict[int, int] = {}
        """Who came late: its first step."""
        self._void: set[tuple[int, int]] = set()
        """Workers and their steps that don't count: what is pushed then holds no update."""

    def takers(self) -> Takers:
        return {
            Included: self._include,
            Sent: self._send,
            Received: self._receive,
            Stepped: self._check,
        }

    def came(self, who: int) -> None:
        self._since[who] = self.me(who).steps
        for books in (self._sent, self._has):
            for way in [way for way in books if way[1] == who]:
                del books[way]

    def _include(self, record: Included) -> None:
        if self.participant(record.who).worker is None:
            before = self._included.get(record.who, {})
            latest = max(record.step, before.get(record.sender, -1))
            self._included[record.who] = {**before, record.sender: latest}

    def _send(self, record: Sent) -> None:
        if self.participant(record.who).worker is not None:
            self._void.update(() if self.me(record.who).samples else [(record.who, record.step)])
        elif record.whole and record.tag in self._tags:
            inside = self._included.get(record.who, {})
            for to in record.to:
                self._sent.setdefault((record.who, to), deque()).append(inside)

    def _receive(self, record: Received) -> None:
        sent = self._sent.get((record.sender, record.who))
        if sent is not None and record.tag in self._tags:
            for _ in range(min(record.letters, len(sent))):
                self._has[record.sender, record.who] = sent.popleft()

    def _check(self, record: Stepped) -> None:
        """At the end of a step the worker has what it computes on in the next one, of clock `record.step`."""
        due = record.step - self._misses - 1
        if due < 0:
            return
        for server in self.simulation.servers:
            inside = self._has.get((server.me.id, record.who), {})
            for other in self.simulation.workers:
                self._check_one(record, server.me.id, other.me.id, inside, due)

    def _check_one(self, record: Stepped, server: int, other: int, inside: _Steps, due: float) -> None:
        last = due if self.participant(other).alive else min(due, self.me(other).steps - 1)
        while (other, last) in self._void:
            last -= 1
        if last < self._since.get(other, 0) or inside.get(other, -1) >= last:
            return
        raise self.violated(
            f"{self.name(record.who)} begins clock {record.step} with weights of {self.name(server)} that hold the "
            f"updates of {self.name(other)} only up to its clock {inside.get(other, -1)}, and {last:g} is promised"
        )


@final
class ReachKept(Checker):
    """While a worker computes, no server's weights move as far as `reach` from those that it was sent."""

    promise = "a server's weights must stay within the strategy's reach of what workers compute on"

    def __init__(self, strategy: Strategy) -> None:
        self._reach, self._tags = strategy.reach, weight_tags(strategy)
        self._reads: dict[tuple[int, int], Tensor] = {}
        """By server and worker: the weights that it computes on, or that are on their way to it."""

    def attach(self, simulation: Simulation) -> None:
        super().attach(simulation)
        for server in simulation.servers:
            start = server.me.weights.detach().clone()
            self._reads.update({(server.me.id, worker.me.id): start for worker in simulation.workers})

    def takers(self) -> Takers:
        return {Sent: self._send, Received: self._receive, Applied: self._check}

    def _send(self, record: Sent) -> None:
        if record.tag in self._tags and self.participant(record.who).worker is None:
            sent = self.me(record.who).weights.detach().clone()
            self._reads.update({(record.who, to): sent for to in record.to})

    def _receive(self, record: Received) -> None:
        """Its push is here: it has done with what it read."""
        self._reads.pop((record.who, record.sender), None)

    def _check(self, record: Applied) -> None:
        if self.participant(record.who).worker is not None:
            return
        weights = self.me(record.who).weights.detach()
        for (server, worker), read in self._reads.items():
            if server != record.who or not self.participant(worker).alive:
                continue
            moved = float((weights - read).abs().max())
            if not moved < self._reach:
                raise self.violated(
                    f"{self.name(server)} is {moved:.6g} away from what {self.name(worker)} computes on, and less "
                    f"than {self._reach:g} is promised"
                )
