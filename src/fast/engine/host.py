"""The host process: imports torch once, forks the participants of each run, watches them.

It is started by LocalEngine and talks to it over one socket. It has a single thread, so forking
is safe, and it is the parent of every participant: when it dies they are killed by the kernel,
and when its own parent dies it sees the socket end, kills them and goes. It never waits for its
parent: while that one doesn't read, output stays in the pipes of the participants.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from fast.engine.forking import Kept
from fast.engine.limits import fill_standard_streams
from fast.engine.messages import Channel, Job
from fast.engine.running import Run, Surroundings

_TICK_S = 0.1
_BACKLOG_BYTES = 1 << 20
"""Messages to the engine that may wait; with more, no output is read."""


class Host:
    """One run after another, each with fresh processes."""

    def __init__(self, control: Channel, body: Callable[[], Any] | None = None) -> None:
        """With `body` all workers call it, whatever a job names."""
        self._body = body
        self._control, self._parent = control, os.getppid()
        self._selector, self._outputs = selectors.DefaultSelector(), selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        self._selector.register(self._outputs, selectors.EVENT_READ, self._on_output)
        self._writes = self._congested = False
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        self._wake = wake  # kept: a signal writes to this descriptor, whatever it has become
        signal.set_wakeup_fd(wake.fileno())
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._on_child(woken))
        self._kept = Kept(_handle_signals(), self._close)
        self._jobs: list[Job] = []
        self._run: Run | None = None
        self._tick_at = 0.0

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(_TICK_S):
                key.data()
            if self._run is not None and time.monotonic() >= self._tick_at:
                self._tick_at = time.monotonic() + _TICK_S
                self._run.tick()
            if self._run is not None and self._run.is_over(congested=self._congested):
                self._tell({"event": "end", "outcome": msgspec.to_builtins(self._run.finish())})
                self._run = None
            if self._run is None and self._jobs:
                self._start(self._jobs.pop(0))

    def _start(self, job: Job) -> None:
        for module in job.preload:
            importlib.import_module(module)
        if os.getppid() != self._parent:  # nobody waits for them any more
            os._exit(1)
        around = Surroundings(self._tell, self._selector, self._outputs, self._kept)
        self._run = Run(job, around, self._body)
        self._run.start()

    # The engine

    def _on_control(self) -> None:
        self._control.flush()
        self._mind_congestion()
        messages = self._control.read(wait=False)
        if messages is None:
            if self._run is not None:
                self._run.kill_all()
            os._exit(0)
        for message in messages:
            if message["do"] == "run":
                self._jobs.append(msgspec.convert(message["job"], Job))
            elif self._run is not None and message["do"] == "stop":
                self._run.stop(message["why"])
            elif self._run is not None and message["do"] == "end soon":
                self._run.end_soon(message["why"], message["grace_s"])

    def _tell(self, message: dict[str, Any]) -> None:
        self._control.queue(message)
        self._mind_congestion()

    def _mind_congestion(self) -> None:
        """Write as soon as the engine reads again, and until then leave output where it is."""
        if self._writes != bool(self._control.queued_bytes):
            self._writes = not self._writes
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._writes else 0)
            self._selector.modify(self._control, events, self._on_control)
        if self._congested != (self._control.queued_bytes > _BACKLOG_BYTES):
            self._congested = not self._congested
            if self._congested:
                self._selector.unregister(self._outputs)
            else:
                self._selector.register(self._outputs, selectors.EVENT_READ, self._on_output)

    # Participants

    def _on_output(self) -> None:
        for key, _ in self._outputs.select(0):
            key.data()

    def _on_child(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            woken.recv(1 << 12)
        if self._run is not None:
            self._run.look()

    def _close(self) -> None:
        """In a participant: what is the host's own."""
        if self._run is not None:
            self._run.close()
        self._outputs.close()
        self._selector.close()
        self._control.close()


def _handle_signals() -> dict[signal.Signals, Any]:
    """Returns what participants do instead. Those that the whole process group gets are the command's business: it
    says what is to be done."""
    usual: dict[signal.Signals, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        usual[number] = signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return usual


def main() -> None:
    """`python -m fast.engine.host FD PARENT`"""
    fill_standard_streams()
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    if os.getppid() != parent:
        os._exit(1)
    Host(Channel(socket.socket(fileno=fd))).run()


if __name__ == "__main__":
    main()
