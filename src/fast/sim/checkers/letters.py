"""Letters: each is accounted for, and no update is counted twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import final

from fast.core import GRADIENT, Letter, Strategy, fold_sum
from fast.core.mailbox import OWN
from fast.sim.checkers.base import Checker, Takers
from fast.trace import Dropped, Included, Received, Sent

_Way = tuple[int, int, str]
"""Sender, receiver and tag."""
LOOK_EVERY = 64
"""So often the books are compared with the letters that are really there; counting those takes time."""


@dataclass(slots=True)
class Books:
    """What became of the letters of one sender to one receiver under one tag."""

    sent: int = 0
    doubled: int = 0
    read: int = 0
    dropped: int = 0

    @property
    def open(self) -> int:
        """So many must wait somewhere or be on their way."""
        return self.sent + self.doubled - self.read - self.dropped


@final
class LettersAccounted(Checker):
    """sent + doubled = read + dropped + waiting + on the way, for each sender, receiver and tag."""

    promise = "every letter must be accounted for"

    def __init__(self) -> None:
        self._books: defaultdict[_Way, Books] = defaultdict(Books)
        self._touched: set[_Way] = set()
        self._events = 0

    def takers(self) -> Takers:
        return {Sent: self._take_sent, Received: self._take_received, Dropped: self._take_dropped}

    def _take_sent(self, record: Sent) -> None:
        if record.whole:
            for to in record.to:
                self._at((record.who, to, record.tag)).sent += 1

    def _take_received(self, record: Received) -> None:
        self._at((record.sender, record.who, record.tag)).read += record.letters

    def _take_dropped(self, record: Dropped) -> None:
        if not record.tag.startswith(OWN):  # those of rounds are nobody's but the round's
            self._at((record.sender, record.to, record.tag)).dropped += record.letters

    def doubled(self, letter: Letter, to: int) -> None:
        if is_counted(letter):
            self._at((letter.sender, to, letter.tag)).doubled += letter.letters

    def _at(self, way: _Way) -> Books:
        self._touched.add(way)
        return self._books[way]

    def after_event(self) -> None:
        for way in self._touched:
            if self._books[way].open < 0:
                raise self.violated(self._sentence(way, 0))
        self._touched.clear()
        self._events += 1
        if self._events % LOOK_EVERY == 0:
            self._compare()

    def finish(self) -> None:
        """What nobody has read was reported as dropped, so nothing may be open."""
        for way, books in self._books.items():
            if books.open:
                raise self.violated(self._sentence(way, 0))

    def _compare(self) -> None:
        there = self._there()
        for way in sorted(there.keys() | self._books.keys()):
            if self._books[way].open != there[way]:
                raise self.violated(self._sentence(way, there[way]))

    def _there(self) -> Counter[_Way]:
        found: Counter[_Way] = Counter()
        for to, letter in self.simulation.on_the_way():
            if is_counted(letter):
                found[letter.sender, to, letter.tag] += letter.letters
        for p in self.simulation.participants:
            for letter in () if p.dead else self.simulation.unread(p.me.id):
                if is_counted(letter):
                    found[letter.sender, p.me.id, letter.tag] += letter.letters
        return found

    def _sentence(self, way: _Way, there: int) -> str:
        sender, to, tag = way
        books = self._books[way]
        more = f" (and {books.doubled} doubled)" if books.doubled else ""
        return (
            f"{self.name(sender)} sent {self.name(to)} {books.sent} letters {tag!r}{more}; {books.read} were read, "
            f"{books.dropped} dropped, and {there} wait or are on their way"
        )


def is_counted(letter: Letter) -> bool:
    """Letters of rounds are not, and of a letter in pieces only the last one is."""
    return not letter.tag.startswith(OWN) and (letter.part is None or letter.part[0] == 0)


@final
class CountedOnce(Checker):
    """Nobody merges more updates of a sender's step than it was sent; and of gradients that fold by
    their sum or not at all, none is forgotten."""

    promise = "every update must be merged once"

    def __init__(self, strategy: Strategy) -> None:
        self._gradients = {tag.name for tag in strategy.tags if tag.carries == GRADIENT}
        self._complete = {
            tag.name for tag in strategy.tags if tag.carries == GRADIENT and tag.fold in (None, fold_sum)
        }
        self._due: defaultdict[_Way, Counter[int]] = defaultdict(Counter)
        """How many updates of each step of the sender the receiver may still merge."""
        self._excused: set[int] = set()
        """Who died, perhaps between reading and merging."""

    def takers(self) -> Takers:
        return {Sent: self._take_sent, Included: self._take_included, Dropped: self._take_dropped}

    def _take_sent(self, record: Sent) -> None:
        gradient = record.tag in self._gradients
        if not record.whole or record.asks or self._is_reply(record.who, gradient):
            return
        if gradient and not self.me(record.who).samples:
            return  # a step that doesn't count
        for to in record.to:
            _add(self._due[record.who, to, record.tag], record.step, 1)

    def _is_reply(self, sender: int, gradient: bool) -> bool:
        """What servers send back is adopted, not merged."""
        return not gradient and self.participant(sender).worker is None

    def doubled(self, letter: Letter, to: int) -> None:
        gradient = letter.tag in self._gradients
        if is_counted(letter) and not self._is_reply(letter.sender, gradient) and letter.weight:
            self._due[letter.sender, to, letter.tag].update(letter.steps)

    def died(self, who: int) -> None:
        self._excused.add(who)

    def _take_included(self, record: Included) -> None:
        if record.sender == record.who:
            return  # written into memory that all of them share: there is no letter
        due = self._due[record.sender, record.who, record.tag]
        if due[record.step] < 1:
            raise self.violated(
                f"{self.name(record.who)} merged the update {record.tag!r} of {self.name(record.sender)} from its step "
                f"{record.step} once more than it was sent"
            )
        _add(due, record.step, -1)

    def _take_dropped(self, record: Dropped) -> None:
        """A letter that is lost at once is reported before it counts as sent."""
        if self._is_reply(record.sender, record.tag in self._gradients) or record.tag.startswith(OWN):
            return
        for step in record.steps:
            _add(self._due[record.sender, record.to, record.tag], step, -1)

    def finish(self) -> None:
        for (sender, to, tag), due in self._due.items():
            left = [step for step, count in due.items() if count > 0]
            if left and tag in self._complete and to not in self._excused:
                step = min(left)
                raise self.violated(
                    f"{self.name(to)} never merged the update {tag!r} of {self.name(sender)} from its step {step}, "
                    "and it wasn't reported as dropped either"
                )


def _add(due: Counter[int], step: int, count: int) -> None:
    due[step] += count
    if not due[step]:
        del due[step]
