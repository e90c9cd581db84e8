"""The post: carries letters over the links, in order per pair, and knows who has left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from fast.core import Letter
from fast.sim.events import Events
from fast.sim.inbox import Inbox
from fast.sim.network import Network


@dataclass
class Link:
    """One direction between two participants: when it is free, and what is under way on it."""

    free_ns: int = 0
    flying: deque[Letter] = field(default_factory=deque)


@final
class Post:
    """Letters leave when their link is free, arrive bytes / rate + latency later, and keep their order.

    A departure is known to everybody at once (`departures`), but a wait treats a peer as gone
    only when the news could have travelled and nothing of that peer is on its way any more.
    """

    def __init__(self, events: Events, network: Network, inboxes: Mapping[int, Inbox]) -> None:
        self.departures: dict[int, int] = {}
        self.left_ns: dict[int, int] = {}
        self.network = network
        self._events, self._inboxes = events, inboxes
        self._links: dict[tuple[int, int], Link] = {}

    def send(self, to: int, letter: Letter, nbytes: int) -> None:
        """Put this letter on the link to `to`."""
        link = self._links.setdefault((letter.sender, to), Link())
        speed = self.network.between(letter.sender, to)
        link.free_ns = max(self._events.now_ns, link.free_ns) + speed.sending_ns(nbytes)
        link.flying.append(letter)
        self._events.at(link.free_ns + speed.latency_ns, self._arrival(letter.sender, to, link))

    def _arrival(self, sender: int, to: int, link: Link) -> Callable[[], None]:
        def arrive() -> None:
            self._inboxes[to].deliver(link.flying.popleft())
            self._tell_if_gone(sender, to)

        return arrive

    def leave(self, who: int, steps: int) -> None:
        """`who` sends nothing any more."""
        self.departures[who] = steps
        self.left_ns[who] = self._events.now_ns
        for other, inbox in self._inboxes.items():
            if other != who and inbox.misses(who):
                self.tell_later(who, other)

    def tell_later(self, gone: int, to: int) -> None:
        """Look again when the news of this departure can have arrived."""
        news_ns = self.left_ns[gone] + self.network.between(gone, to).latency_ns
        if news_ns >= self._events.now_ns:
            self._events.at(news_ns, lambda: self._tell_if_gone(gone, to))

    def _tell_if_gone(self, peer: int, to: int) -> None:
        if self.is_gone(peer, to) and self._inboxes[to].misses(peer):
            self._inboxes[to].hear_gone(peer)

    def is_gone(self, peer: int, to: int) -> bool:
        """Whether `peer` has left and `to` has all that it will ever get from it."""
        if peer not in self.left_ns:
            return False
        link = self._links.get((peer, to))
        news_ns = self.left_ns[peer] + self.network.between(peer, to).latency_ns
        return self._events.now_ns >= news_ns and not (link and link.flying)

    def on_the_way(self) -> Iterator[tuple[int, Letter]]:
        """Every letter that has not arrived yet, with its receiver."""
        for (_, to), link in self._links.items():
            for letter in link.flying:
                yield to, letter

    def expects(self, to: int) -> bool:
        """Whether a letter is on its way to this participant."""
        return any(receiver == to for receiver, _ in self.on_the_way())
