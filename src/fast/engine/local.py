"""The embedded engine: workers are processes on this machine. No set-up, no ports, no root."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fast.engine.messages import Channel, Failure, Job, Outcome
from fast.runtime.record import Header, create_record

__all__ = ["Failure", "Job", "LocalEngine", "Outcome"]

Listener = Callable[[dict[str, Any]], None]
_SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class LocalEngine:
    """Starts a host process on first use and runs jobs in it, one after another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._hash_seed: str | None = None

    def run(self, job: Job, listen: Listener = lambda message: None) -> Outcome:
        """Run one job to its end. `listen` gets every event: lines, progress, pids."""
        if job.record is not None:
            create_record(Path(job.record), _header(job))
        channel = self._start(None if job.record is None else "0")
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

    def _start(self, hash_seed: str | None) -> Channel:
        """The host, if it doesn't run already with this hash seed."""
        if self._channel is not None and hash_seed not in (None, self._hash_seed):
            self.close()
        if self._channel is None:
            self._hash_seed = os.environ.get("PYTHONHASHSEED", hash_seed)
            ours, theirs = socket.socketpair()
            os.set_inheritable(theirs.fileno(), True)
            command = [sys.executable, "-m", "fast.engine.host", str(theirs.fileno()), str(os.getpid())]
            environment = environment_of_workers(self._hash_seed)
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


def environment_of_workers(hash_seed: str | None) -> dict[str, str]:
    """What the workers' host gets: this process's own environment, but nobody takes all cores for itself;
    and where a run is to be repeated, the order of sets is the same each time."""
    environment = os.environ | dict.fromkeys(_SINGLE_THREADED, "1")
    return environment if hash_seed is None else environment | {"PYTHONHASHSEED": hash_seed}


def _header(job: Job) -> Header:
    return Header(
        script=job.arguments.get("script"),
        entry=job.entry,
        arguments=job.arguments,
        server_entry=job.server_entry,
        server_arguments=job.server_arguments,
        strategy=job.strategy,
        workers=job.workers,
        seed=job.seed,
        deadline_s=job.deadline_s,
        threads=job.threads,
        groups=job.groups,
        folder=job.folder or os.getcwd(),
    )
