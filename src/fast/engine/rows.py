"""A participant's output as lines, and as rows that still change: progress bars.

A progress bar writes its row again and again behind a carriage return; nested bars move up and down between theirs.
So the last rows of a stream are kept as a terminal would show them. A row is finished when something plain was
written below it, or when `settle` finds that the writer has gone on to another row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

LINE_BYTES = 1 << 16
"""Maximum length of a line. A longer one comes in pieces."""
_MOST_ROWS = 16
_MARKS = re.compile(rb"(\r|\n|\x1b\[\d{0,3}A)")
_UNFINISHED_MARK = re.compile(rb"\x1b(\[\d{0,3})?\Z")


@dataclass
class _Row:
    """One row of the terminal."""

    text: bytearray = field(default_factory=bytearray)
    bar: bool = False
    """Whether its text was written over an earlier one."""
    returned: bool = False
    """Whether the next text begins at its start."""

    def write(self, text: bytes) -> None:
        if self.returned:
            self.bar = not self._cleared()
            self.text, self.returned = bytearray(), False
        self.text += text

    def carriage_return(self) -> None:
        if self.returned:  # twice: a bar that was cleared is followed by the next bar
            self.text = bytearray()
        self.returned = True

    def _cleared(self) -> bool:
        """Whether a bar was wiped out with blanks, to write something else there."""
        return bool(self.text) and not self.text.strip()

    @property
    def shown(self) -> str:
        return self.text.decode(errors="replace")


@final
class Rows:
    """`take` gets every finished line, and whether it is what a progress bar left behind."""

    def __init__(self, take: Callable[[str, bool], None]) -> None:
        self._take = take
        self._rows, self._at = [_Row()], 0
        self._held = b""
        """The beginning of a movement whose end has not arrived."""

    def feed(self, data: bytes) -> None:
        data = self._held + data
        unfinished = _UNFINISHED_MARK.search(data)
        self._held = unfinished.group() if unfinished else b""
        pieces = _MARKS.split(data[: len(data) - len(self._held)])
        for number, piece in enumerate(pieces):
            if number % 2:
                self._move(piece)
            elif piece:
                self._rows[self._at].write(piece)
                self._cut()

    def _move(self, mark: bytes) -> None:
        if mark == b"\n":
            self._newline()
        elif mark == b"\r":
            self._rows[self._at].carriage_return()
        else:
            self._at = max(0, self._at - int(mark[2:-1] or 1))

    def bars(self) -> list[str]:
        """The rows that still change, from top to bottom."""
        return [row.shown for row in self._rows if row.bar and row.text.strip()]

    def settle(self) -> None:
        """Some time has passed, and whatever goes back up to a row would have done so: what is above is finished."""
        self._finish(self._at)

    def end(self) -> None:
        if self._held:
            self._rows[self._at].write(self._held)
        if self._rows[-1].text:
            self._rows.append(_Row())
        self._finish(len(self._rows) - 1)

    def _newline(self) -> None:
        row = self._rows[self._at]
        self._at += 1
        if self._at == len(self._rows):
            self._rows.append(_Row())
        self._rows[self._at].returned = bool(self._rows[self._at].text)
        if not row.bar:
            self._finish(self._at)
        elif len(self._rows) > _MOST_ROWS:
            self._finish(1)

    def _cut(self) -> None:
        text = self._rows[self._at].text
        if len(text) > LINE_BYTES:
            self._finish(self._at)
        while len(text) > LINE_BYTES:
            end = LINE_BYTES
            while end > LINE_BYTES - 4 and text[end] & 0xC0 == 0x80:  # in the middle of a letter
                end -= 1
            self._take(text[:end].decode(errors="replace"), False)
            del text[:end]

    def _finish(self, count: int) -> None:
        """The first rows don't change any more."""
        done, self._rows = self._rows[:count], self._rows[count:] or [_Row()]
        self._at = max(0, self._at - count)
        for row in done:
            if not row.bar:
                self._take(row.shown, False)
            elif row.text.strip():
                self._take(row.shown, True)
