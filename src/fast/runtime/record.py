"""A record of a run: a folder with `run.json` and one file of frames per participant.

    frame:  length of the payload (4 bytes)  its CRC-32 (4 bytes)  payload: msgpack, a list of answers

Frames are only ever appended, each with one call of the system, so a process that is killed leaves
whole frames behind. Whatever else is found at the end of a file (half a frame, a wrong checksum)
is where the record ends.
"""

from __future__ import annotations

import os
import platform
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, final

import msgspec
import torch

from fast.errors import FastError, UsageError
from fast.runtime.answers import Answer, AnyAnswer, Ended, Opened, Raised
from fast.view import Groups

SCHEMA = 1
FRAME_LIMIT_BYTES = 1 << 28
CANT_RECORD = "the record can't be written"
_MOST_THREADS = 1 << 16
"""Of a worker; torch would refuse much larger numbers in the middle of a replay."""
_HEADER = "run.json"
_PREFIX = struct.Struct("<II")


class Header(msgspec.Struct, kw_only=True):
    """run.json: all that is needed to start the same run again."""

    kind: str = "fast record"
    schema: int = SCHEMA
    script: str | None = None
    """As it was given; None where a function was run instead."""
    script_digest: str | None = None
    entry: str
    arguments: dict[str, Any]
    server_entry: str
    server_arguments: dict[str, Any]
    strategy: str | None = None
    """What --strategy asked for, if anything."""
    workers: int
    counts: list[int] = []
    """The number of workers of each host, if there were several."""
    seed: int | None
    deadline_s: float
    threads: int
    folder: str
    groups: Groups = ()
    """In which order sums were made."""
    processor: str = ""
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class Part:
    """What one participant has written."""

    opened: Opened
    answers: list[Answer]
    damaged: str = ""
    """Where and why reading stopped before the end of the file."""

    @property
    def complete(self) -> bool:
        """Whether it tells how its participant ended; else that was ended by others."""
        return bool(self.answers) and isinstance(self.answers[-1], Ended | Raised)


@dataclass(frozen=True)
class Recorded:
    """A whole record."""

    folder: Path
    header: Header
    parts: Mapping[int, Part]

    def name_of(self, id: int) -> str:
        workers = self.header.workers
        return f"worker {id}" if id < workers else f"server {id - workers}"


# Writing


def check_free(folder: Path) -> None:
    """Nothing is overwritten: a record is made in a new folder, or in an empty one."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"--record {folder}: there is something already, and a record never overwrites anything. "
            "Choose another name, or remove it first."
        )


def create_record(folder: Path, header: Header, *, shared: bool = False) -> None:
    """Make the folder, with its header. If hosts share the folder, each of them writes the same one."""
    if not shared:
        check_free(folder)
    header.processor, header.versions = processor(), versions()
    if header.script is not None:
        header.script_digest = script_digest(Path(header.folder) / header.script)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _HEADER).write_bytes(msgspec.json.format(msgspec.json.encode(header), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"--record {folder}: can't write there: {error.strerror}") from error


@final
class FrameFile:
    """One participant's file. Made in the process that writes it."""

    def __init__(self, folder: Path, id: int) -> None:
        self._path, self._encoder = _file(folder, id), msgspec.msgpack.Encoder()
        with self._translated():
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def append(self, answers: list[Answer]) -> None:
        payload = self._encoder.encode(answers)
        rest = _PREFIX.pack(len(payload), zlib.crc32(payload)) + payload
        with self._translated():
            while rest:  # a disk that is nearly full may take a part of it
                rest = rest[os.write(self._fd, rest) :]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FastError(f"{CANT_RECORD} to {self._path}: {error.strerror}") from error


# Reading


def load_record(folder: Path) -> Recorded:
    """A record as far as it can be read; UsageError if there is none."""
    header = _load_header(folder)
    ids = sorted(int(path.stem) for path in folder.glob("*.frames") if path.stem.isdecimal())
    parts = {id: load_part(_file(folder, id), id) for id in ids}
    missing = next((worker for worker in range(header.workers) if worker not in parts), None)
    if missing is not None:
        raise UsageError(
            f"{folder} has no file of worker {missing}: the run was ended before it began, or the file was "
            "removed. There is nothing to replay."
        )
    return Recorded(folder, header, parts)


def _load_header(folder: Path) -> Header:
    try:
        data = msgspec.json.decode((folder / _HEADER).read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{folder} is not a record: {_HEADER} in it can't be read ({_why(error)})"
        ) from error
    if not isinstance(data, dict) or data.get("kind") != "fast record":
        raise UsageError(
            f"{folder} is not a record of `fast run --record`: its {_HEADER} is of something else"
        )
    _check_schema(folder, data.get("schema"))
    try:
        header = msgspec.convert(data, Header)
    except msgspec.ValidationError as error:
        raise UsageError(f"{folder / _HEADER} is damaged: {error}") from error
    if header.workers < 1 or not 1 <= header.threads <= _MOST_THREADS:
        raise UsageError(f"{folder / _HEADER} is damaged: {header.workers} workers, {header.threads} threads")
    return header


def _check_schema(where: Path, schema: object) -> None:
    if not isinstance(schema, int) or schema < 1:
        raise UsageError(f"{where} is not a record: it has no format number")
    if schema > SCHEMA:
        raise UsageError(
            f"{where} has format {schema}, and this version of FAST reads up to {SCHEMA}. "
            "It was made by a newer version: replay it with that."
        )


def load_part(path: Path, id: int) -> Part:
    """One participant's file, up to its end or to the first frame that is not whole."""
    answers, damaged = _read_frames(path)
    if not answers or not isinstance(answers[0], Opened):
        raise UsageError(f"{path} can't be replayed: {damaged or 'it does not begin as a record does'}")
    opened = answers[0]
    _check_schema(path, opened.schema)
    if opened.id != id:
        raise UsageError(f"{path} is of participant {opened.id}; was it renamed?")
    return Part(opened, answers[1:], damaged)


def _read_frames(path: Path) -> tuple[list[Answer], str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        return [], _why(error)
    decoder = msgspec.msgpack.Decoder(list[AnyAnswer])
    answers: list[Answer] = []
    at = 0
    while at < len(data):
        if at + _PREFIX.size > len(data):
            return answers, f"its last frame is cut off, at byte {at}"
        length, checksum = _PREFIX.unpack_from(data, at)
        payload = data[at + _PREFIX.size : at + _PREFIX.size + length]
        if length > FRAME_LIMIT_BYTES or len(payload) < length:
            return answers, f"its frame at byte {at} is cut off"
        if zlib.crc32(payload) != checksum:
            return answers, f"its frame at byte {at} is damaged"
        try:
            answers += decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return answers, f"its frame at byte {at} says what no record says"
        at += _PREFIX.size + length
    return answers, "" if answers else "it is empty"


def _file(folder: Path, id: int) -> Path:
    return folder / f"{id}.frames"


def _why(error: Exception) -> str:
    return str(error.strerror) if isinstance(error, OSError) else str(error)


# Where it was made


def processor() -> str:
    """The type of the processor, on which the bits of a product may depend."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": str(torch.__version__)}


def script_digest(path: Path) -> str | None:
    """Of a script's text, so that a replay notices when it was changed; None if it isn't there."""
    try:
        return blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None
