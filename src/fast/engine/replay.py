"""A recorded run once more, in one process, to the same bits."""

from __future__ import annotations

import io
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, final

import torch

from fast.core import Strategy
from fast.engine.baton import Baton
from fast.engine.belongings import start_generators
from fast.engine.messages import Failure
from fast.engine.process import find, summary_of, traceback_of
from fast.engine.replay_transport import ReplayTransport, Table
from fast.engine.rows import Rows
from fast.engine.seat import Seat, seated
from fast.errors import FastError, UsageError
from fast.runtime.answers import Stepped
from fast.runtime.journal import Done
from fast.runtime.prompting import Diverged, Halt, Prompter
from fast.runtime.record import Header, Recorded, processor, script_digest
from fast.trace import Observer
from fast.transport import MemoryHub
from fast.view import Groups

Listener = Callable[[dict[str, Any]], None]


class Watch(ABC):
    """Somebody who looks over one worker's shoulder."""

    worker: int
    observers: tuple[Observer, ...] = ()

    @abstractmethod
    def stepped(self, done: Done, said: Stepped) -> bool:
        """After each of its steps, with what the record says of it. Is that enough?"""


@dataclass
class Replayed:
    """How far a replay came."""

    steps: dict[int, int] = field(default_factory=dict)
    """Of each participant; a server's turns."""
    unfinished: tuple[int, ...] = ()
    """Whose record, or what it needs of others, ended before its end."""
    stopped: bool = False
    """Whether it was stopped on request."""
    differs: str = ""
    results: dict[int, Any] = field(default_factory=dict)
    failure: Failure | None = None
    """What a script raised, as it did then."""


def replay(
    record: Recorded, *, watch: Watch | None = None, listen: Listener = lambda message: None
) -> Replayed:
    """Run everybody of a record again. UsageError where it diverges."""
    return _Replay(record, watch, listen).run()


def changed_surroundings(record: Recorded) -> list[str]:
    """What is not as it was, in words: then the bits may differ."""
    opened, here = record.parts[0].opened, processor()
    changed = []
    if opened.processor != here:
        changed.append(f"it was recorded on {opened.processor}, and this is {here}")
    if opened.torch != torch.__version__:
        changed.append(f"it was recorded with torch {opened.torch}, and this is {torch.__version__}")
    return changed


def changed_script(record: Recorded) -> bool:
    """Whether the script has another text now."""
    header = record.header
    return header.script is not None and header.script_digest != script_digest(
        Path(header.folder) / header.script
    )


