"""The embedded engine: workers are processes on this machine. No set-up, no ports, no root."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from fast.engine.messages import Channel, Failure, Job, Outcome

__all__ = ["Failure", "Job", "LocalEngine", "Outcome"]

Listener = Callable[[dict[str, Any]], None]
_SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class LocalEngine:
    """Starts a host process on first use and runs jobs in it, one after another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None

    def run(self, job: Job, listen: Listener = lambda message: None) -> Outcome:
        """Run one job to its end. `listen` gets every event: lines, progress, pids."""
        channel = self._start()
        channel.send({"do": "run", "job": msgspec.to_builtins(job)})
        try:
            for message in channel.messages():
                if message["event"] == "end":
                    return msgspec.convert(message["outcome"], Outcome)
                listen(message)
        except BaseException:
            self.close()
            raise
        self.close()
        return Outcome(failure=Failure("the host process", "the host process of the workers died"))

    def stop(self, why: str) -> None:
        """End the running job from a listener; `run` then returns with this reason."""
        if self._channel is not None:
            self._channel.send({"do": "stop", "why": why})

    def _start(self) -> Channel:
        if self._channel is None:
            ours, theirs = socket.socketpair()
            os.set_inheritable(theirs.fileno(), True)
            command = [sys.executable, "-m", "fast.engine.host", str(theirs.fileno()), str(os.getpid())]
            environment = os.environ | dict.fromkeys(_SINGLE_THREADED, "1")
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env=environment, start_new_session=True
            )
            theirs.close()
            self._channel = Channel(ours)
        return self._channel

    def close(self) -> None:
        """End the host and everything in it."""
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.wait()
            self._channel = self._process = None

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
