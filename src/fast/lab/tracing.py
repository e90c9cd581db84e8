"""Excerpts as a small timeline for the report, and as a trace for a viewer.

The trace is in the Chrome trace event format, in its form as one array: one process per training,
one track per participant, an arrow from where a letter is sent to where it is read.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fast.errors import UsageError
from fast.lab.recording import (
    COMPUTE,
    RECORD_LIMIT,
    Excerpt,
    Recorder,
    Slice,
    records_for,
)

__all__ = [
    "RECORD_LIMIT",
    "Excerpt",
    "Recorder",
    "append_events",
    "records_for",
    "timeline_of",
    "trace_events",
]

TIMELINE_STEPS = 40
_TIMELINE_SLICES = 4_000
_FLOWS_PER_PROCESS = 1_000_000_000
_TRACKS_FROM = 1_000
_TRAILER = b"\n]\n"

Event = dict[str, Any]


# The timeline


def timeline_of(excerpts: Sequence[Excerpt], began_ns: int, limit: int = TIMELINE_STEPS) -> dict[str, Any]:
    """The first `limit` steps of everybody, in seconds since `began_ns`; fewer where there are many
    participants. It ends where the first of them has done that many, so that nobody's is longer."""
    drawn = _until(excerpts, _horizon_ns(excerpts, limit), began_ns)
    while limit > 1 and sum(map(len, drawn)) > _TIMELINE_SLICES:
        limit //= 2
        drawn = _until(excerpts, _horizon_ns(excerpts, limit), began_ns)
    if sum(map(len, drawn)) > _TIMELINE_SLICES:  # steps that take no time don't end
        drawn = [pieces[: _TIMELINE_SLICES // len(drawn)] for pieces in drawn]
    return {
        "participants": [
            {"name": excerpt.name, "slices": [_in_seconds(piece, began_ns) for piece in pieces]}
            for excerpt, pieces in zip(excerpts, drawn, strict=True)
        ]
    }


def _horizon_ns(excerpts: Iterable[Excerpt], steps: int) -> float:
    """Where the first participant has done so many steps, or where its records end before that."""
    horizon: float = math.inf
    for excerpt in excerpts:
        starts = [piece.start_ns for piece in excerpt.slices if piece.kind == COMPUTE]
        if len(starts) > steps:
            horizon = min(horizon, starts[steps])
        if excerpt.stopped_ns is not None:
            horizon = min(horizon, excerpt.slices[-1].end_ns if excerpt.slices else excerpt.stopped_ns)
    return horizon


def _until(excerpts: Iterable[Excerpt], horizon_ns: float, began_ns: int) -> list[list[Slice]]:
    return [_joined(_clipped(excerpt.slices, began_ns, horizon_ns)) for excerpt in excerpts]


def _clipped(slices: Iterable[Slice], from_ns: int, to_ns: float) -> Iterator[Slice]:
    for piece in slices:
        start_ns, end_ns = max(piece.start_ns, from_ns), int(min(piece.end_ns, to_ns))
        if end_ns > start_ns:
            yield Slice(piece.kind, start_ns, end_ns - start_ns)


def _joined(slices: Iterable[Slice]) -> list[Slice]:
    """Neighbours of one kind as one."""
    joined: list[Slice] = []
    for piece in slices:
        last = joined[-1] if joined else None
        if last is not None and last.kind == piece.kind and last.end_ns == piece.start_ns:
            joined[-1] = Slice(last.kind, last.start_ns, last.duration_ns + piece.duration_ns)
        else:
            joined.append(piece)
    return joined


def _in_seconds(piece: Slice, began_ns: int) -> list[Any]:
    return [piece.kind, (piece.start_ns - began_ns) / 1e9, piece.duration_ns / 1e9]


# The trace


def trace_events(process: int, label: str, excerpts: Sequence[Excerpt], began_ns: int) -> Iterator[Event]:
    """One training as trace events; `process` is its number in the file, `label` its name there.

    Viewers give an arrow to the slice that was begun last on its track. So both ends of an arrow
    have the time at which their slice begins, and follow it in the file.
    """
    process += 1  # viewers keep process 0 for the idle machine
    yield _metadata(process, "process_name", name=label)
    yield _metadata(process, "process_sort_index", sort_index=process)
    for excerpt in excerpts:
        yield _metadata(process, "thread_name", excerpt.who, name=excerpt.name)
        yield _metadata(process, "thread_sort_index", excerpt.who, sort_index=excerpt.who)
    ends = _arrows(process, excerpts)
    for excerpt in excerpts:
        for place, piece in enumerate(excerpt.slices):
            yield _complete(process, excerpt.who, piece, began_ns)
            for flow, letter, is_read in ends.get((excerpt.who, place), ()):
                yield _end_of_arrow(process, excerpt.who, piece, began_ns, flow, letter, is_read=is_read)


def _arrows(process: int, excerpts: Sequence[Excerpt]) -> dict[tuple[int, int], list[tuple[int, str, bool]]]:
    """By participant and slice: the arrows that begin or end there, for letters that were both sent
    and read within the excerpts. Letters that look alike were read in the order of sending."""
    waiting: dict[tuple[int, int, str, int], deque[int]] = defaultdict(deque)
    for excerpt in excerpts:
        for sent in excerpt.sent:
            for receiver in sent.to:
                waiting[excerpt.who, receiver, sent.tag, sent.step].append(sent.place)
    ends: dict[tuple[int, int], list[tuple[int, str, bool]]] = defaultdict(list)
    flow = process * _FLOWS_PER_PROCESS
    for excerpt in excerpts:
        for read in excerpt.read:
            for step in read.steps:
                places = waiting[read.sender, excerpt.who, read.tag, step]
                if places:
                    flow += 1
                    ends[read.sender, places.popleft()].append((flow, read.tag, False))
                    ends[excerpt.who, read.place].append((flow, read.tag, True))
    return ends


def _track(who: int) -> int:
    """A number that no process has: that one's track would be put before the others."""
    return _TRACKS_FROM + who


def _metadata(process: int, what: str, who: int | None = None, **args: Any) -> Event:
    event: Event = {"ph": "M", "pid": process, "name": what, "args": args}
    return event if who is None else {**event, "tid": _track(who)}


def _complete(process: int, who: int, piece: Slice, began_ns: int) -> Event:
    start_ns, end_ns = max(0, piece.start_ns - began_ns), max(0, piece.end_ns - began_ns)
    event: Event = {
        "ph": "X",
        "pid": process,
        "tid": _track(who),
        "ts": start_ns / 1e3,
        "dur": (end_ns - start_ns) / 1e3,
        "name": piece.kind,
        "cat": piece.kind,
    }
    return {**event, "args": {"what": piece.note}} if piece.note else event


def _end_of_arrow(
    process: int, who: int, piece: Slice, began_ns: int, flow: int, letter: str, *, is_read: bool
) -> Event:
    event: Event = {
        "ph": "f" if is_read else "s",
        "pid": process,
        "tid": _track(who),
        "ts": max(0, piece.start_ns - began_ns) / 1e3,
        "id": flow,
        "name": letter,
        "cat": "letter",
    }
    return {**event, "bp": "e"} if is_read else event


# The file


def append_events(path: Path, events: Iterable[Event]) -> None:
    """Add events to a trace file, or begin one. After each call it is valid JSON.

    A run that is killed in between leaves an array without its closing bracket, which viewers
    read; and the next call mends it.
    """
    encoder = msgspec.json.Encoder()
    with path.open("r+b" if path.exists() else "w+b") as file:
        is_first = _reopen(file, path)
        for event in events:
            file.write((b"\n" if is_first else b",\n") + encoder.encode(event))
            is_first = False
        file.write(_TRAILER)
        file.flush()
        os.fsync(file.fileno())


def _reopen(file: BinaryIO, path: Path) -> bool:
    """Stand behind the last whole event. Returns whether there is none yet."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        file.write(b"[")
        return True
    file.seek(0)
    if file.read(1) != b"[":
        raise UsageError(
            f"{path} is no trace: it doesn't begin with '['. Give another name, or move it away."
        )
    end = _end_of_events(file, size)
    file.seek(end)
    file.truncate()
    return end == 1


def _end_of_events(file: BinaryIO, size: int) -> int:
    """Where the last whole event ends: before the closing bracket, or before a line cut short."""
    file.seek(max(0, size - len(_TRAILER)))
    if file.read() == _TRAILER:
        return size - len(_TRAILER)
    file.seek(0)
    whole = file.read()
    before, _, line = whole.rpartition(b"\n")
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return max(1, len(before.rstrip(b",\n")))
    return size
