"""How a participant is forked: its own group, its own output, and nothing that belongs to the host."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from fast.engine.messages import Channel
from fast.engine.process import die_with_parent, name_process

Body = Callable[[int, Channel], NoReturn]


class Kept(NamedTuple):
    """What the host has of its own, and a participant must not have."""

    usual: dict[signal.Signals, Any]
    """What signals did before the host began to handle them."""
    close: Callable[[], None]
    """Closes the host's descriptors."""


class Forked(NamedTuple):
    """The host's ends."""

    pid: int
    channel: Channel
    readers: dict[int, int]
    """Where its output comes from, by the number of the stream."""


@dataclass
class _Side:
    """One process's ends of a socket and two pipes."""

    socket: socket.socket
    pipes: dict[int, int] = field(default_factory=dict)

    def close(self) -> None:
        self.socket.close()
        for descriptor in self.pipes.values():
            os.close(descriptor)


def fork(id: int, name: str, body: Body, kept: Kept) -> Forked:
    """Start a process that runs `body`. Raises OSError where the system has no room for it."""
    parent = os.getpid()
    ours, theirs = (_Side(end) for end in socket.socketpair())
    try:
        for stream in (1, 2):
            ours.pipes[stream], theirs.pipes[stream] = os.pipe()
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _become(parent, ours, theirs, kept, lambda: _live(id, name, body, theirs.socket))
    theirs.close()
    return Forked(pid, Channel(ours.socket), ours.pipes)


def _become(parent: int, ours: _Side, theirs: _Side, kept: Kept, body: Callable[[], object]) -> NoReturn:
    """In the child, which never comes back into the host's own code."""
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for number, usual in kept.usual.items():
            signal.signal(number, usual)
        for stream, writer in theirs.pipes.items():
            os.dup2(writer, stream)
            os.close(writer)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        ours.close()
        kept.close()
        sys.stdout, sys.stderr = _stream(1), _stream(2)
        body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _live(id: int, name: str, body: Body, end: socket.socket) -> NoReturn:
    name_process(f"fast {name}")
    body(id, Channel(end))


def _stream(number: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", "replace", line_buffering=True)
