"""What hosts and workers ask the coordinator: one question a connection, and one answer when it is known.

    length 4 | msgpack

A question that can't be asked is repeated until the deadline: the coordinator may be started last.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Literal, final

import msgspec

from fast.engine.attached.rendezvous import Rendezvous
from fast.errors import FastError, PeerLost, PeerSilent, RunEnded, UsageError, WireError
from fast.transport.tcp import Secret, client_context, issue
from fast.transport.tcp.connection import split_address
from fast.transport.tcp.driver import in_words

LENGTH = struct.Struct("<I")
ASK_BYTES, ANSWER_BYTES = 64 << 10, 64 << 20
SESSION = "meeting"
"""In the certificates of those who talk to a coordinator. A session of a job has another name."""
_NAP_S, _MARGIN_S = 0.1, 3.0
_SHORTEST_S = 1.0
"""An answer may take so long, even if there is no time left."""
_PASSING = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH,
            errno.ECONNABORTED)  # fmt: skip
"""What may be better in a moment."""


class Ask(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A question. Whoever brings something learns what all bring, and so does who only looks."""

    release: str
    """The version of FAST."""
    what: Literal["bring", "look", "end"]
    number: int
    """The host's, or the worker's if workers bring this."""
    topic: str = ""
    value: bytes = b""


class Answer(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What everybody brings, or why that won't be known."""

    values: list[bytes] = []
    refusal: str = ""
    blame: Literal["", "usage", "silent", "lost"] = ""
    absent: list[int] = []


@dataclass(frozen=True)
class Door:
    """Where the coordinator is, and how to talk to it."""

    address: str
    secret: Secret | None
    """None: not encrypted."""
    number: int
    """Number of the host that asks."""


def framed(message: Ask | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def ask(door: Door, question: Ask, deadline_s: float) -> list[bytes]:
    """What everybody brings. Raises one sentence that names the cause."""
    place, until = resolved(door.address), time.monotonic() + deadline_s
    while True:
        try:
            answer = _ask_once(door, place, question, until)
            break
        except (ssl.SSLError, WireError) as error:
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                _again(door, OSError(errno.ECONNRESET, "it has closed the connection"), until, deadline_s)
                continue
            why = in_words(error) if isinstance(error, ssl.SSLError) else str(error)
            raise PeerLost(f"the coordinator at {door.address} can't be talked to: {why}") from error
        except OSError as error:
            _again(door, error, until, deadline_s)
    if answer.refusal:
        raise _error_of(answer)
    return answer.values


def _again(door: Door, error: OSError, until: float, deadline_s: float) -> None:
    """Wait a little before the next try, if there is one."""
    passing = isinstance(error, TimeoutError) or error.errno in _PASSING
    if not passing or time.monotonic() >= until:
        raise PeerSilent(_unreachable(door.address, error, deadline_s)) from error
    time.sleep(min(_NAP_S, max(0.0, until - time.monotonic())))


def _error_of(answer: Answer) -> FastError:
    match answer.blame:
        case "usage":
            return UsageError(answer.refusal)
        case "silent":
            return PeerSilent(answer.refusal, peers=answer.absent)
        case _:
            return RunEnded(answer.refusal)


def resolved(address: str) -> tuple[str, int]:
    """The numbers behind `host:port`."""
    host, port = checked_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(
            f"the host name {host!r} can't be resolved ({error.strerror}). Give an address, or a name that every "
            "host knows: see /etc/hosts."
        ) from error
    return str(found[0][4][0]), port


def checked_address(address: str) -> tuple[str, int]:
    try:
        host, port = split_address(address)
    except ValueError:
        host, port = "", 0
    if not host or not 0 < port < 1 << 16:
        raise UsageError(f"{address!r} isn't an address: HOST:PORT is needed, such as 10.0.0.5:7077")
    return host, port


def _ask_once(door: Door, place: tuple[str, int], question: Ask, until: float) -> Answer:
    left = max(_SHORTEST_S, until - time.monotonic())
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(place, timeout=left))
        if door.secret is not None:
            context = client_context(issue(door.secret, SESSION, door.number))
            sock = stack.enter_context(context.wrap_socket(sock))
        sock.sendall(framed(question))
        # Its own deadline began earlier than ours, and it knows who is missing.
        sock.settimeout(left + _MARGIN_S)
        body = received(sock, ANSWER_BYTES)
        try:
            return msgspec.msgpack.decode(body, type=Answer)
        except ValueError as error:
            raise WireError(f"its answer can't be read: {error}") from error


def received(sock: socket.socket, limit_bytes: int) -> bytes:
    """The body of one message."""
    (length,) = LENGTH.unpack(_read(sock, LENGTH.size))
    if length > limit_bytes:
        raise WireError("something else than FAST answers there")
    return _read(sock, length)


def _read(sock: socket.socket, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        part = sock.recv(min(nbytes - len(data), 1 << 16))
        if not part:
            raise OSError(errno.ECONNRESET, "it has closed the connection")
        data += part
    return bytes(data)


def _unreachable(address: str, error: OSError, deadline_s: float) -> str:
    tried = f"the coordinator at {address} could not be reached for {deadline_s:.0f} s"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return (
            f"{tried}: no answer comes back. The host is down, or a firewall drops the packets: open TCP between the "
            "hosts (`fast doctor` shows who reaches whom)."
        )
    if error.errno == errno.ECONNREFUSED:
        return (
            f"{tried}: the host answers, and nobody listens at that port. Does `fast run --hosts` run there, with this "
            "port? Has it already ended?"
        )
    if error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED):
        return (
            f"{tried}: it closes the connection. Does something else use that port, or was only one side started with "
            "--plain-tcp?"
        )
    return f"{tried}: {error.strerror or error}. Is the address right, and is the host in the same network?"


@final
class CoordinatorRendezvous(Rendezvous):
    """Over the coordinator, with which only those talk who have the secret."""

    private = True

    def __init__(self, door: Door, release: str) -> None:
        self._door, self._release = door, release

    def exchange(self, topic: str, mine: bytes, deadline_s: float) -> list[bytes]:
        return ask(self._door, Ask(self._release, "bring", self._door.number, topic, mine), deadline_s)

    def leave(self, deadline_s: float) -> None:
        """The coordinator knows by itself when everybody has been answered."""