@final
class _Replay:
    """One replay."""

    def __init__(self, record: Recorded, watch: Watch | None, listen: Listener) -> None:
        self._record, self._watch, self._listen = record, watch, listen
        self._hub = MemoryHub(max(record.parts) + 2 + record.header.workers)
        self._baton, self._table = Baton(lambda: self._hub.changes), Table(_groups(record.header))
        self._prompters: dict[int, Prompter] = {}
        self._result = Replayed()
        self._error: BaseException | None = None
        self._strict = not changed_surroundings(record)

    def run(self) -> Replayed:
        header = self._record.header
        threads = torch.get_num_threads()
        for worker in range(header.workers):
            body = lambda: find(header.entry)(**header.arguments)  # noqa: E731
            self._add(worker, body)
        try:
            self._baton.run()
        finally:
            torch.set_num_threads(threads)
        if self._error is not None:
            raise self._error
        return self._told()

    def _steps_of_workers(self) -> list[int]:
        return [self._prompters[worker].steps for worker in range(self._record.header.workers)]

    def _tell(self, event: dict[str, Any]) -> None:
        with self._outside():
            self._listen(event)

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """What our listeners raise (a pipe that nobody reads, say) is none of the script's errors."""
        try:
            yield
        except BaseException as error:
            self._error = self._error or error
            self._baton.halt()
            raise Halt from error

    def _told(self) -> Replayed:
        divergence = next((each.divergence for each in self._prompters.values() if each.divergence), None)
        if divergence is not None:
            raise divergence
        result = self._result
        parts = self._record.parts
        stuck = [id for id, each in self._prompters.items() if not each.ended_well and parts[id].complete]
        if (
            stuck
            and not result.stopped
            and result.failure is None
            and all(p.complete for p in parts.values())
        ):
            raise UsageError(
                f"the replay diverges: {self._record.name_of(stuck[0])} can't go on after step "
                f"{self._prompters[stuck[0]].steps}, because what it needs next nobody sends any more"
            )
        result.steps = {id: prompter.steps for id, prompter in self._prompters.items()}
        result.unfinished = tuple(id for id, each in self._prompters.items() if not each.ended_well)
        result.differs = next((each.differs for each in self._prompters.values() if each.differs), "")
        return result

    # Participants

    def _add(self, id: int, body: Callable[[], Any]) -> None:
        prompter = self._prompters[id] = self._prompter(id)
        self._baton.add(id, lambda: self._lives(id, body), prompter.next_at_ns)

    def _prompter(self, id: int) -> Prompter:
        if id not in self._record.parts:
            raise UsageError(
                f"{self._record.folder} has no file of {self._record.name_of(id)}, which takes part now"
            )
        watch = self._watch if self._watch is not None and self._watch.worker == id else None

        def after_step(done: Done, said: Stepped) -> None:
            with self._outside():
                self._listen({"event": "progress", "steps": self._steps_of_workers()})
                if watch is not None and watch.stepped(done, said):
                    self._result.stopped = True
                    self._baton.halt()
            self._baton.step_done(id)

        return Prompter(
            self._record.name_of(id),
            self._record.parts[id],
            strict=self._strict,
            after_step=after_step,
            observers=() if watch is None else watch.observers,
        )

    def _lives(self, id: int, body: Callable[[], Any]) -> None:
        with suppress(Halt):
            self._run(id, body)

    def _run(self, id: int, body: Callable[[], Any]) -> None:
        """In its own thread, with the baton."""
        opened, header = self._record.parts[id].opened, self._record.header
        torch.set_num_threads(header.threads)
        os.chdir(header.folder)
        start_generators(header.seed, id, opened.torch_seed)
        with _Output(self._record.name_of(id), self._tell), seated(self._seat(id)):
            try:
                self._result.results[id] = body()
            except Halt:
                return
            except SystemExit as stop:
                self._fail(id, f"the script ended with exit code {stop.code}")
            except FastError as error:
                self._fail(id, str(error), error=error)
            except BaseException as error:
                self._fail(id, summary_of(error), traceback_of(error), error)

    def _fail(self, id: int, message: str, text: str = "", error: BaseException | None = None) -> None:
        """If it did then, the others go on as far as they come without it."""
        try:
            if not isinstance(error, Diverged):
                self._prompters[id].raised(message)
                self._result.failure = self._result.failure or Failure(
                    self._record.name_of(id), message, text
                )
                return
        except Diverged as diverged:
            error = diverged
            for line in text.splitlines():
                self._tell(
                    {
                        "event": "line",
                        "who": self._record.name_of(id),
                        "stream": 2,
                        "text": line,
                        "bar": False,
                    }
                )
        self._error = self._error or error
        self._baton.halt()

    def _seat(self, id: int) -> Seat:
        header, prompter = self._record.header, self._prompters[id]

        def start_servers(strategy: Strategy, count: int) -> None:
            for number in range(count):
                self._add(header.workers + number, self._server(strategy.call, number))

        return Seat(
            id,
            header.workers,
            lambda: ReplayTransport(id, self._hub, self._table, self._baton, prompter, _near(header, id)),
            start_servers,
            lambda line: self._tell({"event": "say", "who": self._record.name_of(id), "text": line}),
            header.seed,
            header.strategy,
            deadline_s=0.0,
            groups=_groups(header),
            journal=prompter,
        )

    def _server(self, call: str, number: int) -> Callable[[], Any]:
        header = self._record.header
        return lambda: find(header.server_entry)(call, number, **header.server_arguments)


@final
class _Output:
    """Everything that the body prints becomes lines with its name; it reads nothing."""

    def __init__(self, name: str, listen: Listener) -> None:
        self._name, self._listen = name, listen

    def __enter__(self) -> None:
        self._nothing = open(os.devnull)
        sys.stdin, sys.stdout, sys.stderr = self._nothing, self._stream(1), self._stream(2)

    def __exit__(self, *_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.close()
        self._nothing.close()

    def _stream(self, number: int) -> io.TextIOWrapper:
        def take(text: str, bar: bool) -> None:
            self._listen({"event": "line", "who": self._name, "stream": number, "text": text, "bar": bar})

        return io.TextIOWrapper(_Sink(Rows(take)), "utf-8", "replace", line_buffering=True)  # type: ignore[arg-type]


@final
class _Sink(io.RawIOBase):
    """Cuts what is written into lines."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self._rows = rows

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._rows.feed(bytes(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._rows.end()


def _groups(header: Header) -> Groups:
    """In which order sums were made: the workers of each host are a group, unless the user said otherwise."""
    ends = [*accumulate(header.counts)]
    hosts = tuple(tuple(range(end - count, end)) for count, end in zip(header.counts, ends, strict=True))
    return header.groups or hosts


def _near(header: Header, id: int) -> frozenset[int] | None:
    """Who shared a host with this participant, if there were several. Servers stood on the first one."""
    first, servers = 0, range(header.workers, 2 * header.workers)
    for host, count in enumerate(header.counts):
        here = frozenset(range(first, first + count)) | frozenset(() if host else servers)
        if id in here:
            return here
        first += count
    return None
