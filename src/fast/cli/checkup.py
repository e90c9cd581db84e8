"""What `fast doctor` looks at on this host itself."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import torch

from fast.engine.attached.echo import Finding
from fast.engine.attached.meeting import release

_FILES = 1024
_SHM_BYTES = 1 << 30


def check_host() -> Iterator[Finding]:
    """One finding after another."""
    yield Finding(
        "versions", f"fast {release()}, python {platform.python_version()}, torch {torch.__version__}"
    )
    yield _shared_memory()
    yield _open_files()
    yield _cores()
    yield _own_name()


def _shared_memory() -> Finding:
    """Linux has files in memory without a name, which know no limit but the memory."""
    try:
        os.close(os.memfd_create("fast-doctor"))
    except AttributeError:
        pass
    except OSError as error:
        advice = "memfd_create is forbidden here, often by a container: allow that system call"
        return Finding("shared memory", f"memfd_create: {error.strerror}", False, advice)
    else:
        return Finding("shared memory", "memfd works; the size of /dev/shm doesn't matter")
    free = shutil.disk_usage("/tmp").free
    advice = "" if free >= _SHM_BYTES else "free some space in /tmp"
    return Finding("shared memory", f"files in /tmp, {free >> 20} MiB free", free >= _SHM_BYTES, advice)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = soft if soft != resource.RLIM_INFINITY else hard
    ok = allowed == resource.RLIM_INFINITY or allowed >= _FILES
    words = "no limit" if allowed == resource.RLIM_INFINITY else f"{allowed} allowed"
    advice = "" if ok else f"raise the limit: ulimit -n {_FILES} (8 per worker are needed, and one per peer)"
    return Finding("open files", words, ok, advice)


def _cores() -> Finding:
    """Those this process may use; a container may grant less time than it shows cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = _granted()
    words = f"{cores} cores, {torch.get_num_threads()} torch threads by default"
    if granted is not None and granted < cores:
        advice = (
            f"start at most {max(1, int(granted))} workers here, or raise the container's limit of CPU time"
        )
        return Finding("cores", f"{words}, and the container grants the time of {granted:.1f}", False, advice)
    return Finding("cores", words)


def _granted() -> float | None:
    """Cores' worth of time that the control group grants; None for no limit."""
    path = Path("/sys/fs/cgroup/cpu.max")
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _own_name() -> Finding:
    name = socket.gethostname()
    try:
        address = str(socket.getaddrinfo(name, None)[0][4][0])
    except socket.gaierror as error:
        advice = "add it to /etc/hosts; for runs on several hosts give addresses"
        return Finding("own name", f"{name} can't be resolved ({error.strerror})", False, advice)
    return Finding("own name", f"{name} is {address}")
