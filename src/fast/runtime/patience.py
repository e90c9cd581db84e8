"""How long to wait for a peer: one deadline that the user sets, and nothing else.

A wait ends with an error when the peer has given no sign of life for the deadline, or when every
live participant waits for another. A peer that is alive and computing is never given up, but is
named once per deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fast.errors import Deadlock, PeerSilent
from fast.transport import Phase, Transport
from fast.transport.base import Patience

_SETTLE_NS, _LOOKS = 3_000_000_000, 3
"""Everybody must have waited this long without a change, and have looked so often meanwhile for what it waits for,
before it is called a deadlock: where a machine stands still (it is out of memory, or asleep), time says nothing."""
TOGETHER = "fast.snapshot"
"""What a worker waits for in a call that all workers must make after the same step."""
_ANNOUNCE_NS = 200_000_000
_FRESH_NS = 5_000_000_000


class _Frozen(NamedTuple):
    """When everybody was first seen waiting."""

    numbers: tuple[int, ...]
    """Which wait of each that was."""
    looks: dict[int, int]
    since_ns: int


class Deadline(Patience):
    """The patience of one participant."""

    def __init__(
        self,
        transport: Transport,
        participants: tuple[int, ...],
        deadline_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._transport, self._participants, self._say = transport, participants, say
        self._deadline_ns = int(deadline_s * 1e9)
        self._began_ns = 0
        self._named = 0
        self._frozen: _Frozen | None = None
        self._announced, self._looks = False, 0

    def begin(self) -> None:
        """A wait begins."""
        self._began_ns, self._named, self._frozen = time.monotonic_ns(), 0, None

    def end(self) -> None:
        """It is over; nobody needs to know any more what it was for."""
        if self._announced:
            self._transport.set_waits("")
            self._announced = False

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def check(self, peers: tuple[int, ...], why: str) -> None:
        now = time.monotonic_ns()
        waited = now - self._began_ns
        if waited > _ANNOUNCE_NS and not self._announced:
            self._transport.set_waits(f"{why} of {', '.join(map(str, peers)) or 'anybody'}")
            self._announced = True
        if self._announced:
            self._looks += 1
            self._transport.set_looks(self._looks)
        self._check_alive(peers, why, now)
        if self._deadline_ns and waited // self._deadline_ns > self._named:
            self._named = waited // self._deadline_ns
            self._name(peers, why, waited)
        if waited > _SETTLE_NS:
            self._check_deadlock(now)

    def _check_alive(self, peers: tuple[int, ...], why: str, now: int) -> None:
        for peer in peers:
            status, trouble = self._transport.status(peer), self._transport.trouble(peer)
            if status.phase >= Phase.LEFT:
                continue
            silent = now - status.alive_ns
            if status.alive_ns and silent > self._deadline_ns:
                cause = (
                    "Is its process stopped or its machine overloaded?" if trouble is None else trouble.why
                )
                found = f"participant {peer} has given no sign of life for {silent / 1e9:.0f} s"
            elif trouble is not None and now - trouble.since_ns > self._deadline_ns:  # others hear of it
                cause = trouble.why
                found = (
                    f"nothing gets through to participant {peer} for {(now - trouble.since_ns) / 1e9:.0f} s"
                )
            else:
                continue
            raise PeerSilent(
                f"{found} (the deadline is {self._deadline_ns / 1e9:.0f} s); it had done {status.steps} steps, and "
                f"participant {self._transport.id} waits for its {why}. {cause[:1].upper()}{cause[1:]}"
                f"{'' if cause.endswith('?') else '.'} A longer --deadline waits longer.",
                peers=(peer,),
            )

    def _name(self, peers: tuple[int, ...], why: str, waited: int) -> None:
        there = ", ".join(f"{peer} ({self._state(peer)})" for peer in peers)
        self._say(
            f"participant {self._transport.id} has waited {waited / 1e9:.0f} s for {why} of {there or 'anybody'}"
        )

    def _state(self, peer: int) -> str:
        status = self._transport.status(peer)
        silent_ns = time.monotonic_ns() - status.alive_ns
        life = (
            "alive" if silent_ns < _FRESH_NS or not status.alive_ns else f"silent for {silent_ns / 1e9:.0f} s"
        )
        return f"{life}, {'not joined yet' if status.phase < Phase.JOINED else f'at step {status.steps}'}"

    def _check_deadlock(self, now: int) -> None:
        """All live ones wait, and go on waiting for the same thing."""
        statuses = {peer: self._transport.status(peer) for peer in self._participants}
        live = {p: s for p, s in statuses.items() if s.phase < Phase.LEFT}
        if any(not s.waits or now - s.alive_ns > _FRESH_NS for s in live.values()):
            self._frozen = None
            return
        numbers = tuple(s.wait_number for s in live.values())
        frozen = self._frozen
        if frozen is None or frozen.numbers != numbers:
            self._frozen = _Frozen(numbers, {peer: s.looks for peer, s in live.items()}, now)
        elif now - frozen.since_ns > _SETTLE_NS and all(
            s.looks >= frozen.looks[peer] + _LOOKS for peer, s in live.items()
        ):
            raise Deadlock(_why({peer: s.waits for peer, s in sorted(live.items())}), peers=tuple(live))


def _why(waits: Mapping[int, str]) -> str:
    """What each of them waits for, and what to do about it."""
    elsewhere = [peer for peer, what in waits.items() if not what.startswith(TOGETHER)]
    waiting = "; ".join(f"{peer} waits for {what}" for peer, what in waits.items())
    if 0 < len(elsewhere) < len(waits):
        others = f"worker{'s' * (len(elsewhere) > 1)} {', '.join(map(str, elsewhere))}"
        return (
            f"{TOGETHER} must be called by all workers at the same step with this strategy; {others} did not. "
            "Call it outside of any `if fast.is_main()`, and write its result to a file inside."
        )
    return (
        f"every live participant waits, so nobody can go on: {waiting}. "
        "Check that each awaited letter or mean() is really sent or joined by its peers."
    )
