"""What the engine, its host process and the participants tell each other: one JSON object a line."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import msgspec

from fast.engine.limits import SPARE_PARTICIPANTS
from fast.view import Groups

_CHUNK_BYTES = 1 << 16


class Part(msgspec.Struct):
    """What one host has to know of a run on several."""

    number: int
    """The host's."""
    hosts: list[str]
    counts: list[int]
    """The number of workers of each host. They are numbered host by host."""
    coordinator: str
    listen_at: str = ""
    """The address of this host that the others can reach, if the user names it."""
    secret: str | None = None
    """None: nothing between hosts is encrypted."""

    def __repr__(self) -> str:
        return f"Part(number={self.number}, hosts={self.hosts}, counts={self.counts})"

    def workers_of(self, host: int) -> range:
        first = sum(self.counts[:host])
        return range(first, first + self.counts[host])

    def name_of(self, worker: int) -> str:
        """The host of a worker."""
        return next(name for host, name in enumerate(self.hosts) if worker in self.workers_of(host))


class Job(msgspec.Struct):
    """A run: the same function on every worker, found by name and called with plain data."""

    workers: int
    entry: str
    """"module:function" for the workers; called with `arguments`."""
    server_entry: str
    """"module:function" for servers; called with (strategy's canonical call, its number) and
    `server_arguments`."""
    arguments: dict[str, Any] = {}
    server_arguments: dict[str, Any] = {}
    strategy: str | None = None
    seed: int | None = None
    deadline_s: float = 60.0
    threads: int = 1
    preload: list[str] = []
    """Modules that the host imports once, before it forks."""
    folder: str | None = None
    groups: Groups = ()
    """In which order sums are made; () for one group of all workers."""
    record: str | None = None
    """A new folder in which everybody writes down what its world answers."""
    log: str | None = None
    """The run's folder, in which every participant keeps its logbook."""
    part: Part | None = None
    """This host's, of a run on several."""

    @property
    def here(self) -> range:
        """The workers that run on this host."""
        return range(self.workers) if self.part is None else self.part.workers_of(self.part.number)

    @property
    def size(self) -> int:
        """The number of participants that the run has room for. The last ones watch, one per host."""
        watching = 0 if self.part is None else len(self.part.hosts)
        return self.workers * 2 + SPARE_PARTICIPANTS + watching


class Failure(msgspec.Struct):
    """Why a run ended before its time."""

    who: str
    message: str
    traceback: str = ""
    usage: bool = False
    """Whether the call was wrong (exit code 2), rather than the run."""
    elsewhere: bool = False
    """Whether another participant has said so first, and to all."""


class Outcome(msgspec.Struct):
    """How a run ended. `results` has what each worker's function returned, `server_results` each server's."""

    results: list[Any] = []
    failure: Failure | None = None
    server_results: list[Any] = []


class Channel:
    """One end of a socket over which messages go as lines of JSON."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._parts: list[bytes] = []
        """The beginning of a message whose end has not arrived."""
        self._queue = bytearray()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Blocks until the other end has taken it; a closed end is nobody's business here."""
        try:
            self._end.sendall(_encode(message))
        except (BrokenPipeError, ConnectionResetError):
            return

    def queue(self, message: dict[str, Any]) -> None:
        """Send it without waiting: what the other end doesn't take now goes with the next `flush`."""
        self._queue += _encode(message)
        self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the other end takes now."""
        try:
            while self._queue:
                sent = self._end.send(self._queue[:_CHUNK_BYTES], socket.MSG_DONTWAIT)
                del self._queue[:sent]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._queue.clear()

    @property
    def queued_bytes(self) -> int:
        return len(self._queue)

    def read(self, *, wait: bool = True) -> list[dict[str, Any]] | None:
        """The messages that have come in, or None at the end. Waits for the first byte, if told to."""
        try:
            data = self._end.recv(_CHUNK_BYTES, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not data:
            return None
        first, *lines = data.split(b"\n")
        self._parts.append(first)
        whole = []
        for line in lines:
            whole.append(b"".join(self._parts))
            self._parts = [line]
        return [msgspec.json.decode(line) for line in whole]

    def has_more(self) -> bool:
        """Whether `read` has something at once: bytes, or the end."""
        ready = select.poll()  # unlike select.select, with any number of descriptors
        ready.register(self._end, select.POLLIN)
        return bool(ready.poll(0))

    def messages(self) -> Iterator[dict[str, Any]]:
        """Until the other end is closed."""
        while (batch := self.read()) is not None:
            yield from batch

    def close(self) -> None:
        self._end.close()


def _encode(message: dict[str, Any]) -> bytes:
    return msgspec.json.encode(message) + b"\n"
