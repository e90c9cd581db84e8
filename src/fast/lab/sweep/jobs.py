"""Who does the trials: this process, or several others side by side."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from typing import final

import msgspec

from fast.engine.local import environment_of_workers
from fast.engine.messages import Channel
from fast.errors import FastError, UsageError
from fast.lab.settings import Settings
from fast.lab.surroundings import cores
from fast.lab.sweep.points import Point, label_of
from fast.lab.sweep.trying import Trying
from fast.lab.sweep.wanted import Sweep
from fast.lab.tuning import Setting

_PATIENCE_S = 5.0
"""For a process that was told to end."""


class Jobs(ABC):
    """Takes trials as long as somebody is free, and gives back those that have ended. Use it in a `with` statement."""

    @property
    @abstractmethod
    def free(self) -> bool:
        """Whether another trial can be started."""

    @abstractmethod
    def start(self, setting: Setting) -> None: ...

    @abstractmethod
    def wait(self) -> list[Point]:
        """What has ended, at least one, in any order."""

    @abstractmethod
    def close(self) -> None:
        """End what is under way."""

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_jobs(jobs: int | None) -> int:
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: the number of trials that run in parallel is at least 1")
    return cores() if jobs is None else jobs


def jobs_of(sweep: Sweep, jobs: int | None = None) -> Jobs:
    """So many processes; as many as there are cores unless told, and never more than there are trials. One
    is this process itself."""
    count = min(check_jobs(jobs), sweep.trials)
    return _Here(sweep) if count == 1 else _Processes(sweep, count)


@final
class _Here(Jobs):
    def __init__(self, sweep: Sweep) -> None:
        self._try, self._next = Trying(sweep.plan, sweep.seed), list[Setting]()

    @property
    def free(self) -> bool:
        return not self._next

    def start(self, setting: Setting) -> None:
        self._next.append(setting)

    def wait(self) -> list[Point]:
        return [self._try(self._next.pop())]

    def close(self) -> None:
        self._next.clear()


@final
class _Process:
    """One of the processes, and what it is trying."""

    def __init__(self, settings: Settings, seed: int) -> None:
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        command = [sys.executable, "-m", "fast.lab.sweep.job", str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            env=environment_of_workers(None),
            start_new_session=True,  # Ctrl-C is for the sweep, which ends them all
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a task prints is no result
        )
        theirs.close()
        self.channel = Channel(ours)
        self.trying: Setting | None = None
        self.channel.send({"settings": msgspec.to_builtins(settings), "seed": seed})

    def start(self, setting: Setting) -> None:
        self.trying = setting
        self.channel.send(msgspec.to_builtins(setting))

    def read(self) -> list[Point]:
        """What has come in, which may be only a part of it yet."""
        messages = self.channel.read()
        if messages is None:
            raise FastError(self._died())
        if messages:
            self.trying = None
        return [msgspec.convert(message, Point) for message in messages]

    def _died(self) -> str:
        code = self._process.wait()
        how = (
            f"was killed by signal {-code}, maybe for want of memory"
            if code < 0
            else f"ended with code {code}"
        )
        what = "" if self.trying is None else f" while it tried {label_of(self.trying)}"
        return f"a process of the sweep {how}{what}. With fewer of them each has more memory: --jobs 1"

    def end(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.channel.close()
        self._process.wait(_PATIENCE_S)


@final
class _Processes(Jobs):
    """Each is started when there is something for it to do, and imports torch once."""

    def __init__(self, sweep: Sweep, count: int) -> None:
        self._sweep, self._count = sweep, count
        self._processes: list[_Process] = []
        self._selector = selectors.DefaultSelector()

    @property
    def free(self) -> bool:
        return sum(each.trying is not None for each in self._processes) < self._count

    def start(self, setting: Setting) -> None:
        idle = next((each for each in self._processes if each.trying is None), None)
        (idle or self._another()).start(setting)

    def _another(self) -> _Process:
        process = _Process(self._sweep.plan.settings, self._sweep.seed)
        self._processes.append(process)
        self._selector.register(process.channel, selectors.EVENT_READ, process)
        return process

    def wait(self) -> list[Point]:
        points: list[Point] = []
        while not points:
            points = [point for key, _ in self._selector.select() for point in key.data.read()]
        return points

    def close(self) -> None:
        """All at once: what they were trying is lost, and will be tried again."""
        self._selector.close()
        for each in self._processes:
            each.end()
        for each in self._processes:
            each.close()
        self._processes.clear()
