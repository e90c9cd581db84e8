"""A forked process, as its host sees it."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fast.engine.messages import Channel
from fast.engine.rows import Rows
from fast.transport import Phase


@dataclass
class Participant:
    """A forked process, as its host sees it."""

    id: int
    name: str
    pid: int
    channel: Channel
    output: dict[int, Rows] = field(default_factory=dict)
    """By the descriptors of its output that have not ended."""
    result: Any = None
    returned: bool = False
    """Whether its function came to its end."""
    connected: bool = True
    stopped: bool = False
    """Whether a signal has stopped it, until SIGCONT."""
    asked: bool = False
    """Whether the host has asked it to end."""
    status: int | None = None
    """What `waitpid` said of its end."""

    def look(self) -> bool:
        """Ask the kernel what has become of it; returns whether it has ended since the last time."""
        if self.status is not None:
            return False
        flags = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
        while (found := os.waitpid(self.pid, flags))[0]:
            if os.WIFSTOPPED(found[1]):
                self.stopped = True
            elif os.WIFCONTINUED(found[1]):
                self.stopped = False
            else:
                self.status = found[1]
                return True
        return False

    @property
    def killed_by(self) -> int:
        """The signal that ended it, or 0."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else 0

    def why_ended(self, phase: Phase, steps: int) -> str:
        """What is wrong with its end; empty if nothing is, or if it has not ended."""
        if self.status is None:
            return ""
        if self.killed_by:
            return (
                f"was killed by signal {self.killed_by} ({signal_name(self.killed_by)}) after {steps} steps; "
                "the others can't go on without it"
            )
        if os.WEXITSTATUS(self.status):
            return f"ended with exit code {os.WEXITSTATUS(self.status)}"
        if not self.returned and Phase.JOINED <= phase < Phase.DONE:
            return (
                f"ended in the middle of the training, after {steps} steps and without an error (did it call "
                "os._exit?); the others can't go on without it"
            )
        return ""

    def kill(self) -> None:
        """End it at once, with all that it has started."""
        if self.status is None:
            self.kill_group()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill_group(self) -> None:
        """End whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def ask_to_end(self, *, trains: bool) -> None:
        """Send SIGTERM, once.

        A worker in training catches the first one and leaves after its step; a second one would end it at once.
        So one that doesn't catch it is left alone: somebody else has sent one already, or it will catch it soon.
        """
        if self.status is None and not self.asked and (not trains or _catches_sigterm(self.pid)):
            self.asked = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


def _catches_sigterm(pid: int) -> bool:
    """Where there is no /proc nobody knows, and the answer is yes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL or SIGRTMIN+1."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no names of their own
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
