"""The owner of a namespace. Its name tells it, so that whatever a killed process left behind can be found and removed.

    fast-BOOT-PID-START-TOKEN-host0

BOOT is the beginning of the kernel's boot id and START the owner's start time in ticks since then: a process id
that was given out again belongs to somebody else.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fast.engine.namespaces.iproute import NAMESPACES, call
from fast.errors import UsageError

_NAME = re.compile(
    r"(?P<prefix>fast-(?P<boot>[0-9a-f]{8})-(?P<pid>[0-9]+)-(?P<start>[0-9]+)-[0-9a-f]{6})-[a-z0-9]+"
)
_PATIENCE_S = 30.0
"""How long killed processes may take to be gone; only what the kernel can't interrupt takes that long."""
_ANOTHER_LOOK_S = 0.005


@dataclass(frozen=True)
class Owner:
    """A process, as told apart from all others since the machine's start, and from all before it."""

    boot: str
    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return self.boot == _boot() and _start(self.pid) == self.start


def new_prefix() -> str:
    """How the names of one cluster of this process begin."""
    return f"fast-{_boot()}-{os.getpid()}-{_start(os.getpid())}-{secrets.token_hex(3)}"


def owner_of(name: str) -> Owner | None:
    """None if a namespace is none of ours."""
    found = _NAME.fullmatch(name)
    return Owner(found["boot"], int(found["pid"]), int(found["start"])) if found else None


def namespaces(prefix: str = "fast-") -> list[str]:
    """The namespaces of ours, or of one cluster, that there are now."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(NAMESPACES) if owner_of(name) and name.startswith(prefix))
    return []


def sweep() -> list[str]:
    """Remove all namespaces whose owner is gone, with the processes in them; their names."""
    left = [name for name in namespaces() if (owner := owner_of(name)) and not owner.alive]
    remove(left)
    return left


def remove(names: Sequence[str]) -> None:
    """Kill what runs in these namespaces, and delete them. May be repeated, and done by two at once."""
    end_processes(names)
    for name in names:
        try:
            call("ip", "netns", "delete", name)
        except UsageError:
            if (NAMESPACES / name).exists():
                raise


def end_processes(names: Sequence[str]) -> None:
    """SIGKILL for all processes whose network is one of these namespaces, until there are none."""
    doomed = {found for name in names if (found := _identity(NAMESPACES / name)) is not None}
    deadline = time.monotonic() + _PATIENCE_S
    while left := [pid for pid in _processes() if _identity(Path(f"/proc/{pid}/ns/net")) in doomed]:
        for pid in left:
            _kill_if_in(pid, doomed)
        if time.monotonic() > deadline:
            raise UsageError(
                f"processes {left} in {list(names)} can't be killed; look what they wait for (`ps -l`)"
            )
        time.sleep(_ANOTHER_LOOK_S)


def _kill_if_in(pid: int, doomed: set[tuple[int, int]]) -> None:
    """The descriptor stands for this process and no later one of the same number."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if _identity(Path(f"/proc/{pid}/ns/net")) in doomed:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _processes() -> list[int]:
    """All but this one: a thread of ours may be inside for a moment."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _identity(namespace: Path) -> tuple[int, int] | None:
    """Device and inode: an inode alone could be that of a file on disk which a namespace was mounted on before the
    machine's last start. None if there is no such thing any more, or it is a process that only has to be waited for."""
    try:
        found = namespace.stat()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return found.st_dev, found.st_ino


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]


def _start(pid: int) -> int | None:
    """When a process started; None if it is gone, or has ended and wasn't waited for yet."""
    try:
        # The name in parentheses may hold anything; after it come the state and, 19 fields on, the start.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
