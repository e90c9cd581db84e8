"""The post: carries letters over the network, in order per pair, and knows who has left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

from fast.core import Letter, Tag
from fast.core.framing import header_of
from fast.membership import Change, Why
from fast.runtime.outbox import FOLDING_LIMIT, Outbox
from fast.sim.cluster import Traffic
from fast.sim.events import Events
from fast.sim.inbox import Inbox
from fast.sim.interference import Interference
from fast.sim.views import Views
from fast.view import View
from fast.wire import encode_header

_PAIRS = 1 << 14
"""Of so many pairs is kept that nothing is under way between them."""
_FEW = 64
"""Of who waits for no more than so many, each of them knows."""

Report = Callable[[int, Letter, int, str], None]
"""Told of every letter that is dropped: by whom, which one, its receiver, and why."""


@dataclass(slots=True)
class Way:
    """What is under way from one participant to another."""

    flying: dict[int, Letter] = field(default_factory=dict)
    """By number, in the order of sending."""
    held_until_ns: int = 0
    """Before this time nothing that keeps the order leaves."""
    outbox: Outbox | None = None
    """What the sender holds back, folded, as long as the network is busy with earlier ones of its kind."""

    def carries(self, tag: str) -> int:
        """How many letters with this tag have not arrived."""
        return sum(letter.tag == tag for letter in self.flying.values())


@final
class Post:
    """Letters travel as the network lets them, and keep their order unless a fault says otherwise.

    Letters of a kind that folds don't queue up before a slow link: as on real workers, when a few are on their
    way what comes after folds at the sender, so that memory is bounded by who talks to whom and never by time.

    A departure is known to everybody at once (`departures`), but a wait treats a peer as gone
    only when the news could have travelled and nothing of that peer is on its way any more.
    """

    def __init__(
        self,
        events: Events,
        traffic: Traffic,
        inboxes: dict[int, Inbox],
        start: View,
        tags: Iterable[Tag] = (),
        *,
        absent: Collection[int] = (),
        faults: Interference | None = None,
        report: Report = lambda by, letter, to, why: None,
        doubled: Callable[[Letter, int], None] = lambda letter, to: None,
    ) -> None:
        self.departures: dict[int, int] = dict.fromkeys(sorted(absent), 0)
        self.left_ns: dict[int, int] = dict.fromkeys(sorted(absent), 0)
        self.listening: set[int] = set()
        """The departed workers that still receive letters: they have taken their last step, and others haven't."""
        self.changes: list[Change] = [Change(who, 0, Why.ABSENT) for who in sorted(absent)]
        self._waiting: dict[int, Inbox] = {}
        """Who waits for anybody, or for many."""
        self._awaited: dict[int, dict[int, None]] = {}
        """By peer, who waits for it, in the order in which they began to."""
        self.views = Views(start, self.changes)
        self.traffic = traffic
        self._events, self._inboxes = events, inboxes
        self._dispatch = self._launch if faults is None else partial(self._send_in_danger, faults)
        self.drop, self._doubled = report, doubled
        self._ways: dict[tuple[int, int], Way] = {}
        self._tags = {tag.name: tag for tag in tags}
        self._folding = {tag.name for tag in tags if tag.fold is not None}
        self._number = 0
        self._dead: set[int] = set()

    def send(self, to: int, letter: Letter, nbytes: int, leaves_ns: int) -> None:
        """Put this letter, which is ready at `leaves_ns`, on its way."""
        way = self._ways.get((letter.sender, to))
        if way is None:
            way = self._ways[letter.sender, to] = Way()
        if len(way.flying) >= FOLDING_LIMIT and self._must_wait(to, letter, way):
            self._hold_back(to, letter, way)
        else:
            self._dispatch(to, letter, nbytes, way, leaves_ns)

    def _must_wait(self, to: int, letter: Letter, way: Way) -> bool:
        """Pieces don't: the others of their letter may be on their way."""
        if letter.tag not in self._folding or letter.part is not None:
            return False
        if way.outbox is not None and way.outbox.holds(letter.tag):
            return True
        return way.carries(letter.tag) >= FOLDING_LIMIT and self.traffic.is_busy(letter.sender, to)

    def _hold_back(self, to: int, letter: Letter, way: Way) -> None:
        if way.outbox is None:
            layout = self._inboxes[to].layout_of
            way.outbox = Outbox(self._tags, partial(layout, letter.sender))
        way.outbox.put(letter)

    def _flush(self, to: int, way: Way, letter: Letter) -> bool:
        """Whether a letter that was held back has left."""
        if way.carries(letter.tag) >= FOLDING_LIMIT:
            return False
        nbytes = len(encode_header(header_of(letter))) + letter.tensor.nbytes
        self._dispatch(to, letter, nbytes, way, self._events.now_ns)
        return True

    def _send_in_danger(
        self, faults: Interference, to: int, letter: Letter, nbytes: int, way: Way, leaves_ns: int
    ) -> None:
        fate = faults.fate(letter, to, leaves_ns)
        if not fate.delays_ns:
            self.drop(letter.sender, letter, to, "lost on its way")
        for copy, delay_ns in enumerate(fate.delays_ns):
            if copy:  # memory of its own, as if it had come twice over a wire
                letter = replace(letter, tensor=letter.tensor.clone(), note=deepcopy(letter.note))
                self._doubled(letter, to)
            departs_ns = leaves_ns + delay_ns
            if fate.ordered:
                departs_ns = way.held_until_ns = max(departs_ns, way.held_until_ns)
            self._launch(to, letter, nbytes, way, departs_ns)

    def _launch(self, to: int, letter: Letter, nbytes: int, way: Way, departs_ns: int) -> None:
        self._number = number = self._number + 1
        way.flying[number] = letter
        arrive = partial(self._arrive, letter.sender, to, way, number, self._inboxes[to])
        self.traffic.carry(letter.sender, to, nbytes, arrive, departs_ns)

    def _arrive(self, sender: int, to: int, way: Way, number: int, inbox: Inbox) -> None:
        letter = way.flying.pop(number)
        if way.outbox is not None:
            way.outbox.flush(partial(self._flush, to, way))
        if len(self._ways) > _PAIRS and not way.flying and way.held_until_ns <= self._events.now_ns:
            self._ways.pop((sender, to), None)  # so that memory doesn't grow with all who ever met
        if to in self._dead or self._inboxes[to] is not inbox:
            self.drop(to, letter, to, "its receiver has died")
        else:
            inbox.deliver(letter)
        if sender in self.departures:
            self._tell_if_gone(sender, to)

    # Comings and goings

    def reaches(self, peer: int) -> bool:
        """Whether a letter to this peer is still received."""
        return peer not in self.departures or peer in self.listening

    def leave(self, who: int, steps: int, *, listens: bool = False) -> None:
        """`who` sends nothing any more, and everybody may know it. It may still receive."""
        if listens:
            self.listening.add(who)
        self.changes.append(Change(who, steps))
        self.departures[who] = steps
        self.left_ns[who] = self._events.now_ns
        for other in [*self._awaited.get(who, ()), *self._waiting]:
            if other != who and self._inboxes[other].misses(who):
                self.tell_later(who, other)

    def waits(self, who: int, peers: Collection[int]) -> None:
        """`who` waits for these (nobody: for anything); it wants to know if they leave."""
        if 0 < len(peers) <= _FEW:
            for peer in peers:
                self._awaited.setdefault(peer, {})[who] = None
        else:
            self._waiting[who] = self._inboxes[who]

    def waited(self, who: int, peers: Collection[int]) -> None:
        """Its wait is over."""
        for peer in peers if len(peers) <= _FEW else ():
            others = self._awaited.get(peer)
            if others is not None:
                others.pop(who, None)
                if not others:
                    del self._awaited[peer]
        self._waiting.pop(who, None)

    def bury(self, who: int) -> None:
        """`who` is dead: what arrives for it is lost, and what it had not read too."""
        self._dead.add(who)
        self._waiting.pop(who, None)
        self._drop_unread(who, "its receiver has died")
        for (sender, to), way in self._ways.items():
            if sender == who and way.outbox is not None:
                for letter in way.outbox.drop():
                    self.drop(who, letter, to, "its sender has died")

    def _drop_unread(self, who: int, why: str) -> None:
        for letter in self._inboxes[who].mailbox.letters():
            self.drop(who, letter, who, why)

    def announce(self, who: int, step: int) -> None:
        """From this step on `who` takes part, says everybody's view."""
        self.changes.append(Change(who, step, Why.CAME))

    def welcome(self, who: int, inbox: Inbox) -> None:
        """`who` is there (again): from now on it gets letters, and what waited for it before is lost."""
        if who not in self._dead:
            self._drop_unread(who, "its receiver has come anew")
        self._inboxes[who] = inbox
        self._dead.discard(who)
        del self.departures[who], self.left_ns[who]
        self.listening.discard(who)
        for other in [*self._awaited.get(who, ()), *self._waiting]:
            if self._inboxes[other].misses(who):  # what it waited for was of the life before
                self._inboxes[other].hear_gone(who)

    def tell_later(self, gone: int, to: int) -> None:
        """Look again when the news of this departure can have arrived."""
        news_ns = self.left_ns[gone] + self.traffic.latency_ns(gone, to)
        if news_ns >= self._events.now_ns:
            self._events.at(news_ns, lambda: self._tell_if_gone(gone, to))

    def _tell_if_gone(self, peer: int, to: int) -> None:
        if self.is_gone(peer, to) and self._inboxes[to].misses(peer):
            self._inboxes[to].hear_gone(peer)

    def is_gone(self, peer: int, to: int) -> bool:
        """Whether `peer` has left and `to` has all that it will ever get from it."""
        if peer not in self.left_ns:
            return False
        way = self._ways.get((peer, to))
        news_ns = self.left_ns[peer] + self.traffic.latency_ns(peer, to)
        return self._events.now_ns >= news_ns and not (way and way.flying)

    # What is under way

    def on_the_way(self) -> Iterator[tuple[int, Letter]]:
        """Every letter that has not arrived yet, with its receiver."""
        for (_, to), way in self._ways.items():
            for letter in way.flying.values():
                yield to, letter
            for letter in () if way.outbox is None else way.outbox.letters():
                yield to, letter

    def expects(self, to: int) -> bool:
        """Whether a letter is on its way to this participant."""
        return any(receiver == to for receiver, _ in self.on_the_way())
