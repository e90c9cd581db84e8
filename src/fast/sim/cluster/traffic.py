"""Traffic: letters and rounds on their way through a network, in virtual time.

Every interface, uplink and link is a queue. A letter passes its sender's interface when the letters
before it have; while it does, it already passes the queues behind, each of which is busy for the
letter's bytes at its own rate. It has arrived when the last queue has carried it and the latency is
over. A queue is taken only when the letter gets there: one that waits long at its sender doesn't
stand in the way of others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from fast.core.world import Link
from fast.sim.cluster.demand import Demand, demands
from fast.sim.cluster.network import Network
from fast.sim.cluster.units import NS_PER_S
from fast.sim.cluster.work import Work
from fast.sim.events import Action, Events

_WAYS = 1 << 16
"""Of so many pairs the way is kept."""
_LINKS = 4096
"""Up to so many links are kept without a look at which are still in use."""
_MEMBERS = 100_000
"""Of all groups whose demands are kept."""


@dataclass(slots=True)
class Queue:
    """One direction of an interface, uplink or link: when it is free again."""

    rate_bytes_per_s: float
    free_ns: int = 0
    deferred_ns: int = -1
    """When the last letter that had to wait here begins to move: nobody overtakes it."""

    def carry(self, now_ns: int, nbytes: int) -> int:
        """Take it at the next possible time; when has the last byte passed?"""
        begins_ns = self.free_ns if self.free_ns > now_ns else now_ns
        self.free_ns = passed_ns = begins_ns + round(nbytes / self.rate_bytes_per_s * NS_PER_S)
        return passed_ns


@dataclass(slots=True)
class Way:
    """The queues from one participant to another."""

    first: Queue
    further: Sequence[Queue]
    latency_ns: int
    message_ns: int


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a round: whether they share a host, and what a mean among them asks of which queues."""

    one_host: bool
    demands: Sequence[tuple[Demand, Sequence[Queue]]]

    def free_ns(self) -> int:
        """When all queues are free."""
        return max((queue.free_ns for _, queues in self.demands for queue in queues), default=0)


