"""Who takes part in a round.

Somebody who leaves has sent either all its letters of a round or none. So whoever waits for each
other member's first letter or for its departure comes to the same list as all others. Where
everybody's first letters bring values anyway, that is all; else an empty letter goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import torch

from fast.collectives.mail import Entry, Mail
from fast.core.letter import Letter, union
from fast.errors import UsageError


@dataclass(frozen=True)
class Company:
    """Who takes part, ascending, and what each has said with its first letter."""

    members: tuple[int, ...]
    entries: tuple[Entry, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(entry.weight for entry in self.entries)

    @property
    def present(self) -> int | None:
        return reduce(union, (entry.present for entry in self.entries))

    def others(self, than: int) -> tuple[int, ...]:
        return others(self.members, than)


def others(members: tuple[int, ...], than: int) -> tuple[int, ...]:
    """All members but one, beginning with the one after it: if everybody wrote to the same member first, its
    link would be crowded and those of the rest idle.

    >>> others((0, 2, 5, 7), 2)
    (5, 7, 0)
    """
    at = members.index(than)
    return members[at + 1 :] + members[:at]


async def agree(mail: Mail, among: tuple[int, ...], entry: Entry) -> Company:
    """Tell all others that this member is there, and hear who of them is."""
    mail.send(others(among, mail.id), torch.empty(0, dtype=torch.uint8), entry)
    return company_of(mail, among, entry, await mail.collect(others(among, mail.id)))


def company_of(mail: Mail, among: tuple[int, ...], entry: Entry, letters: Mapping[int, Letter]) -> Company:
    """Those of whom a first letter has come, and this member itself."""
    here = tuple(peer for peer in among if peer == mail.id or peer in letters)
    entries = [entry if peer == mail.id else _entry(letters[peer]) for peer in here]
    for peer, other in zip(here, entries, strict=True):
        if other.what != entry.what:
            raise UsageError(
                f"participant {mail.id} takes part in a round ({entry.what}), and {peer} in another one "
                f"({other.what}). All members ask for the same, with tensors of one size and dtype."
            )
    return Company(here, tuple(entries))


def _entry(letter: Letter) -> Entry:
    note = letter.note
    return Entry(
        str(note.get("round")), letter.weight, letter.present, tuple(int(n) for n in note.get("sizes", ()))
    )
