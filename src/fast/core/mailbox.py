"""Where letters wait for their reader: bounded, folded per sender, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse

from fast.core.letter import Letter, Tag
from fast.errors import MailboxFull
from fast.wire import STEPS_LIMIT

OWN = "fast."
"""How the tags of collectives begin. They declare none, and take what they sent themselves."""
OWN_CAPACITY = 4096


def declared(tags: Mapping[str, Tag], name: str) -> Tag:
    """The tag of this name, or what holds for one that nobody has declared."""
    tag = tags.get(name)
    if tag is not None:
        return tag
    return Tag(name, capacity=OWN_CAPACITY) if name.startswith(OWN) else Tag(name)


class Mailbox:
    """Waiting letters, by tag and sender.

    A tag with a fold keeps one letter per sender, whatever arrives (a second one where more updates
    would come together than a header may count); a tag without keeps them all, up to its capacity.
    So memory is bounded by (tags x peers), never by time. What has been read leaves nothing behind.
    """

    def __init__(self, tags: Mapping[str, Tag]) -> None:
        self._tags = tags
        self._waiting: dict[str, dict[int, list[Letter]]] = {}

    def deliver(self, letter: Letter) -> Sequence[Letter]:
        """Take a letter in. Returns those that folding has used up, whose memory isn't needed now."""
        senders = self._waiting.get(letter.tag)
        if senders is None:
            senders = self._waiting[letter.tag] = {}
        waiting = senders.get(letter.sender)
        if not waiting:
            senders[letter.sender] = [letter]
            return ()
        tag = declared(self._tags, letter.tag)
        if tag.fold is not None and waiting[-1].count + letter.count <= STEPS_LIMIT:
            older = waiting[-1]
            letters = older.letters + letter.letters
            waiting[-1] = folded = _owned(tag.fold(older, letter), older, letter)
            folded.letters = letters
            return [old for old in (older, letter) if old is not folded]
        if tag.fold is None and len(waiting) >= tag.capacity:
            raise MailboxFull(
                f"{len(waiting)} letters with tag {letter.tag!r} from peer {letter.sender} wait unread. "
                "Read them, or declare in the strategy's `tags` how they fold (fold_sum, fold_newest "
                "or a function of two letters).",
                peers=(letter.sender,),
            )
        waiting.append(letter)
        return ()

    def has(self, tag: str, sender: int) -> bool:
        return sender in self._waiting.get(tag, ())

    def lacks(self, tag: str, senders: Iterable[int]) -> tuple[int, ...]:
        """Those of these senders from whom nothing waits."""
        waiting = self._waiting.get(tag)
        return tuple(senders) if waiting is None else tuple(filterfalse(waiting.__contains__, senders))

    def has_any(self, tag: str) -> bool:
        return tag in self._waiting

    def take(self, tag: str, senders: Collection[int] | None = None) -> list[Letter]:
        """Everything that waits under this tag, ordered by sender and then by arrival."""
        waiting = self._waiting.get(tag)
        if waiting is None:
            return []
        chosen = sorted(waiting) if senders is None else sorted(s for s in senders if s in waiting)
        taken = [letter for sender in chosen for letter in waiting.pop(sender)]
        if not waiting:
            del self._waiting[tag]
        return taken

    def take_one(self, tag: str, sender: int) -> Letter | None:
        """The oldest letter of one sender."""
        senders = self._waiting.get(tag)
        if senders is None or sender not in senders:
            return None
        waiting = senders[sender]
        letter = waiting.pop(0)
        if not waiting:
            del senders[sender]
            if not senders:
                del self._waiting[tag]
        return letter

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
