"""Sleeping on a word of shared memory, and waking those who sleep on it.

Every word here has one writer (or writers whose values are unique), so no atomic operation is
needed: a sleeper passes the value it saw, and the kernel refuses to put it to sleep if the word
has changed since. Where there is no futex (anything but Linux), sleeping is polling.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time

_SYSCALLS = (("x86_64", 202), ("aarch64", 98))
_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """The two system calls, or polling in their place."""

    def __init__(self) -> None:
        number = dict(_SYSCALLS).get(platform.machine()) if sys.platform == "linux" else None
        self._number = number
        if number is not None:
            self._syscall = ctypes.CDLL(None, use_errno=True).syscall
            self._syscall.restype = ctypes.c_long

    def sleep(self, word: memoryview, index: int, address: int, seen: int, seconds: float) -> None:
        """Sleep while `word[index]`, which lies at `address`, is still `seen`; at most this long."""
        if self._number is None:
            deadline = time.monotonic() + seconds
            while word[index] == seen and time.monotonic() < deadline:
                time.sleep(0.0002)
            return
        limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        self._syscall(
            self._number, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0
        )

    def wake(self, address: int) -> None:
        """Wake everybody who sleeps at this address."""
        if self._number is not None:
            self._syscall(self._number, ctypes.c_void_p(address), _WAKE, _EVERYBODY, None, None, 0)


def yield_core() -> None:
    """Let another process run; for the first moments of a wait."""
    os.sched_yield()
