"""One socket between two participants: connecting, TLS, the greeting, and bytes without ever blocking."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import time
from enum import Enum
from typing import final

from fast.errors import WireError
from fast.transport.tcp.records import PREFIX, Greeting, Kind, greeting_record, prefix_of, read_greeting

NO_ANSWER = "no answer comes from its address: its host is down, or a firewall drops the packets"
UNACKNOWLEDGED = (
    "its host acknowledges nothing: the network is cut, its host is down, or a firewall drops the packets"
)
_RETRANSMITS = 2
"""Its place in Linux's tcp_info: how often the oldest bytes have been sent again."""


class Stage(Enum):
    """How far a connection has come."""

    CONNECTING = "connecting"
    SHAKING = "TLS handshake"
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


@final
class Connection:
    """One end. `peer` is who should be at the other end, if we began; who is there says the certificate."""

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext | None, peer: int | None) -> None:
        self.peer, self.dialled = peer, peer is not None
        self.began_ns = time.monotonic_ns()
        self.stage = Stage.CONNECTING
        self.refusal = ""
        """What the other end said when it refused us."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock: socket.socket = sock
        self._context = tls
        self._tls: ssl.SSLSocket | None = None
        if not self.dialled:
            self._begin_tls()
        self._head = bytearray()
        self._own, self.said = memoryview(b""), False
        self.wants_write = self.dialled

    def fileno(self) -> int:
        return self.sock.fileno()

    # Until it is open

    def connected(self) -> None:
        """The socket says that connecting is over. OSError if it failed."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)))
        self._begin_tls()

    def _begin_tls(self) -> None:
        if self._context is None:
            self.stage = Stage.GREETING
            return
        self.stage = Stage.SHAKING
        self.sock = self._tls = self._context.wrap_socket(
            self.sock, server_side=not self.dialled, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def shake(self) -> bytes | None:
        """Go on with the handshake; the peer's certificate when it is done."""
        assert self._tls is not None
        self.wants_write = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return None
        self.stage = Stage.GREETING
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate is None:
            raise WireError("it has shown no certificate")
        return certificate

    def say(self, greeting: Greeting) -> None:
        """The first record that this end writes."""
        self._own, self.said = memoryview(greeting_record(greeting)), True

    def write_greeting(self) -> bool:
        """Whether it is written."""
        while self._own:
            written = self.write(self._own)
            if not written:
                return False
            self._own = self._own[written:]
        return True

    def read_greeting(self) -> Greeting | None:
        """The other end's, once it is whole. Nothing behind it is read."""
        while True:
            length = PREFIX.size
            if len(self._head) >= PREFIX.size:
                kind, _, body = prefix_of(self._head)
                if kind not in (Kind.GREETING, Kind.REFUSED):
                    raise WireError("it begins with something else than a greeting")
                length += body
                if len(self._head) == length:
                    return self._greeted(Kind(kind))
            part = bytearray(min(length - len(self._head), 1 << 14))
            count = self.read_into(memoryview(part))
            if count is None:
                return None
            self._head += part[:count]

    def _greeted(self, kind: Kind) -> Greeting:
        body = bytes(self._head[PREFIX.size :])
        if kind is Kind.REFUSED:
            self.refusal = body.decode(errors="replace")
            raise WireError(f"it refuses us: {self.refusal}")
        return read_greeting(body)

    # Bytes

    def read_into(self, memory: memoryview) -> int | None:
        """How many bytes came; None if none are there now. EOFError at the end."""
        try:
            count = self.sock.recv_into(memory)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return None
        if not count:
            raise EOFError
        return count

    def write(self, memory: memoryview) -> int:
        """How many bytes were taken; 0 if there is no room now."""
        try:
            return self.sock.send(memory)
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self.wants_write = True
            return 0

    @property
    def pending(self) -> bool:
        """Whether bytes wait that the selector doesn't know of."""
        return self._tls is not None and self._tls.pending() > 0

    def end_writing(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.stage = Stage.CLOSED
        self.sock.close()


def is_unacknowledged(sock: socket.socket) -> bool:
    """Whether the kernel sends something again because no answer comes; False if the system doesn't say. A process
    that is stopped doesn't matter: its kernel still answers."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS + 1)[_RETRANSMITS] > 0
    except OSError:
        return False


def dial(address: str, tls: ssl.SSLContext | None, peer: int, source: str = "") -> Connection:
    """Begin to connect with a peer that listens at this address."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if source:
            sock.bind((source, 0))
        code = sock.connect_ex((host, port))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, errno.errorcode.get(code, str(code)))
        return Connection(sock, tls, peer)
    except BaseException:
        sock.close()
        raise


def listen(host: str, port: int = 0) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
        sock.setblocking(False)
        return sock
    except BaseException:
        sock.close()
        raise


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
