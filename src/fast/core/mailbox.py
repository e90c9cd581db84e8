"""Where letters wait for their reader: bounded, folded per sender, in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fast.core.letter import Letter, Tag
from fast.errors import MailboxFull


class Mailbox:
    """Waiting letters, by tag and sender.

    A tag with a fold keeps one letter per sender, whatever arrives; a tag without keeps them all,
    up to its capacity. So memory is bounded by (tags x peers), never by time.
    """

    def __init__(self, tags: Mapping[str, Tag]) -> None:
        self._tags = tags
        self._waiting: dict[str, dict[int, list[Letter]]] = {}

    def deliver(self, letter: Letter) -> Sequence[Letter]:
        """Take a letter in. Returns those that folding has used up, whose memory isn't needed now."""
        tag = self._tags.get(letter.tag) or Tag(letter.tag)
        waiting = self._waiting.setdefault(letter.tag, {}).setdefault(letter.sender, [])
        if waiting and tag.fold is not None:
            folded = _owned(tag.fold(waiting[0], letter), waiting[0], letter)
            used = [old for old in (waiting[0], letter) if old is not folded]
            waiting[0] = folded
            return used
        if len(waiting) >= tag.capacity:
            raise MailboxFull(
                f"{len(waiting)} letters with tag {letter.tag!r} from peer {letter.sender} wait unread. "
                "Read them, or declare in the strategy's `tags` how they fold (fold_sum, fold_newest "
                "or a function of two letters).",
                peers=(letter.sender,),
            )
        waiting.append(letter)
        return ()

    def has(self, tag: str, sender: int) -> bool:
        return bool(self._waiting.get(tag, {}).get(sender))

    def has_any(self, tag: str) -> bool:
        return any(self._waiting.get(tag, {}).values())

    def take(self, tag: str, senders: Collection[int] | None = None) -> list[Letter]:
        """Everything that waits under this tag, ordered by sender and then by arrival."""
        waiting = self._waiting.get(tag)
        if not waiting:
            return []
        chosen = sorted(waiting) if senders is None else sorted(s for s in senders if s in waiting)
        return [letter for sender in chosen for letter in waiting.pop(sender)]

    def take_one(self, tag: str, sender: int) -> Letter | None:
        """The oldest letter of one sender."""
        waiting = self._waiting.get(tag, {}).get(sender)
        return waiting.pop(0) if waiting else None

    def letters(self) -> list[Letter]:
        """All that waits, for checkpoints and checkers."""
        return [x for senders in self._waiting.values() for waiting in senders.values() for x in waiting]

    def __len__(self) -> int:
        return sum(len(waiting) for senders in self._waiting.values() for waiting in senders.values())


def _owned(folded: Letter, *used: Letter) -> Letter:
    """A folded letter must not read memory of those that it was made of: that is given back."""
    memory = folded.tensor.untyped_storage().data_ptr()
    for old in used:
        if folded is not old and not old.private and old.tensor.untyped_storage().data_ptr() == memory:
            return replace(folded, tensor=folded.tensor.clone(), private=True)
    return folded
