"""The folder of a comparison: what was measured is written down as it happens.

Every line of metrics.jsonl is complete as soon as it is written, so a comparison that is killed
loses nothing that it has measured, and goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from fast.errors import FastError, UsageError
from fast.lab.results import finite
from fast.lab.tracing import append_events

METRICS, RUN, TRACE = "metrics.jsonl", "run.json", "trace.json"
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that aren't what they should be: damaged, of another kind, or nested too deeply."""
DAMAGED = (
    *UNREADABLE, ArithmeticError, AttributeError, LookupError, TypeError, ValueError
)  # fmt: skip
"""What using values raises that are of another kind than those that were written."""


class Finished(msgspec.Struct):
    """A line of metrics.jsonl about something that came to its end."""

    key: str
    values: dict[str, Any]


class CantWrite(FastError):
    """The journal can't be kept any more: that ends a comparison, and is no strategy's fault."""


class Journal:
    """Remembers what was finished, and forgets it with the process."""

    def __init__(self) -> None:
        self.finished: dict[str, dict[str, Any]] = {}
        self.metrics: str | None = None
        """The file of its lines, if there is one; real workers append their ticks themselves."""

    def note(self, kind: str, **values: Any) -> None:
        """Something that was measured on the way."""

    def finish(self, kind: str, key: str, values: Mapping[str, Any]) -> None:
        """A trial or a run came to its end; `finished[key]` has it from now on."""
        self.finished[key] = dict(values)

    def trace(self, events: Iterable[dict[str, Any]]) -> None:
        """Events for the trace file."""

    def update(self, data: Mapping[str, Any]) -> None:
        """The comparison as it stands."""


class Folder(Journal):
    """A journal in files: `runs/<name>/`."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        super().__init__()
        self.path = path
        with _writing(path):
            self._lines = open_alone(path / METRICS)
        self.metrics = str((path / METRICS).absolute())
        if resume:
            try:
                self._take_up()
            except UsageError:
                self.close()
                raise

    @staticmethod
    def create(path: Path) -> Folder:
        """A new one; an old one of the same name is not touched."""
        if path.exists():
            raise UsageError(
                f"{path} is there already. Go on with it by --resume {path}, or choose another --name."
            )
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"{path} can't be made: {error.strerror}. Choose a folder that you can write to, with --runs."
            ) from error
        return Folder(path)

    @staticmethod
    def resume(path: Path) -> Folder:
        if not (path / METRICS).is_file():
            raise UsageError(f"{path} has no {METRICS}, so there is no comparison to go on with")
        return Folder(path, resume=True)

    def note(self, kind: str, **values: Any) -> None:
        self._write({"kind": kind, **values})

    def finish(self, kind: str, key: str, values: Mapping[str, Any]) -> None:
        self._write({"kind": kind, "key": key, "values": values})
        super().finish(kind, key, values)

    def trace(self, events: Iterable[dict[str, Any]]) -> None:
        with _writing(self.path / TRACE):
            append_events(self.path / TRACE, events)

    def update(self, data: Mapping[str, Any]) -> None:
        write_atomically(self.path / RUN, msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lines.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        with _writing(self.path / METRICS):
            self._lines.write(msgspec.json.encode(finite(line)) + b"\n")
            self._lines.flush()

    def _take_up(self) -> None:
        """What the lines say. A last one without an end was being written when its process died."""
        self._lines.seek(0)
        written = self._lines.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._lines.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            with contextlib.suppress(*UNREADABLE):  # torn by a full disk, before others went on
                self._know(msgspec.json.decode(line), number)

    def _know(self, entry: Any, number: int) -> None:
        if not isinstance(entry, dict) or "key" not in entry:
            return
        try:
            finished = msgspec.convert(entry, Finished)
        except msgspec.ValidationError as error:
            raise damaged_line(self.path / METRICS, f"line {number}", error) from error
        self.finished[finished.key] = finished.values


def damaged_line(file: Path | str, where: str, error: Exception) -> UsageError:
    """The answer to a line that can be read and says what it can't."""
    return UsageError(
        f"{file} is damaged, {where}: {error}. Remove that line; what it was about is then measured again."
    )


def open_alone(path: Path) -> IO[bytes]:
    """Open for appending, and nobody else's: two processes would mix their lines."""
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(
            f"{path.parent} is being written by another process. Wait for it, or choose another --name."
        ) from None
    return file


def write_atomically(path: Path, data: bytes) -> None:
    """Either the whole new file is there afterwards or the old one still is."""
    beside = path.with_name(f".{path.name}.new")
    with _writing(path):
        beside.write_bytes(data)
        os.replace(beside, path)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = path if path.is_dir() else path.parent
        raise CantWrite(
            f"{path} can't be written: {error.strerror}. What was measured before is in {folder}; "
            f"mend it and go on with: fast compare --resume {folder}"
        ) from error
