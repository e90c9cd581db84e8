"""Everything that FAST raises, three branches by blame.

    FastError
    ├── UsageError          you: a wrong call, found before anything starts where that can be
    │   └── NotFinite       a gradient holds NaN or infinity, and you asked to check
    ├── PeerError           they, or the network: who, and whether a retry makes sense
    │   ├── PeerLost        a letter or a contribution can't come any more
    │   │   └── RunEnded    another participant says that the run can't go on, and why
    │   ├── PeerSilent      no sign of life within the deadline
    │   ├── MailboxFull     a peer doesn't read, and its tag doesn't say how letters fold
    │   └── Deadlock        every live participant waits; says who for whom
    ├── WireError           bytes that we refuse
    ├── WorkerFailed        a worker of fast.launch raised; with the worker's traceback
    └── Violation           a checker saw a simulated run break a promise

A message says what was found, what is needed and what to try.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "Deadlock",
    "FastError",
    "MailboxFull",
    "NotFinite",
    "PeerError",
    "PeerLost",
    "PeerSilent",
    "RunEnded",
    "UsageError",
    "Violation",
    "WireError",
    "WorkerFailed",
]


class FastError(Exception):
    """The root: `except FastError` catches everything that FAST raises on purpose."""


class UsageError(FastError):
    """The call can't work as it was made."""


class NotFinite(UsageError):
    """A gradient holds NaN or infinity. Raised only if `check_finite` was asked for."""


class PeerError(FastError):
    """Another participant, or the way to it, failed."""

    retry = False

    def __init__(self, message: str, *, peers: Sequence[int] = (), view: int = 0) -> None:
        super().__init__(message)
        self.peers = tuple(peers)
        self.view = view


class PeerLost(PeerError):
    """What was waited for can't come any more: its sender left or died."""


class RunEnded(PeerLost):
    """Another participant says that the run can't go on. The message is its own."""


class PeerSilent(PeerError):
    """A peer gave no sign of life for the whole deadline."""

    retry = True


class MailboxFull(PeerError):
    """A peer has stopped reading and its letters can't be folded together."""


class Deadlock(PeerError):
    """Every live participant waits for another one."""


class WireError(FastError):
    """A frame that is not ours, not whole, or lies about its contents."""


class WorkerFailed(FastError):
    """A function failed in a worker: in which one, and the traceback there."""

    def __init__(self, who: str, message: str, traceback: str = "") -> None:
        named = message if message.startswith(who) else f"{who} failed: {message}"
        super().__init__(f"{named}\n\n{traceback}".rstrip())
        self.who, self.traceback = who, traceback


class Violation(FastError):
    """A checker saw a simulated run break a promise: which one, when, and what was found."""

    def __init__(self, promise: str, at_ns: int, found: str) -> None:
        super().__init__(f"after {at_ns / 1e9:.6f} s, {promise}: {found}")
        self.promise, self.at_ns, self.found = promise, at_ns, found
