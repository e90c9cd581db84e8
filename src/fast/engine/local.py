"""The embedded engine: workers are processes on this machine. No set-up, no ports, no root."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fast.engine.limits import check_room, fill_standard_streams
from fast.engine.messages import Channel, Failure, Job, Outcome
from fast.engine.participant import signal_name
from fast.errors import FastError
from fast.runtime.record import Header, create_record

__all__ = ["Failure", "Job", "LocalEngine", "Outcome"]

Listener = Callable[[dict[str, Any]], None]
_CLOSING_S = 10.0
"""How long the host may take to kill its participants. It may also have to finish an import."""
_SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def follow(channel: Channel, listen: Listener) -> Outcome | None:
    """Listen until the run has ended; None if the host died before."""
    for message in channel.messages():
        if message["event"] == "end":
            return msgspec.convert(message["outcome"], Outcome)
        listen(message)
    return None


def host_died(how: str = "died") -> Outcome:
    return Outcome(failure=Failure("the host process", f"the host process of the workers {how}"))


class LocalEngine:
    """Starts a host process on first use and runs jobs in it, one after another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._hash_seed: str | None = None

    def run(self, job: Job, listen: Listener = lambda message: None) -> Outcome:
        """Run one job to its end. `listen` gets every event: lines, progress, pids."""
        check_room(job.workers)
        if job.record is not None:
            create_record(Path(job.record), _header(job), shared=job.part is not None)
        channel = self._start(None if job.record is None else "0")
        channel.send({"do": "run", "job": msgspec.to_builtins(job)})
        try:
            return follow(channel, listen) or host_died(self._end_of_host())
        except BaseException:
            self.close()
            raise

    def stop(self, why: str) -> None:
        """End the running job from a listener; `run` then returns with this reason."""
        if self._channel is not None:
            self._channel.send({"do": "stop", "why": why})

    def end_soon(self, why: str, grace_s: float) -> None:
        """Ask the workers of the running job to finish their step and leave. `run` returns when they have ended, or
        have been killed because they still ran after `grace_s`. A signal handler may call this."""
        if self._channel is not None and self._process is not None:
            self._channel.send({"do": "end soon", "why": why, "grace_s": grace_s})
            self._process.send_signal(signal.SIGCONT)  # it may have been stopped

    def _end_of_host(self) -> str:
        """It has closed its end of the socket."""
        process = self._process
        self.close()
        number = -process.returncode if process is not None else 0
        return f"was killed by signal {number} ({signal_name(number)})" if number > 0 else "died"

    def _start(self, hash_seed: str | None) -> Channel:
        """The host, if it doesn't run already with this hash seed."""
        if self._channel is not None and hash_seed not in (None, self._hash_seed):
            self.close()
        if self._channel is None:
            self._hash_seed = os.environ.get("PYTHONHASHSEED", hash_seed)
            try:
                self._channel = self._start_host()
            except OSError as error:
                raise FastError(
                    f"the host process of the workers could not be started: {error.strerror}"
                ) from error
        return self._channel

    def _start_host(self) -> Channel:
        fill_standard_streams()
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        command = [sys.executable, "-m", "fast.engine.host", str(theirs.fileno()), str(os.getpid())]
        environment = environment_of_workers(self._hash_seed)
        try:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env=environment, start_new_session=True
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return Channel(ours)

    def close(self) -> None:
        """End the host and everything in it."""
        if self._channel is not None and self._process is not None:
            process, self._process = self._process, None
            self._channel.close()
            self._channel = None
            process.send_signal(signal.SIGCONT)  # it may have been stopped
            try:
                process.wait(_CLOSING_S)
            except BaseException as error:  # it hangs, or nobody wants to wait for it
                process.kill()
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise

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
        counts=[] if job.part is None else job.part.counts,
        seed=job.seed,
        deadline_s=job.deadline_s,
        threads=job.threads,
        groups=job.groups,
        folder=job.folder or os.getcwd(),
    )