@final
class Traffic:
    """What is under way on a network."""

    def __init__(self, network: Network, events: Events, work: Work | None = None) -> None:
        self.network = network
        self._events, self._work = events, work or Work()
        self._interfaces: dict[tuple[str, int], Queue] = {}
        self._links: dict[tuple[object, ...], Queue] = {}
        """Of (sender, receiver), and of (group,) for its rounds; those in use, and some more."""
        self._links_limit = _LINKS
        self._deferred: dict[int, int] = {}
        """How many letters each participant has still to hand over: nothing overtakes them."""
        self._ways: dict[tuple[int, int], Way] = {}
        self._groups: dict[tuple[int, ...], Group] = {}
        self._grouped = 0

    def latency_ns(self, sender: int, to: int) -> int:
        """Between these two, however little is sent."""
        return self.network.between(sender, to).latency_ns

    def link(self, sender: int, to: int) -> Link:
        """The way between these two if nobody else used it, for cost models."""
        way = self.network.between(sender, to)
        return Link(way.latency_s, way.rate_bytes_per_s)

    # Letters

    def is_busy(self, sender: int, to: int) -> bool:
        """Whether something on the way between these two has still to carry what was handed over before."""
        way, now_ns = self._ways.get((sender, to)) or self._kept_way(sender, to), self._events.now_ns
        return way.first.free_ns > now_ns or any(queue.free_ns > now_ns for queue in way.further)

    def carry(self, sender: int, to: int, nbytes: int, arrive: Action, leaves_ns: int) -> None:
        """Let `arrive` happen when these bytes, handed over at `leaves_ns`, have come to `to`.

        What one participant hands over to another, never one earlier than the one before, arrives in
        that order.
        """
        if leaves_ns > self._events.now_ns or (self._deferred and self._deferred.get(sender)):
            self._deferred[sender] = self._deferred.get(sender, 0) + 1
            self._events.at(leaves_ns, partial(self._enter_later, sender, to, nbytes, arrive))
        else:
            self._enter(sender, to, nbytes, arrive)

    def _enter_later(self, sender: int, to: int, nbytes: int, arrive: Action) -> None:
        self._deferred[sender] -= 1
        self._enter(sender, to, nbytes, arrive)

    def _enter(self, sender: int, to: int, nbytes: int, arrive: Action) -> None:
        """The letter comes to its sender's interface. If that is free it goes on at once, so that what
        it costs to hand over a message isn't an event of its own."""
        way, now_ns = self._ways.get((sender, to)) or self._kept_way(sender, to), self._events.now_ns
        first = way.first
        waits = first.free_ns > now_ns or first.deferred_ns >= now_ns
        begins_ns = (first.free_ns if first.free_ns > now_ns else now_ns) + way.message_ns
        passed_ns = first.carry(begins_ns, nbytes)
        if not way.further:
            self._events.at(passed_ns + way.latency_ns, arrive)
        elif waits:
            first.deferred_ns = begins_ns
            self._events.at(begins_ns, partial(self._move, way, nbytes, begins_ns, passed_ns, arrive))
        else:
            self._move(way, nbytes, begins_ns, passed_ns, arrive)

    def _move(self, way: Way, nbytes: int, begins_ns: int, passed_ns: int, arrive: Action) -> None:
        """The letter begins to leave its sender's interface."""
        for queue in way.further:
            behind_ns = queue.carry(begins_ns, nbytes)
            if behind_ns > passed_ns:
                passed_ns = behind_ns
        self._events.at(passed_ns + way.latency_ns, arrive)

    def _kept_way(self, sender: int, to: int) -> Way:
        """Worked out once, as long as there are not too many."""
        if len(self._ways) >= _WAYS:
            self._ways.clear()
        way = self._ways[sender, to] = self._way(sender, to)
        return way

    def _way(self, sender: int, to: int) -> Way:
        network = self.network
        own = network.links.get((sender, to)) if network.links else None
        start, end = network.host(sender), network.host(to)
        if own is not None:
            return self._single(sender, to, own)
        if start == end and not network.hosts.alone:
            return self._single(sender, to, network.within)
        return self._across(sender, to, start, end)

    def _single(self, sender: int, to: int, link: Network) -> Way:
        queue = self._link((sender, to), link.rate_bytes_per_s)
        return Way(queue, (), link.latency_ns, link.message_ns)

    def _across(self, sender: int, to: int, start: int, end: int) -> Way:
        network, racks = self.network, self.network.racks
        further, latency_ns = [], network.latency_ns
        if racks is not None and racks.rack(start) != racks.rack(end):
            further.append(self._interface(("up", racks.rack(start)), racks.rate_bytes_per_s))
            further.append(self._interface(("down", racks.rack(end)), racks.rate_bytes_per_s))
            latency_ns += racks.latency_ns
        if not network.shared:
            first = self._link((sender, to), min(network.rate_bytes_per_s, network.receives))
            return Way(first, further, latency_ns, network.message_ns)
        first = self._interface(("out", start), network.rate_bytes_per_s)
        further.append(self._interface(("in", end), network.receives))
        return Way(first, further, latency_ns, network.message_ns)

    # Rounds

    def mean(self, members: tuple[int, ...], nbytes: int, group: tuple[int, ...] | None = None) -> int:
        """When a mean among these members, closed now, has moved its bytes; see `demand`.

        It begins when all queues that it needs are free, and then takes its part of each. Rounds of
        one `group` (the members, unless some have left) follow each other.
        """
        if len(members) < 2:
            return self._events.now_ns
        own, asked = self._link((group or members,), math.inf), self._group(members)
        begins_ns = max(self._events.now_ns, own.free_ns, asked.free_ns())
        if asked.one_host and self._work.means:
            own.free_ns = begins_ns + self._work.mean_ns(len(members), nbytes)
            return own.free_ns
        return max(_reserve(each, queues or [own], nbytes, begins_ns) for each, queues in asked.demands)

    def _group(self, members: tuple[int, ...]) -> Group:
        """Worked out once, as long as there are not too many groups."""
        found = self._groups.get(members)
        if found is None:
            self._grouped += len(members)
            if self._grouped > _MEMBERS:
                self._groups.clear()
                self._grouped = len(members)
            found = self._groups[members] = self._made_group(members)
        return found

    def _made_group(self, members: tuple[int, ...]) -> Group:
        return Group(
            len({self.network.host(member) for member in members}) == 1,
            [
                (demand, [self._interface(place, demand.rate_bytes_per_s) for place in demand.places])
                for demand in demands(self.network, members)
            ],
        )

    # Queues

    def _interface(self, place: tuple[str, int], rate: float) -> Queue:
        queue = self._interfaces.get(place)
        if queue is None:
            queue = self._interfaces[place] = Queue(rate)
        return queue

    def _link(self, ends: tuple[object, ...], rate: float) -> Queue:
        queue = self._links.get(ends)
        if queue is None:
            if len(self._links) >= self._links_limit:
                self._forget_idle()
            queue = self._links[ends] = Queue(rate)
        return queue

    def _forget_idle(self) -> None:
        """A link that is free is like a new one, so that what is kept grows with what is under way."""
        now_ns = self._events.now_ns
        self._links = {
            ends: queue
            for ends, queue in self._links.items()
            if max(queue.free_ns, queue.deferred_ns) >= now_ns
        }
        self._links_limit = max(_LINKS, 2 * len(self._links))
        self._ways.clear()  # they hold links that are not kept any more


def _reserve(demand: Demand, queues: Sequence[Queue], nbytes: int, begins_ns: int) -> int:
    """Take what a mean needs of these queues; when is the last of its bytes there?"""
    passed_ns = begins_ns + demand.busy_ns(nbytes)
    for queue in queues:
        queue.free_ns = max(queue.free_ns, passed_ns)
    return passed_ns + 2 * demand.latency_ns
