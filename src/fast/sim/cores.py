"""Who works on a host's cores: first come, first served, and who goes on working stays."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import final

from fast.sim.cluster import Network, Work
from fast.sim.events import Action, Events


@dataclass
class _Host:
    free: int
    queue: deque[tuple[int, Action]] = field(default_factory=deque)


@final
class Cores:
    """The cores of each host.

    As an operating system has it: a participant that is ready waits for a free core; who has one keeps it as long as
    it works without a pause, through turns and gradients, until its time slice is over and others wait. So after
    a round that woke everybody the first ones compute before the last ones have even looked at the result.
    """

    def __init__(self, work: Work, network: Network, events: Events) -> None:
        self._cores, self._slice_ns = work.cores or 1, work.slice_ns
        self._network, self._events = network, events
        self._hosts: dict[int, _Host] = {}
        self._left_ns: dict[int, int] = {}
        """Who has a core, and how much of its slice is left."""
        self._stints: dict[int, int] = {}
        """How often each has worked; it tells whether somebody has gone on working."""

    def take(self, who: int, granted: Action) -> bool:
        """Whether this participant has a core now. If not, it is told when it has."""
        if who in self._left_ns:
            return True
        host = self._host(who)
        if not host.free:
            host.queue.append((who, granted))
            return False
        host.free -= 1
        self._left_ns[who] = self._slice_ns
        return True

    def stint_ns(self, who: int, work_ns: int) -> int:
        """How long it may work in one go, of so much work."""
        self._stints[who] = self._stints.get(who, 0) + 1
        return min(work_ns, self._left_ns[who])

    def worked(self, who: int, for_ns: int) -> None:
        """It has worked so long. At the end of its slice it lets the next one have the core, if anybody waits."""
        self._left_ns[who] -= for_ns
        if self._left_ns[who]:
            return
        if self._host(who).queue:
            self.give_back(who)
        else:
            self._left_ns[who] = self._slice_ns

    def rests(self, who: int) -> None:
        """It has nothing to do, unless it finds something before the clock moves on."""
        if who in self._left_ns:
            self._events.soon(partial(self._give_back_after, who, self._stints.get(who, 0)))

    def _give_back_after(self, who: int, stint: int) -> None:
        if self._stints.get(who, 0) == stint:
            self.give_back(who)

    def give_back(self, who: int) -> None:
        """Let the core go, or the place in the queue."""
        host = self._host(who)
        if self._left_ns.pop(who, None) is None:
            host.queue = deque(each for each in host.queue if each[0] != who)
        elif host.queue:
            next_, granted = host.queue.popleft()
            self._left_ns[next_] = self._slice_ns
            self._events.soon(granted)
        else:
            host.free += 1

    def crowd(self, who: int) -> float:
        """How many work or want to work on this host, for each of its cores; at least 1."""
        host = self._host(who)
        return max(1.0, (self._cores - host.free + len(host.queue) + 1) / self._cores)

    def _host(self, who: int) -> _Host:
        return self._hosts.setdefault(self._network.host(who), _Host(self._cores))
