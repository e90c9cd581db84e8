"""The host process: imports torch once, forks the participants of each run, watches them.

It is started by LocalEngine and talks to it over one socket. It has a single thread, so forking
is safe, and it is the parent of every participant: when it dies they are killed by the kernel,
and when its own parent dies it sees the socket end, kills them and goes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fast.engine.messages import Channel, Failure, Job, Lines, Outcome
from fast.engine.process import die_with_parent, name_process, run_server, run_worker
from fast.transport import Phase, ShmTransport, create_arenas

_PROGRESS_S = 0.25
_LAST_WORDS_S = 2.0
"""How long output may still come after the last participant has ended."""


@dataclass
class Participant:
    """A forked process, as its host sees it."""

    id: int
    name: str
    pid: int
    channel: Channel
    failure: Failure | None = None
    result: Any = None
    returned: bool = False
    """Whether its function came to its end."""
    connected: bool = True
    open: set[int] = field(default_factory=set)
    """Descriptors of its output that have not ended."""
    status: int | None = None
    """What `waitpid` said."""


class Host:
    """One run after another, each with fresh processes."""

    def __init__(self, control: Channel) -> None:
        self._control, self._parent = control, os.getppid()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        self._wake = wake  # kept: a signal writes to this descriptor, whatever it has become
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._on_child(woken))
        self._jobs: list[Job] = []
        self._participants: dict[int, Participant] = {}
        self._arenas: list[int] = []
        self._watch: ShmTransport | None = None
        self._job: Job | None = None
        self._failure: Failure | None = None
        self._told: list[int] = []
        self._ended_at = 0.0

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(_PROGRESS_S):
                key.data()
            if self._job is not None:
                self._tell_progress()
                if not self._participants_running():
                    self._finish()
            if self._job is None and self._jobs:
                self._start(self._jobs.pop(0))

    # From the engine

    def _on_control(self) -> None:
        messages = self._control.read()
        if messages is None:
            self._kill_all()
            os._exit(0)
        for message in messages:
            if message["do"] == "run":
                self._jobs.append(msgspec.convert(message["job"], Job))
            elif message["do"] == "stop":
                self._fail(Failure("the run", message["why"]))

    # Starting

    def _start(self, job: Job) -> None:
        for module in job.preload:
            importlib.import_module(module)
        self._job, self._failure, self._told = job, None, []
        self._participants = {}
        self._arenas = create_arenas(job.size)
        self._watch = ShmTransport(len(self._arenas) - 1, self._arenas)
        for id in job.here:
            if os.getppid() != self._parent:  # nobody waits for them any more
                self._kill_all()
                os._exit(1)
            self._fork(id, f"worker {id}", lambda id, channel: run_worker(id, job, self._arenas, channel))
        pids = [p.pid for p in self._participants.values()]
        self._control.send({"event": "started", "pids": pids})

    def _start_servers(self, count: int, call: str, meeting: dict[str, Any] | None = None) -> None:
        job = self._job
        assert job is not None
        for number in range(count):
            self._fork(
                job.workers + number,
                f"server {number}",
                lambda id, channel: run_server(id, job, self._arenas, channel, call, meeting),
            )

    def _fork(self, id: int, name: str, body: Callable[[int, Channel], None]) -> None:
        ours, theirs = socket.socketpair()
        pipes = {1: os.pipe(), 2: os.pipe()}
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_participant(parent, pipes, ours)
            name_process(f"fast {name}")
            body(id, Channel(theirs))
        theirs.close()
        participant = Participant(id, name, pid, Channel(ours))
        self._participants[id] = participant
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_message(participant))
        for stream, (reader, writer) in pipes.items():
            os.close(writer)
            participant.open.add(reader)
            self._forward(participant, reader, stream)

    def _become_participant(
        self, parent: int, pipes: dict[int, tuple[int, int]], ours: socket.socket
    ) -> None:
        """In the child: own group, own output, and none of the host's ends."""
        os.setpgid(0, 0)
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream, (reader, writer) in pipes.items():
            os.dup2(writer, stream)
            os.close(reader)
            os.close(writer)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        ours.close()
        for participant in self._participants.values():
            if participant.connected:
                participant.channel.close()
            for reader in participant.open:
                os.close(reader)
        self._selector.close()
        self._control.close()
        sys.stdout = io.TextIOWrapper(
            io.FileIO(1, "w", closefd=False), "utf-8", "replace", line_buffering=True
        )
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), "utf-8", "replace", line_buffering=True
        )

    # Watching

    def _forward(self, participant: Participant, reader: int, stream: int) -> None:
        def take(line: str) -> None:
            silenced = self._failure is not None and self._failure.who != participant.name
            if not silenced:
                self._control.send({"event": "line", "who": participant.name, "stream": stream, "text": line})

        lines = Lines(take)

        def on_output() -> None:
            data = os.read(reader, 1 << 16)
            if data:
                lines.feed(data)
                return
            lines.end()
            self._selector.unregister(reader)
            os.close(reader)
            participant.open.discard(reader)

        self._selector.register(reader, selectors.EVENT_READ, on_output)

    def _on_message(self, participant: Participant) -> None:
        if not participant.connected:  # an event from before it was closed
            return
        messages = participant.channel.read(wait=False)
        if messages is None:
            self._disconnect(participant)
            return
        for message in messages:
            match message.pop("event"):
                case "say":
                    self._control.send({"event": "say", "who": participant.name, "text": message["text"]})
                case "start servers" if self._failure is None:
                    self._start_servers(**message)
                case "result":
                    participant.result, participant.returned = message["value"], True
                case "failed":
                    self._fail(Failure(participant.name, **message))

    def _disconnect(self, participant: Participant) -> None:
        if participant.connected:
            participant.connected = False
            self._selector.unregister(participant.channel.fileno())
            participant.channel.close()

    def _on_child(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            woken.recv(1 << 12)
        for participant in list(self._participants.values()):
            if participant.status is not None:
                continue
            pid, status = os.waitpid(participant.pid, os.WNOHANG)
            if pid:
                participant.status = status
                self._ended_at = time.monotonic()
                self._on_exit(participant, status)

    def _on_exit(self, participant: Participant, status: int) -> None:
        while participant.connected and participant.channel.has_more():
            self._on_message(participant)  # its last words came before its end
        with contextlib.suppress(ProcessLookupError):
            os.killpg(participant.pid, signal.SIGKILL)  # whatever it started and left behind
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = signal.Signals(number).name
            self._fail(
                Failure(
                    participant.name,
                    f"{participant.name} was killed by signal {number} ({name}) after {self._steps(participant.id)} "
                    "steps; the others can't go on without it",
                )
            )
        elif os.WEXITSTATUS(status):
            self._fail(
                Failure(participant.name, f"{participant.name} ended with exit code {os.WEXITSTATUS(status)}")
            )
        elif not participant.returned and self._trains(participant.id):
            self._fail(
                Failure(
                    participant.name,
                    f"{participant.name} ended in the middle of the training, after {self._steps(participant.id)} "
                    "steps and without an error (did it call os._exit?); the others can't go on without it",
                )
            )

    def _trains(self, id: int) -> bool:
        """Whether the others may wait for this participant."""
        return self._watch is not None and Phase.JOINED <= self._watch.phase(id) < Phase.DONE

    def _steps(self, id: int) -> int:
        return self._watch.status(id).steps if self._watch else 0

    def _tell_progress(self) -> None:
        job = self._job
        assert job is not None
        steps = [self._steps(worker) for worker in job.here]
        if steps != self._told:
            self._told = steps
            self._control.send({"event": "progress", "steps": steps})

    # Ending

    def _fail(self, failure: Failure) -> None:
        """The first failure ends the run; what follows from it is not news."""
        if self._failure is None and self._job is not None:
            self._failure = failure
            self._kill_all()

    def _kill_all(self) -> None:
        for participant in self._participants.values():
            if participant.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(participant.pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(participant.pid, signal.SIGKILL)

    def _participants_running(self) -> bool:
        if any(p.status is None for p in self._participants.values()):
            return True
        last_words = self._ended_at + _LAST_WORDS_S > time.monotonic()
        return last_words and any(p.open for p in self._participants.values())

    def _finish(self) -> None:
        job = self._job
        assert job is not None
        for participant in self._participants.values():
            self._disconnect(participant)
            for reader in participant.open:  # held by something that outlived its group
                self._selector.unregister(reader)
                os.close(reader)
        self._tell_progress()
        results = [self._participants[id].result for id in sorted(self._participants)]
        workers, servers = results[: len(job.here)], results[len(job.here) :]
        outcome = Outcome(failure=self._failure) if self._failure else Outcome(workers, None, servers)
        for fd in self._arenas:
            os.close(fd)
        self._arenas, self._watch, self._job, self._participants = [], None, None, {}
        self._control.send({"event": "end", "outcome": msgspec.to_builtins(outcome)})


def main() -> None:
    """`python -m fast.engine.host FD PARENT`"""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Host(Channel(socket.socket(fileno=fd))).run()


if __name__ == "__main__":
    main()
