"""An inbox: a participant's mailbox and what its program waits for in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import final

from fast.core import Letter, Mailbox, Need, Tag
from fast.core.intake import Intake
from fast.sim.events import Events
from fast.sim.programs import Overtakable, Request
from fast.view import Layout


@final
class LetterWait(Request):
    """A wait for letters: `missing` are those who have neither written nor gone yet."""

    def __init__(self, tag: str, missing: Collection[int], need: Need) -> None:
        self.tag, self.need = tag, need
        self.missing = set(missing) if need is Need.ALL else missing
        """For anybody's letter: all of them as they were given, since a server may wait for thousands."""
        self.over = False

    def hear(self, peer: int, tag: str | None) -> bool:
        """Something about a peer: a letter with this tag, or (None) that it is gone. Is that all?"""
        if self.over or tag not in (None, self.tag):
            return False
        if isinstance(self.missing, set):
            self.missing.discard(peer)
            self.over = not self.missing
        else:
            self.over = tag is not None or peer in self.missing
        return self.over

    def whom(self) -> tuple[int, ...]:
        return tuple(sorted(self.missing))

    def is_hopeless(self, silent: Callable[[int], bool]) -> bool:
        enough = any if self.need is Need.ALL else all
        return bool(self.missing) and enough(silent(peer) for peer in self.missing)

    def describe(self) -> str:
        joint = ", " if self.need is Need.ALL else " or "
        return f"letter {self.tag!r} from {joint.join(map(str, sorted(self.missing))) or 'anybody'}"


@final
class NewsWait(Request):
    """A server between two turns, with nothing to do until something happens to it."""

    def describe(self) -> str:
        return "any news"


@final
class Inbox:
    """Where letters arrive. Tells the waiting program, through an event, when it has enough."""

    def __init__(self, events: Events, tags: Iterable[Tag]) -> None:
        known = {tag.name: tag for tag in tags}
        self.mailbox = Mailbox(known)
        self.layout_of: Callable[[int], Layout | None] = lambda sender: None
        """Of the flat tensors that a sender's letters hold."""
        self._intake = Intake(known, lambda sender: self.layout_of(sender))
        self.waiting: LetterWait | NewsWait | Overtakable | None = None
        self.noticing = False
        """Whether it matters who notices what, because reading takes time."""
        self.noticed: Counter[tuple[str, int]] = Counter()
        """By tag and sender, how many unread letters came while their reader waited for others: by the time that it has
        all, it has looked at these."""
        self._events = events

    def deliver(self, letter: Letter) -> None:
        plain = letter.part is None and letter.codec is None  # most are, and need nothing done to them
        whole = letter if plain else self._intake.take(letter)
        if whole is not None:
            self.mailbox.deliver(whole)
            if self.waiting is not None:
                self._hear(self.waiting, whole.sender, whole.tag)
                if self.noticing and isinstance(self.waiting, LetterWait) and not self.waiting.over:
                    self.noticed[whole.tag, whole.sender] += whole.letters

    def was_noticed(self, letter: Letter) -> bool:
        """Whether this one, which is being read, had been looked at before."""
        before = self.noticed.pop((letter.tag, letter.sender), 0)
        if before > letter.letters:
            self.noticed[letter.tag, letter.sender] = before - letter.letters
        return before >= letter.letters

    def hear_gone(self, peer: int) -> None:
        """`peer` has left and nothing of it is on its way here."""
        if self.waiting is not None:
            self._hear(self.waiting, peer, None)

    def misses(self, peer: int) -> bool:
        """Whether the program here would like to know that this peer is gone."""
        return isinstance(self.waiting, NewsWait) or (
            self.waiting is not None and not self.waiting.over and peer in self.waiting.missing
        )

    def _hear(self, waiting: LetterWait | NewsWait | Overtakable, peer: int, tag: str | None) -> None:
        match waiting:
            case NewsWait():
                self.waiting = None
                self._events.soon(waiting.resume)
            case LetterWait() if waiting.hear(peer, tag):
                self._events.soon(waiting.resume)
            case Overtakable() if tag == waiting.tag:
                self._events.soon(waiting.end)
