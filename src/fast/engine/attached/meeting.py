"""Workers that were started apart meet: each says where it listens, and learns where the others do."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from fast.engine.attached.arenas import Arenas, can_share
from fast.engine.attached.rendezvous import Rendezvous
from fast.engine.limits import SPARE_PARTICIPANTS
from fast.engine.seat import say
from fast.errors import UsageError, WireError
from fast.transport import ShmTransport, Transport
from fast.transport.pairwise import PairwiseTransport
from fast.transport.tcp import Secret, issue, new_secret, parse_secret
from fast.transport.tcp.connection import address_of, listen
from fast.transport.tcp.transport import Job, TcpTransport
from fast.view import Groups

_LOOPBACK = "127.0.0.1"


def release() -> str:
    """The version of FAST that runs here; all workers of a job must have the same."""
    return version("fast-training")


class Coming(msgspec.Struct):
    """What a worker brings first."""

    release: str
    workers: int
    host: str
    memory: str
    """Equal for those who share memory."""
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
    """None: worker 0 makes one. It goes through the arenas' door, or if there are several hosts through the
    rendezvous."""
    meets_at: str = ""
    """A host that all can reach, if the launcher names one."""
    listen_at: str = ""
    """The address of this host that the others can reach, if the user names it."""
    encrypted: bool = True
    deadline_s: float = 60.0
    near: ShmTransport | None = None
    """The way to those of this host, if the process that has started all of them has made it."""
    say: Callable[[str], None] = say

    @property
    def makes_secret(self) -> bool:
        return self.encrypted and self.secret is None


@dataclass(frozen=True)
class Met:
    """What a worker has when all have met."""

    job: Job
    secret: Secret | None
    transport: Transport


def meet(meeting: Meeting) -> Met:
    """Wait until all workers have come; this worker's way to the others."""
    coming = _come(meeting)
    session, near = coming[0].session, meeting.near
    size = meeting.workers * 2 + SPARE_PARTICIPANTS if near is None else near.size
    groups = _groups(coming)
    group = next(group for group in groups if meeting.worker in group)
    made = new_secret() if meeting.worker == 0 and meeting.makes_secret else None
    word = b"" if made is None else made.text().encode()
    shares = near is None and len(group) > 1
    with ExitStack() as undo:
        listener = undo.enter_context(listen_here(_address(meeting, coming)))
        arenas = Arenas(session, meeting.worker, group, size, word) if shares else None
        where = meeting.rendezvous.exchange("where", address_of(listener).encode(), meeting.deadline_s)
        fetched, words = ([], {}) if arenas is None else arenas.fetch(meeting.deadline_s)
        secret = meeting.secret
        if meeting.makes_secret:
            alone = shares and len(group) == meeting.workers
            secret = parse_secret((words[0] if alone else _handed(meeting, word)).decode())
        undo.pop_all()
    if shares:
        near = ShmTransport(meeting.worker, fetched, group)
    directory = {worker: address.decode() for worker, address in enumerate(where)}
    job = Job(session, size, release(), directory, meeting.deadline_s, groups if len(groups) > 1 else ())
    identity = None if secret is None or not meeting.encrypted else issue(secret, session, meeting.worker)
    sharing = () if near is None else near.shared_with

    def far(woken: Callable[[], None] = lambda: None) -> TcpTransport:
        return TcpTransport(meeting.worker, job, listener, identity, woken=woken, near=sharing)

    return Met(job, secret, far() if near is None else PairwiseTransport(near, far))


def _come(meeting: Meeting) -> list[Coming]:
    """Everybody who comes; all of them must have come to the same job."""
    session = os.urandom(8).hex() if meeting.worker == 0 else ""
    name, memory = socket.gethostname(), _memory(meeting)
    mine = Coming(release(), meeting.workers, host_key(), memory, name, session)
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
    found: dict[str, list[int]] = {}
    for worker, each in enumerate(coming):
        found.setdefault(each.memory, []).append(worker)
    return tuple(map(tuple, found.values()))


def _memory(meeting: Meeting) -> str:
    """That of this host; of those whom one process has started; or nobody else's."""
    if meeting.near is not None:
        return f"{host_key()} of {min(meeting.near.shared_with | {meeting.worker})}"
    return host_key() if can_share() else f"{host_key()} of {meeting.worker}"


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


def _handed(meeting: Meeting, word: bytes) -> bytes:
    """The secret that worker 0 has made, by way of the rendezvous."""
    if meeting.worker == 0 and not meeting.rendezvous.private:
        meeting.say(
            "warning: no secret was given, so worker 0 has made one and handed it to the others through the "
            "launcher's own store, which isn't encrypted. Whoever can read that can join. Set FAST_SECRET_FILE to "
            "the path of a file with mode 0600 on every host (`fast secret job.secret` makes one)."
        )
    return meeting.rendezvous.exchange("secret", word, meeting.deadline_s)[0]


# Where this is


def host_key() -> str:
    """Equal for two processes that can share memory: same boot, same user, same namespaces."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    parts = [boot.read_text().strip() if boot.is_file() else socket.gethostname(), str(os.getuid())]
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


def listen_here(address: str) -> socket.socket:
    """A listening socket at one of this host's addresses."""
    try:
        return listen(address)
    except OSError as error:
        raise UsageError(
            f"can't listen at {address}: {error.strerror}. FAST_LISTEN names an address of this very host."
        ) from error


def check_private(address: str, *, named: bool) -> None:
    """Refuse to listen where the whole internet may call, unless the user has named that very address."""
    if named:
        return
    if ipaddress.ip_address(address).is_global or ipaddress.ip_address(address).is_unspecified:
        raise UsageError(
            f"this host would listen at {address}, which is a public address. Set FAST_LISTEN to a private address of "
            f"this host, or to {address} if that is meant."
        )
