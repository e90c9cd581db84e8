"""What `fast doctor` of one host asks that of another: an echo, small and large, and whom that one reaches in turn."""

from __future__ import annotations

import contextlib
import errno
import platform
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import msgspec
import torch

from fast.engine.attached.asking import LENGTH, received
from fast.engine.attached.meeting import release
from fast.errors import WireError
from fast.transport.tcp import Secret, client_context, issue, peer_of, server_context
from fast.transport.tcp.driver import in_words

_SESSION = "doctor"
_LARGE_BYTES, _LIMIT_BYTES = 256 << 10, 1 << 20
_VISITORS = 16
_IP_MTU = 14
_CLOCKS_S = 5.0
"""Clocks that are further apart make logs of two hosts hard to compare."""


class Finding(msgspec.Struct):
    """One line of the doctor."""

    check: str
    found: str
    ok: bool = True
    advice: str = ""
    """What to do, if it isn't."""


class Facts(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What should be the same on all hosts."""

    release: str
    python: str
    torch: str
    clock_s: float


class Question(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    what: Literal["echo", "probe"]
    payload: bytes = b""
    hosts: list[str] = []
    """For a probe: whom to try."""


class Reply(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    facts: Facts
    payload: bytes = b""
    findings: list[Finding] = []


@dataclass(frozen=True)
class Line:
    """How doctors talk: the port that all of them use, the secret, and how long to wait."""

    port: int
    secret: Secret | None
    patience_s: float


def facts() -> Facts:
    return Facts(release(), platform.python_version(), str(torch.__version__), time.time())


# The side that answers


@final
class Listening:
    """Answers other doctors in a thread, until it is closed."""

    def __init__(self, listener: socket.socket, line: Line) -> None:
        self._listener, self._line = listener, line
        self._identity = None if line.secret is None else issue(line.secret, _SESSION, 0)
        self._room = threading.BoundedSemaphore(_VISITORS)
        listener.setblocking(True)
        threading.Thread(target=self._run, name="fast-doctor", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(visitor,), daemon=True).start()
            else:
                visitor.close()

    def _serve(self, visitor: socket.socket) -> None:
        try:
            # A stranger, or a connection that breaks: the other side says what is wrong.
            with contextlib.suppress(OSError, WireError, ValueError), contextlib.ExitStack() as stack:
                visitor.settimeout(self._line.patience_s)
                sock = stack.enter_context(visitor)
                if self._identity is not None:
                    sock = stack.enter_context(
                        server_context(self._identity).wrap_socket(visitor, server_side=True)
                    )
                    peer_of(sock, self._identity)
                question = msgspec.msgpack.decode(received(sock, _LIMIT_BYTES), type=Question)
                found = [] if question.what == "echo" else probe_all(question.hosts, self._line)
                _send(sock, Reply(facts(), question.payload, found))
        finally:
            self._room.release()


# The side that asks


def probe_all(hosts: Sequence[str], line: Line) -> list[Finding]:
    """What this host finds on the way to each of these."""
    return [finding for host in hosts for finding in probe(host, line)]


def probe(host: str, line: Line) -> list[Finding]:
    """What this host finds on the way to another one, where a doctor listens."""
    name = f"name {host}"
    try:
        address = str(socket.getaddrinfo(host, line.port, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror as error:
        advice = "give an address, or add the name to /etc/hosts or DNS on every host"
        return [Finding(name, f"can't be resolved ({error.strerror})", False, advice)]
    found = [Finding(name, address)]
    way = f"way to {host}"
    try:
        began = time.time()
        small, mtu = _ask(address, line, Question("echo", b"x"))
        took = time.time() - began
    except (OSError, WireError, ValueError) as error:
        return [*found, Finding(way, *_in_words(error, line))]
    found.append(Finding(way, f"answers on port {line.port}{'' if line.secret is None else ' with TLS'}"))
    found.append(_large(host, address, line, mtu))
    return found + _compare(host, small.facts, began + took / 2)


def ask_to_probe(host: str, others: Sequence[str], line: Line) -> list[Finding]:
    """What another host finds on its ways to these."""
    patient = Line(line.port, line.secret, line.patience_s * (2 * len(others) + 1))
    try:
        reply, _ = _ask(socket.gethostbyname(host), patient, Question("probe", hosts=list(others)))
    except (OSError, WireError, ValueError) as error:
        return [Finding(f"from {host}", *_in_words(error, line))]
    ways = [finding for finding in reply.findings if finding.check.startswith(("way", "name", "large"))]
    return [Finding(f"from {host}: {each.check}", each.found, each.ok, each.advice) for each in ways]


def _large(host: str, address: str, line: Line, mtu: int | None) -> Finding:
    """Packets as large as the way allows: small ones come through anywhere."""
    check, size = f"large packets to {host}", f"MTU {mtu}" if mtu else "MTU unknown"
    try:
        reply, _ = _ask(address, line, Question("echo", bytes(_LARGE_BYTES)))
    except (OSError, WireError, ValueError):
        advice = "set the same MTU on all hosts and switches between them: ip link set DEVICE mtu 1500"
        return Finding(check, f"small packets come back and large ones don't ({size})", False, advice)
    return Finding(check, f"come back, {size}", len(reply.payload) == _LARGE_BYTES)


def _compare(host: str, theirs: Facts, now: float) -> list[Finding]:
    ours = facts()
    pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in ("release", "python", "torch")]
    other = [f"{name} {mine} here and {its} there" for name, mine, its in pairs if mine != its]
    same = ", ".join(f"{name} {mine}" for name, mine, _ in pairs)
    apart = abs(theirs.clock_s - now)
    return [
        Finding(
            f"versions of {host}",
            "; ".join(other) or f"the same: {same}",
            not other,
            "install the same versions on all hosts" if other else "",
        ),
        Finding(
            f"clock of {host}",
            "as here" if apart < _CLOCKS_S else f"{apart:.0f} s from this host's",
            apart < _CLOCKS_S,
            ""
            if apart < _CLOCKS_S
            else "let NTP set the clocks; training works, and logs are hard to compare",
        ),
    ]


def _ask(address: str, line: Line, question: Question) -> tuple[Reply, int | None]:
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection((address, line.port), timeout=line.patience_s))
        try:
            mtu = int(sock.getsockopt(socket.IPPROTO_IP, _IP_MTU))
        except OSError:
            mtu = None
        if line.secret is not None:
            context = client_context(issue(line.secret, _SESSION, 1))
            sock = stack.enter_context(context.wrap_socket(sock))
        _send(sock, question)
        return msgspec.msgpack.decode(received(sock, _LIMIT_BYTES), type=Reply), mtu


def _send(sock: socket.socket, message: Question | Reply) -> None:
    body = msgspec.msgpack.encode(message)
    sock.sendall(LENGTH.pack(len(body)) + body)


def _in_words(error: Exception, line: Line) -> tuple[str, bool, str]:
    """What was found, that it isn't well, and what to do."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return in_words(error), False, "copy the same secret to all hosts"
    if isinstance(error, TimeoutError):
        advice = f"is the host up? If so, open TCP port {line.port} and those from 1024 on between the hosts"
        return (
            f"no answer within {line.patience_s:.0f} s: the host is down, or a firewall drops packets",
            False,
            advice,
        )
    code = getattr(error, "errno", None)
    if code == errno.ECONNREFUSED:
        advice = "start `fast doctor --listen HOST` there"
        return f"the host answers, and nobody listens at port {line.port}", False, advice
    if code in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return f"{str(error.args[-1]).lower()}", False, "check the address and the routes"
    return (
        f"it closes the connection ({error})",
        False,
        "does something else use that port, or is the secret missing there?",
    )
