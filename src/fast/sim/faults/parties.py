"""Whom a clause is about, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fast.errors import UsageError
from fast.sim.faults.quantities import check_ns, show_ids, show_time


@dataclass(frozen=True)
class Group:
    """Some workers, some servers, or both. Servers are counted for themselves, from 0."""

    workers: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", tuple(sorted(set(self.workers))))
        object.__setattr__(self, "servers", tuple(sorted(set(self.servers))))
        if not self.workers and not self.servers:
            raise UsageError("the group is empty; name at least one worker or server")
        if min((*self.workers, *self.servers)) < 0:
            raise UsageError(f"{self} has a negative number; workers and servers are counted from 0")

    def ids(self, workers: int) -> frozenset[int]:
        """As a simulation of so many workers numbers them."""
        return frozenset((*self.workers, *(workers + server for server in self.servers)))

    def overlaps(self, other: Group) -> bool:
        return bool({*self.workers} & {*other.workers} or {*self.servers} & {*other.servers})

    @property
    def several(self) -> bool:
        return len(self.workers) + len(self.servers) > 1

    @property
    def bare(self) -> str:
        """Where it goes without saying that workers are meant."""
        return str(self) if self.servers else show_ids(self.workers)

    def __str__(self) -> str:
        parts = [_counted("worker", self.workers), _counted("server", self.servers)]
        return " with ".join(part for part in parts if part)


def _counted(noun: str, ids: tuple[int, ...]) -> str:
    return f"{noun}{'s' * (len(ids) > 1)} {show_ids(ids)}" if ids else ""


def only(*workers: int) -> Group:
    """Just these workers."""
    return Group(workers)


@dataclass(frozen=True)
class Time:
    """So long after the start; as a length, so long."""

    ns: int

    def __post_init__(self) -> None:
        check_ns(self.ns, "a time of", least=0)

    def __str__(self) -> str:
        return show_time(self.ns)


@dataclass(frozen=True)
class Step:
    """When so many steps are done; as a length, so many steps."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise UsageError(f"step {self.number} can't be; steps are counted from 0")

    def __str__(self) -> str:
        return f"step {self.number}"


When: TypeAlias = Time | Step
START = Time(0)


@dataclass(frozen=True)
class Span:
    """From when, and how long; without a length, to the end."""

    start: When = START
    length: When | None = None

    def __post_init__(self) -> None:
        if self.length in (Time(0), Step(0)):
            raise UsageError("a span of no length; leave the clause out, or give it some time")
        if isinstance(self.length, Step) and not isinstance(self.start, Step):
            raise UsageError(
                f"from {self.start} for {self.length.number} steps: steps are counted from a step; "
                "write `from step 10 for 5 steps`, or give a time for how long"
            )

    @property
    def lasts(self) -> str:
        """How long, in words."""
        match self.length:
            case Step(number):
                return f" for {number} step{'s' * (number > 1)}"
            case Time():
                return f" for {self.length}"
        return ""

    def __str__(self) -> str:
        """With a blank before it, or nothing if it is always."""
        if self.length == Step(1):
            return f" at {self.start}"
        return ("" if self.start == START else f" from {self.start}") + self.lasts


ALWAYS = Span()


@dataclass(frozen=True)
class Route:
    """Which letters: those of these senders to these receivers; None for all."""

    senders: Group | None = None
    receivers: Group | None = None

    def __str__(self) -> str:
        """With a blank before it, or nothing if it is every letter."""
        return (f" from {self.senders.bare}" if self.senders else "") + (
            f" to {self.receivers.bare}" if self.receivers else ""
        )

    @property
    def named(self) -> tuple[Group, ...]:
        return tuple(group for group in (self.senders, self.receivers) if group is not None)


EVERYWHERE = Route()
