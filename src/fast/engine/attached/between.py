"""How a participant that the host process has forked meets those of other hosts."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any, final

import msgspec

from fast.engine.attached.asking import CoordinatorRendezvous, Door, checked_address
from fast.engine.attached.meeting import Meeting, meet, release
from fast.engine.messages import Job, Part
from fast.transport import ShmTransport, Transport
from fast.transport.pairwise import PairwiseTransport
from fast.transport.tcp import Secret, issue, parse_secret
from fast.transport.tcp.connection import listen, split_address
from fast.transport.tcp.transport import Job as Meant
from fast.transport.tcp.transport import TcpTransport


@final
class BetweenHosts:
    """One participant's. Those of its own host use the shared memory that the host process has made."""

    def __init__(self, id: int, job: Job, arenas: Sequence[int], told: dict[str, Any] | None) -> None:
        assert job.part is not None, "a run on one host has nothing between hosts"
        self._id, self._job, self._part, self._arenas = id, job, job.part, arenas
        self._meant = None if told is None else msgspec.convert(told, Meant, strict=False)

    def told(self) -> dict[str, Any]:
        """What a server of this run has to know, once this worker has met the others."""
        described: dict[str, Any] = msgspec.to_builtins(self._meant, str_keys=True)
        return described

    def connect(self) -> Transport:
        near = ShmTransport(self._id, self._arenas, near_of(self._job, self._part))
        transport = self._meet(near) if self._meant is None else self._come_later(near, self._meant)
        atexit.register(transport.close)  # what it has sent arrives, whatever the script does next
        return transport

    def _meet(self, near: ShmTransport) -> Transport:
        part = self._part
        secret = secret_of(part)
        met = meet(
            Meeting(
                worker=self._id,
                workers=self._job.workers,
                rendezvous=CoordinatorRendezvous(Door(part.coordinator, secret, self._id), release()),
                secret=secret,
                meets_at=checked_address(part.coordinator)[0],
                listen_at=part.listen_at,
                encrypted=secret is not None,
                deadline_s=self._job.deadline_s,
                near=near,
            )
        )
        self._meant = met.job
        return met.transport

    def _come_later(self, near: ShmTransport, meant: Meant) -> Transport:
        """A server's way, on worker 0's host: the workers have met already."""
        secret = secret_of(self._part)
        identity = None if secret is None else issue(secret, meant.session, self._id)
        listener = listen(split_address(meant.directory[0])[0])
        return PairwiseTransport(
            near, lambda woken: TcpTransport(self._id, meant, listener, identity, woken=woken)
        )


def near_of(job: Job, part: Part) -> list[int]:
    """The participants that share this host's memory: its workers, and on worker 0's host the servers."""
    servers = range(job.workers, job.size - len(part.hosts)) if part.number == 0 else range(0)
    return [*job.here, *servers]


def secret_of(part: Part) -> Secret | None:
    return None if part.secret is None else parse_secret(part.secret)
