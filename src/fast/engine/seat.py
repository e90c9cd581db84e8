"""A seat: what a participant knows about its place when it starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from fast.core import Strategy
from fast.errors import UsageError
from fast.runtime import Journal, Logbook
from fast.trace import Observer
from fast.transport import MemoryHub, MemoryTransport, Transport
from fast.view import Groups


@dataclass
class Seat:
    """One participant's place in a run, with the ways to reach the others."""

    id: int
    workers: int
    connect: Callable[[], Transport]
    start_servers: Callable[[Strategy, int], None]
    """Start the program of servers, each a participant of its own. Worker 0 calls it in `join`."""
    say: Callable[[str], None]
    """One line for the user."""
    seed: int | None = None
    """None: nobody asked for one, and with one worker torch's generator is left alone."""
    strategy: str | Strategy | None = None
    """What whoever started the run asks for; overrides what the script says."""
    deadline_s: float = 60.0
    groups: Groups = ()
    """In which order sums are made, if somebody says so; else the workers of each host are one group."""
    at_exit: Callable[[Callable[[], None]], None] = lambda leave: None
    """Where nobody of ours runs the script: takes what is to be done when it ends."""
    journal: Journal | None = None
    """What records this participant, or gives it a record's answers."""
    logbook: Logbook | None = None
    """Where this participant writes what it measures and what its script logs."""
    sessions: list[Any] = field(default_factory=list)
    """What has been joined here."""
    epochs: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """How often each loader has been gone through, by its identity (the loader is kept with it)."""
    strategy_from: str = "--strategy"
    """How the strategy was asked for."""

    @property
    def observers(self) -> tuple[Observer, ...]:
        """What watches this participant's training from outside its script."""
        return () if self.logbook is None else (self.logbook.collect,)


_current: ContextVar[Seat | None] = ContextVar("fast_seat", default=None)


def seat_taken() -> Seat | None:
    """The seat of the participant that runs here, once it has one."""
    return _current.get()


def take(seat: Seat) -> Seat:
    """From now on this participant runs here."""
    _current.set(seat)
    return seat


@contextmanager
def seated(seat: Seat) -> Iterator[Seat]:
    """Run the body as this participant."""
    token = _current.set(seat)
    try:
        yield seat
    finally:
        _current.reset(token)


def seat_alone() -> Seat:
    """The seat of a plain script."""
    hub = MemoryHub(1)

    def start_servers(strategy: Strategy, count: int) -> None:
        raise UsageError(
            f"{strategy!r} needs {count} server{'s' * (count > 1)}, and a plain script has none. "
            "Start it with `fast run --workers N script.py`."
        )

    return Seat(0, 1, lambda: MemoryTransport(0, hub), start_servers, say=say)


def say(line: str) -> None:
    """One line for the user of a script that no program of ours watches."""
    print(f"fast: {line}\n", end="", file=sys.stderr)  # one piece, so that no other worker's gets in between
