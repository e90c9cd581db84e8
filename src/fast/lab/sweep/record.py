"""The folder of a sweep: every trial is written down as soon as it has ended.

The first line of trials.jsonl says what the sweep is, each of the others is a trial. A sweep that is
killed loses the trials that were under way, and goes on with the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, final

import msgspec

from fast.errors import FastError, UsageError
from fast.lab.journal import UNREADABLE, open_alone
from fast.lab.report.writing import write_whole
from fast.lab.sweep.points import Point
from fast.lab.sweep.wanted import Wanted
from fast.lab.tuning import Setting

TRIALS, RESULT, PICTURE = "trials.jsonl", "sweep.json", "trade-off.svg"


@final
class Record:
    """Made by `create` and `resume`. Use it in a `with` statement."""

    def __init__(self, path: Path, lines: IO[bytes], wanted: Wanted, known: Mapping[Setting, Point]) -> None:
        self.path, self.wanted, self.known = path, wanted, known
        self._lines = lines

    @staticmethod
    def create(path: Path, wanted: Wanted) -> Record:
        """A new one; an old one of the same name is not touched."""
        if path.exists():
            raise UsageError(
                f"{path} is there already. Go on with it by --resume {path}, or choose another --name."
            )
        try:
            path.mkdir(parents=True)
            record = Record(path, open_alone(path / TRIALS), wanted, {})
        except OSError as error:
            raise UsageError(
                f"{path} can't be made: {error.strerror}. Give another folder: --runs."
            ) from error
        record._write(wanted)
        return record

    @staticmethod
    def resume(path: Path) -> Record:
        """What its lines say. A last one without an end was being written when its process died."""
        if not (path / TRIALS).is_file():
            raise UsageError(f"{path} has no {TRIALS}, so there is no sweep to go on with")
        with _writing(path):
            lines = open_alone(path / TRIALS)
            lines.seek(0)
            written = lines.read()
            whole = written[: written.rfind(b"\n") + 1]
            lines.truncate(len(whole))
        first, *rest = whole.splitlines() or [b""]
        try:
            wanted = msgspec.json.decode(first, type=Wanted)
        except UNREADABLE as error:
            lines.close()
            raise UsageError(
                f"{path / TRIALS} doesn't begin like a sweep: {error}. Start the sweep anew."
            ) from error
        return Record(path, lines, wanted, dict(_known(rest)))

    def add(self, point: Point) -> None:
        self._write(point)

    def write(self, name: str, text: str) -> None:
        """A file beside the trials, as a whole or not at all."""
        with _writing(self.path / name):
            write_whole(self.path / name, text)

    def write_result(self, data: Mapping[str, Any]) -> None:
        self.write(RESULT, msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lines.close()

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: Wanted | Point) -> None:
        with _writing(self.path / TRIALS):
            self._lines.write(msgspec.json.encode(line) + b"\n")
            self._lines.flush()
            os.fsync(self._lines.fileno())


def _known(lines: list[bytes]) -> Iterator[tuple[Setting, Point]]:
    """What failed is tried again: the disk may have been full then. A line that a full disk has torn, before
    others went on, is passed over."""
    for line in lines:
        with contextlib.suppress(*UNREADABLE):
            point = msgspec.json.decode(line, type=Point)
            if point.error is None:
                yield point.setting, point


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = path if path.is_dir() else path.parent
        raise FastError(
            f"{path} can't be written: {error.strerror}. What was tried before is in {folder}; "
            f"mend it and go on with: fast sweep --resume {folder}"
        ) from error
