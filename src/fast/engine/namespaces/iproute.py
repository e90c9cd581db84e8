"""The commands `ip` and `tc`, and a thread that steps into a namespace for a moment."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fast.errors import UsageError

NAMESPACES = Path("/var/run/netns")
"""Where `ip netns` keeps a file for each."""
_CLONE_NEWNET = 0x40000000
_RATE = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>[kmg])bit")
_BURST_BYTES = 64 * 1024
"""At least one packet as large as they come (64 kB, before it is cut for the wire)."""
_BURST_SECONDS = 0.001
_QUEUE = "50ms"


def call(*words: str, batch: Sequence[str] = ()) -> str:
    """Run one command, with these lines for its `-batch -`; what it printed."""
    done = subprocess.run(words, input="\n".join(batch), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def ip(namespace: str, *lines: str) -> None:
    """Carry out lines of `ip` inside a namespace; the first one that fails ends it."""
    call("ip", "-n", namespace, "-batch", "-", batch=lines)


def tc(namespace: str, *lines: str) -> None:
    call("tc", "-n", namespace, "-batch", "-", batch=lines)


def shape(namespace: str, device: str, rate: str | None) -> None:
    """Let a device send at most at this rate; None takes the limit away."""
    if rate is None:
        if reported(namespace, device) is not None:
            tc(namespace, f"qdisc del dev {device} root")
        return
    burst = max(_BURST_BYTES, round(bits_per_second(rate) / 8 * _BURST_SECONDS))
    tc(namespace, f"qdisc replace dev {device} root tbf rate {rate} burst {burst} latency {_QUEUE}")


def reported(namespace: str, device: str) -> int | None:
    """The rate of a device in bits per second as the kernel has it; None if nothing limits it."""
    found: list[dict[str, Any]] = json.loads(
        call("tc", "-j", "-n", namespace, "qdisc", "show", "dev", device)
    )
    rates = [8 * int(each["options"]["rate"]) for each in found if each["kind"] == "tbf"]
    return rates[0] if rates else None


def bits_per_second(rate: str) -> float:
    """
    >>> bits_per_second("2.5gbit")
    2500000000.0
    """
    found = _RATE.fullmatch(rate)
    if found is None or float(found["number"]) == 0:
        raise UsageError(
            f"{rate!r} is no rate; write one such as 100mbit, 2.5gbit or 300kbit, or None for no limit"
        )
    return float(found["number"]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found["unit"]]


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in this namespace. Sockets, threads and processes that it makes here stay there.

    Only the network changes: /sys still shows the machine's own devices.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"can't enter the network namespace {namespace}")

    with _opened(Path("/proc/thread-self/ns/net")) as home, _opened(NAMESPACES / namespace) as away:
        enter(away)
        try:
            yield
        finally:
            enter(home)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
