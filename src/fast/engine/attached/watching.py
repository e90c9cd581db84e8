"""A host's own ear and voice in a run on several hosts: it hears why others end, and tells why its workers did.

Workers that are killed can't say so. Their host process sees it, and this tells all other hosts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import final

import msgspec

from fast.engine.attached.asking import Ask, Door, ask, checked_address
from fast.engine.attached.between import secret_of
from fast.engine.attached.coordinator import COME, WHERE
from fast.engine.attached.meeting import Coming, address_towards, listen_here, release
from fast.engine.messages import Failure, Job, Outcome, Part
from fast.errors import FastError
from fast.transport import Phase
from fast.transport.tcp import issue
from fast.transport.tcp.transport import Job as Meant
from fast.transport.tcp.transport import TcpTransport

_NAP_S, _FAREWELL_S = 0.2, 3.0


@final
class Watcher:
    """One host's. `stop` is called, from another thread, with the reason why the run can't go on."""

    def __init__(self, job: Job, stop: Callable[[str], None]) -> None:
        assert job.part is not None, "a run on one host has nobody to watch"
        self._job, self._part, self._stop = job, job.part, stop
        self._transport: TcpTransport | None = None
        self._joined, self._over = threading.Event(), False
        self.heard = ""
        """Why the run can't go on, as another host says."""
        self._thread = threading.Thread(target=self._run, name="fast-watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, why: str) -> None:
        """All other hosts are to end for this reason."""
        self._over = True
        if self._transport is None and self._all_have_met(why):
            self._joined.wait(_FAREWELL_S)
        self._pass_on(why)

    def _pass_on(self, why: str) -> None:
        """Also of what others have said: a worker that has heard it may have ended before it has told anybody."""
        self._over, transport = True, self._transport
        if transport is not None:
            transport.fail(why)
            self._await_ways(transport)
            transport.close()

    def _all_have_met(self, why: str) -> bool:
        """Whether they talk to each other now. If not, the coordinator tells those who wait there why they end."""
        end = Ask(release(), "end", self._part.number, "", why.encode())
        try:
            return bool(ask(self._door(), end, 0.0))
        except FastError:
            return True  # it has gone, as it does when all have met

    def finish(self) -> str:
        """This host's workers have ended well. Wait for the others; returns why the run has failed, or nothing."""
        self._over, transport = True, self._transport
        if transport is not None:
            transport.close()
            ended = transport.ended
            self.heard = self.heard or ("" if ended is None else str(ended))
        return self.heard

    def verdict(self, outcome: Outcome) -> Outcome:
        """How the run has ended on all hosts, given how it did here. The others learn of a failure here."""
        failure = outcome.failure
        if failure is None:
            why = self.finish()
            return Outcome(failure=Failure("", why)) if why else outcome
        if self.heard or failure.elsewhere:
            why = self.heard or failure.message
            self._pass_on(why)
            return Outcome(failure=Failure("", why))
        why = with_host(failure, self._part)
        self.tell(why)
        return Outcome(failure=Failure(failure.who, why, failure.traceback, failure.usage))

    # In its thread

    def _run(self) -> None:
        try:
            transport = self._join()
        except FastError as error:
            if not self._over:
                self._hear(str(error))
            return
        while not self._over:
            token = transport.listen()
            ended = transport.ended
            if ended is not None:
                self._hear(str(ended))
                return
            transport.sleep(token, _NAP_S)

    def _hear(self, why: str) -> None:
        self.heard = why
        self._stop(why)

    def _join(self) -> TcpTransport:
        come = self._look(COME)
        session = msgspec.json.decode(come[0], type=Coming).session
        where = self._look(WHERE)
        job, part = self._job, self._part
        meant = Meant(
            session, job.size, release(), {n: each.decode() for n, each in enumerate(where)}, job.deadline_s
        )
        id, secret = job.size - 1 - part.number, secret_of(part)
        identity = None if secret is None else issue(secret, session, id)
        listener = listen_here(part.listen_at or address_towards(checked_address(part.coordinator)[0]))
        transport = TcpTransport(id, meant, listener, identity, friends=friends_of(part))
        transport.set_phase(Phase.LEFT)  # nobody waits for it
        self._transport = transport
        self._joined.set()
        return transport

    def _look(self, topic: str) -> list[bytes]:
        return ask(self._door(), Ask(release(), "look", self._part.number, topic), self._job.deadline_s)

    def _door(self) -> Door:
        return Door(self._part.coordinator, secret_of(self._part), self._part.number)

    def _await_ways(self, transport: TcpTransport) -> None:
        """The run may fail before this host is connected with all others. They hear of it when they are."""
        until, own = time.monotonic() + _FAREWELL_S, self._part.workers_of(self._part.number)
        others = [worker for worker in friends_of(self._part) if worker not in own]
        while time.monotonic() < until and not transport.connected_with(others):
            token = transport.listen()
            transport.sleep(token, _NAP_S)


def friends_of(part: Part) -> list[int]:
    """Workers with whom a host exchanges news: two of each host, its own too, whose way is never cut."""
    everywhere = [part.workers_of(host) for host in range(len(part.hosts))]
    return sorted({worker for workers in everywhere for worker in (workers[0], workers[-1])})


def with_host(failure: Failure, part: Part) -> str:
    """The sentence about a failure, with the host where it happened."""
    who = f"{failure.who} on {part.hosts[part.number]}"
    if failure.message.startswith(failure.who):
        return who + failure.message.removeprefix(failure.who)
    return f"{who} failed: {failure.message}"
