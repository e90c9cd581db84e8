"""What a sender holds back while a receiver has no room, folded as its tags say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

from fast.core import Letter, Mailbox, Tag
from fast.core.intake import Intake
from fast.view import Layout

FOLDING_LIMIT = 2
"""Letters of a folding tag that may wait at a peer; what comes after folds before it is sent."""


@final
class Outbox:
    """Of one receiver. Letters of one tag keep their order; those that fold wait as one.

    A letter in pieces whose first have already gone can't fold any more: the rest of its pieces
    goes after them, one by one. One of which nothing has gone is put together here and folds.
    """

    def __init__(self, tags: Mapping[str, Tag], layout: Callable[[], Layout | None]) -> None:
        self._tags = tags
        self._folded = Mailbox(tags)
        self._intake = Intake(tags, lambda sender: layout())
        self._rests: dict[str, list[Letter]] = {}
        """Pieces of letters that are half on their way."""
        self._gathering: set[str] = set()
        """Tags of letters of which some pieces wait here and the others are still to come."""

    def holds(self, tag: str) -> bool:
        """Whether a letter with this tag must wait behind others."""
        return bool(self._rests.get(tag)) or tag in self._gathering or self._folded.has_any(tag)

    def put(self, letter: Letter) -> None:
        """Hold this one back; its values count as of now."""
        own = replace(letter, tensor=letter.tensor.clone(), private=True)
        if letter.part is not None and self._is_rest(letter):
            self._rests.setdefault(letter.tag, []).append(own)
            return
        whole = self._intake.take(own)
        if whole is None:
            self._gathering.add(letter.tag)
            return
        self._gathering.discard(letter.tag)
        self._folded.deliver(whole)

    def _is_rest(self, letter: Letter) -> bool:
        """Whether earlier pieces of this letter have gone: backward goes from the end to the start."""
        assert letter.part is not None
        _, stop, total = letter.part
        return stop < total and letter.tag not in self._gathering

    def flush(self, post: Callable[[Letter], bool]) -> None:
        """Send as much as `post` takes; it says whether it took a letter."""
        full: set[str] = set()
        for tag, pieces in self._rests.items():
            while pieces and post(pieces[0]):
                pieces.pop(0)
            if pieces:
                full.add(tag)
        waiting, self._folded = self._folded.letters(), Mailbox(self._tags)
        for letter in waiting:
            if letter.tag in full or not post(letter):
                full.add(letter.tag)  # what comes after it under this tag stays behind it
                self._folded.deliver(letter)

    def letters(self) -> list[Letter]:
        """All that waits."""
        return [*self._folded.letters(), *(piece for pieces in self._rests.values() for piece in pieces)]

    def drop(self) -> list[Letter]:
        """Give up all that waits."""
        dropped = self.letters()
        self._folded, self._rests = Mailbox(self._tags), {}
        self._gathering.clear()
        return dropped

    def __len__(self) -> int:
        return len(self._folded) + sum(map(len, self._rests.values()))
