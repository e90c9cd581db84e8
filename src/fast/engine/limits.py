"""How many participants and open files a run may have on this machine."""

from __future__ import annotations

import os
import resource

from fast.errors import UsageError

MOST_WORKERS = 2046
"""With as many servers and the host they are 4096 participants: a bell has 12 bits for whoever rings it."""
SPARE_PARTICIPANTS = 4
"""Room beyond one server per worker, one of them for the host itself."""
_FILES_OF_PYTHON = 40
"""Descriptors that the host's interpreter and libraries need."""
_FILES_PER_WORKER = 8
"""A worker and a server: shared memory, a socket and two pipes each."""


def check_room(workers: int) -> None:
    """Raise UsageError if this machine has no room for so many."""
    if workers > MOST_WORKERS:
        raise UsageError(
            f"{workers} workers: one machine runs at most {MOST_WORKERS}. `fast simulate` has no such limit."
        )
    needed, allowed = _files(workers), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        raise UsageError(
            f"{workers} workers need {needed} open files, and this system allows {allowed} (`ulimit -Hn`). Raise that "
            f"limit, or run fewer workers: each needs {_FILES_PER_WORKER}."
        )


def raise_limits(workers: int) -> None:
    """Let this process open as many files as the run needs. The hard limit allows it: see `check_room`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _files(workers):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_files(workers), hard))


def _files(workers: int) -> int:
    return _FILES_OF_PYTHON + _FILES_PER_WORKER * workers


def fill_standard_streams() -> None:
    """Open standard streams that are closed as /dev/null: the next file that is opened would take their numbers."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
