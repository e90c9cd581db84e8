"""Where a comparison ran: machine, versions, and the commit of the folder it was started in."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("fast-training", "torch", "numpy", "scikit-learn", "msgspec", "safetensors")


def surroundings() -> dict[str, Any]:
    """For run.json. No name of a machine or user: results are shown to others."""
    return {"machine": machine(), "versions": versions(), "commit": commit()}


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
    }


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package.removesuffix("-training")] = version(package)
        except PackageNotFoundError:  # not installed by a package manager: nothing to say
            continue
    return found


def commit() -> str | None:
    """Of the repository around the current folder, marked if files in it have changed since."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head} (changed)" if _git("status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
