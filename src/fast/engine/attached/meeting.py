"""Workers that were started apart meet: each says where it listens, and learns where the others do."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from fast.engine.attached.arenas import Arenas, can_share
from fast.engine.attached.rendezvous import Rendezvous
from fast.errors import UsageError, WireError
from fast.transport import ShmTransport, Transport
from fast.transport.pairwise import PairwiseTransport
from fast.transport.tcp import Secret, issue, new_secret, parse_secret
from fast.transport.tcp.connection import address_of, listen
from fast.transport.tcp.transport import Job, TcpTransport
from fast.view import Groups

_LOOPBACK = "127.0.0.1"
SPARE_SERVERS = 4
"""Servers beyond one per worker that a job has room for."""


def release() -> str:
    """The version of FAST that runs here; all workers of a job must have the same."""
    return version("fast-training")


class Coming(msgspec.Struct):
    """What a worker brings first."""

    release: str
    workers: int
    host: str
    """Equal for those who can share memory, if `shares`."""
    shares: bool
    name: str
    """The host's."""
    session: str
    """Worker 0's choice: the name of this job."""


@dataclass(frozen=True)
class Meeting:
    """How one worker is to meet the others."""

    worker: int
    workers: int
    rendezvous: Rendezvous
    secret: Secret | None
    """None: worker 0 makes one, and it goes through the rendezvous."""
    meets_at: str = ""
    """A host that all can reach, if the launcher names one."""
    listen_at: str = ""
    """The address of this host that the others can reach, if the user names it."""
    encrypted: bool = True
    deadline_s: float = 60.0
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)


@dataclass(frozen=True)
class Met:
    """What a worker has when all have met."""

    job: Job
    secret: Secret | None
    transport: Transport


def meet(meeting: Meeting) -> Met:
    """Wait until all workers have come; this worker's way to the others."""
    coming = _come(meeting)
    secret = _secret(meeting) if meeting.encrypted else None
    session, size = coming[0].session, meeting.workers * 2 + SPARE_SERVERS
    groups = _groups(coming)
    group = next(group for group in groups if meeting.worker in group)
    arenas = Arenas(session, meeting.worker, group, size) if len(group) > 1 else None
    listener = listen(_address(meeting, coming))
    try:
        where = meeting.rendezvous.exchange("where", address_of(listener).encode(), meeting.deadline_s)
    except BaseException:
        listener.close()
        raise
    directory = {worker: address.decode() for worker, address in enumerate(where)}
    job = Job(session, size, release(), directory, meeting.deadline_s, groups if len(groups) > 1 else ())
    identity = None if secret is None else issue(secret, session, meeting.worker)

    def far(woken: Callable[[], None] = lambda: None) -> TcpTransport:
        return TcpTransport(meeting.worker, job, listener, identity, woken=woken)

    if arenas is None:
        return Met(job, secret, far())
    near = ShmTransport(meeting.worker, arenas.fetch(meeting.deadline_s), group)
    return Met(job, secret, PairwiseTransport(near, far))


def _come(meeting: Meeting) -> list[Coming]:
    """Everybody who comes; all of them must have come to the same job."""
    session = os.urandom(8).hex() if meeting.worker == 0 else ""
    mine = Coming(release(), meeting.workers, host_key(), can_share(), socket.gethostname(), session)
    brought = meeting.rendezvous.exchange("come", msgspec.json.encode(mine), meeting.deadline_s)
    try:
        coming = [msgspec.json.decode(each, type=Coming) for each in brought]
    except msgspec.MsgspecError as error:
        raise WireError(f"what a worker brought to the rendezvous can't be read: {error}") from error
    for worker, each in enumerate(coming):
        if each.release != mine.release:
            raise UsageError(
                f"worker {meeting.worker} has FAST {mine.release} and worker {worker} has {each.release}. Install the "
                "same version on all hosts."
            )
        if each.workers != mine.workers:
            raise UsageError(
                f"worker {meeting.worker} was told of {mine.workers} workers and worker {worker} of {each.workers}. "
                "Start all of them with the same number."
            )
    return coming


def _groups(coming: Sequence[Coming]) -> Groups:
    """Which workers share memory, in the order of their lowest: all workers come to the same groups."""
    found: dict[tuple[str, int], list[int]] = {}
    for worker, each in enumerate(coming):
        found.setdefault((each.host, -1 if each.shares else worker), []).append(worker)
    return tuple(map(tuple, found.values()))


def _address(meeting: Meeting, coming: Sequence[Coming]) -> str:
    """Where to listen: nowhere that others than the workers need."""
    mine = coming[meeting.worker]
    if meeting.listen_at:
        address = meeting.listen_at
    elif all(each.host == mine.host for each in coming):
        return _LOOPBACK
    else:
        elsewhere = next(each.name for each in coming if each.host != mine.host)
        address = address_towards(meeting.meets_at or elsewhere)
    check_private(address, named=bool(meeting.listen_at))
    return address


def _secret(meeting: Meeting) -> Secret:
    """The one that was given, or one that worker 0 hands to the others."""
    if meeting.secret is not None:
        return meeting.secret
    made = new_secret() if meeting.worker == 0 else None
    if made is not None and meeting.workers > 1 and not meeting.rendezvous.private:
        meeting.say(
            "fast: warning: no secret was given, so worker 0 has made one and handed it to the others through the "
            "launcher's own store, which isn't encrypted. Whoever can read that can join. Set FAST_SECRET_FILE to "
            "the path of a file with mode 0600 on every host (`fast secret job.secret` makes one)."
        )
    text = b"" if made is None else made.text().encode()
    shared = meeting.rendezvous.exchange("secret", text, meeting.deadline_s)[0]
    return parse_secret(shared.decode())


# Where this is


def host_key() -> str:
    """Equal for two processes that can share memory: same boot, same namespaces of network and processes."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    parts = [boot.read_text().strip() if boot.is_file() else socket.gethostname()]
    for kind in ("net", "pid", "ipc"):
        place = Path(f"/proc/self/ns/{kind}")
        parts.append(os.readlink(place) if place.exists() else "")
    return " ".join(parts)


def address_towards(host: str, port: int = 9) -> str:
    """The address of ours from which this host is reached. Nothing is sent."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except socket.gaierror as error:
        raise UsageError(
            f"the host name {host!r} can't be resolved ({error.strerror}). Give an address, or a name that every "
            "host knows."
        ) from error
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(place)
        except OSError as error:
            raise UsageError(f"there is no route to {host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def check_private(address: str, *, named: bool) -> None:
    """Refuse to listen where the whole internet may call, unless the user has named that very address."""
    if named:
        return
    if ipaddress.ip_address(address).is_global or ipaddress.ip_address(address).is_unspecified:
        raise UsageError(
            f"this host would listen at {address}, which is a public address. Set FAST_LISTEN to a private address of "
            f"this host, or to {address} if that is meant."
        )
