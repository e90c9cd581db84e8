"""The thread that drives a participant's sockets: accepts, connects, reads and writes, and says that we live.

It shares one lock with the participant's own thread; while it waits for the network it doesn't hold it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol, final

from fast.errors import WireError
from fast.transport.tcp.connection import NO_ANSWER, Connection, Stage, dial, is_unacknowledged
from fast.transport.tcp.link import Arrived, Link, Told
from fast.transport.tcp.records import Greeting, Kind, greeting_record, record

GREETING_S = 10.0
"""How long a stranger may take until it has shown who it is."""
_STRANGERS = 32
"""Connections beyond one per participant that may be under way at once."""
_TURN_BYTES = 4 << 20
"""What one connection may read or write before the others have their turn."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_IDLE_S = 0.5
_FAREWELL_S = 1.0
RIVAL = "we are calling you"
_FAULTS = 3
"""So many unreadable records of one peer end its connection for good."""


@dataclass
class Way:
    """How a peer is reached."""

    link: Link
    connection: Connection | None = None
    wanted: bool = False
    """Whether there should be a connection, even if no letter waits."""
    dial_at: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    trouble: str = ""
    """Why there is no connection, in words."""
    apart_ns: int = 0
    """Since when a connection is tried in vain; 0 if there is one, or none is needed."""
    stalled_ns: int = 0
    """Since when the other host doesn't acknowledge what was sent on the connection."""
    refused_since: float | None = None
    """Since when nobody listens at its address any more."""
    faults: int = 0
    opened_at: float = 0.0
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The news that the peer has been told on this connection."""


class Owner(Protocol):
    """Whoever the driver works for: a transport. Everything is called with the lock held."""

    lock: threading.Lock
    ways: dict[int, Way]

    def way(self, peer: int) -> Way: ...

    def address(self, peer: int) -> str: ...

    def greeting(self, peer: int) -> Greeting: ...

    def fault_of(self, greeting: Greeting, certified: tuple[int, int] | None) -> str: ...

    def certified(self, certificate: bytes) -> tuple[int, int]: ...

    def take(self, peer: int, found: list[Arrived | Told]) -> None: ...

    def news_for(self, peer: int, way: Way) -> None: ...

    def tick(self) -> None: ...

    def lost(self, peer: int, why: str) -> None: ...


@final
class Driver:
    """One participant's."""

    def __init__(
        self,
        owner: Owner,
        listener: socket.socket,
        contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None,
        *,
        beat_s: float,
        refused_s: float,
        source: str = "",
    ) -> None:
        self._owner, self._listener, self._contexts = owner, listener, contexts
        self._beat_s, self._refused_s, self._source = beat_s, refused_s, source
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._signalled = self._stopping = False
        self._certified: dict[Connection, tuple[int, int]] = {}
        self._young: dict[Connection, int] = {}
        """Connections whose greeting isn't over, and what the selector waits for."""
        self._open: dict[Connection, int] = {}
        self._again: set[Connection] = set()
        """Those that have more to read or write than one turn took."""
        self._thread = threading.Thread(target=self._run, name="fast-tcp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There is something to write. Called with the lock held."""
        if not self._signalled and threading.current_thread() is not self._thread:
            self._signalled = True
            with contextlib.suppress(OSError):
                os.write(self._waker, b"!")

    def stop(self) -> None:
        self._stopping = True
        with self._owner.lock:
            self.wake()
        self._thread.join(5.0)

    # The loop

    def _run(self) -> None:
        try:
            next_beat = time.monotonic()
            while not self._stopping:
                now = time.monotonic()
                if now >= next_beat:
                    next_beat = now + self._beat_s
                    with self._owner.lock:
                        self._look_for_stalls()
                        self._owner.tick()
                self._dial_those_due(now)
                self._drop_slow_strangers(now)
                self._write_all()
                self._wait(min(next_beat - now, self._next_dial(now)))
            self._farewell()
        finally:
            for connection in (*self._young, *self._open):
                connection.close()
            self._listener.close()
            self._selector.close()
            os.close(self._woken)
            os.close(self._waker)

    def _look_for_stalls(self) -> None:
        for way in self._owner.ways.values():
            if way.connection is None or not is_unacknowledged(way.connection.sock):
                way.stalled_ns = 0
            else:
                way.stalled_ns = way.stalled_ns or time.monotonic_ns()

    def _farewell(self) -> None:
        """Let what was written arrive: a socket that is closed with something unread in it takes back what
        it has sent."""
        for connection in self._open:
            connection.end_writing()
        until = time.monotonic() + _FAREWELL_S
        while self._open and time.monotonic() < until:
            self._wait(until - time.monotonic())

    def _wait(self, seconds: float) -> None:
        if self._again:
            seconds = 0.0
        ready = self._selector.select(max(0.0, min(seconds, _IDLE_S)))
        again, self._again = self._again, set()
        for connection in again:
            self._guarded(connection, selectors.EVENT_READ)
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.data is None:
                self._drain_wakes()
            elif key.data not in again:
                self._guarded(key.data, events)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._woken, 1 << 12):
                pass
        with self._owner.lock:
            self._signalled = False

    def _guarded(self, connection: Connection, events: int) -> None:
        """One connection's turn; what goes wrong ends it, and nothing else."""
        if connection.stage is Stage.CLOSED:
            return
        try:
            if events & selectors.EVENT_WRITE:
                connection.wants_write = False
            if connection.stage is not Stage.OPEN:
                self._go_on(connection)
            if connection.stage is Stage.OPEN:
                self._read(connection)
        except EOFError:
            self._drop(connection, "it has closed the connection")
        except ssl.SSLError as error:
            if connection.stage is Stage.OPEN:
                self._drop(connection, in_words(error))
            else:
                self._fault(connection, in_words(error))
        except OSError as error:
            self._drop(connection, os.strerror(error.errno) if error.errno else str(error), error.errno)
        except WireError as error:
            self._fault(connection, str(error))
        else:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Let the selector wait for what this connection needs."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write else 0)
        table = self._open if connection.stage is Stage.OPEN else self._young
        if connection.stage is Stage.CLOSED or table.get(connection) == wanted:
            return
        if connection in self._selector.get_map():
            self._selector.modify(connection, wanted, connection)
        else:
            self._selector.register(connection, wanted, connection)
        table[connection] = wanted

    # Becoming connected

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return  # too many descriptors; the next one may have better luck
            limit = _STRANGERS + 2 * len(self._owner.ways)
            strangers = [each for each in self._young if not each.dialled]
            if len(strangers) >= limit:
                self._close(strangers[0])  # the oldest has had its time: a friend needs milliseconds
            with contextlib.suppress(OSError):
                self._begin(Connection(sock, self._contexts and self._contexts[0], None))

    def _begin(self, connection: Connection) -> None:
        self._young[connection] = 0
        self._watch(connection)

    def _dial_those_due(self, now: float) -> None:
        with self._owner.lock:
            due = [
                (peer, way, self._owner.address(peer))
                for peer, way in self._owner.ways.items()
                if way.connection is None and now >= way.dial_at and (way.wanted or way.link.unsent)
            ]
        for peer, way, address in due:
            if any(each.peer == peer and each.dialled for each in self._young):
                way.dial_at = now + _IDLE_S
                continue
            way.dial_at = now + way.pause_s
            way.apart_ns = way.apart_ns or time.monotonic_ns()
            if not address:
                continue  # it will be heard of, or has left
            way.pause_s = min(way.pause_s * 2, _LONGEST_PAUSE_S)
            try:
                context = self._contexts and self._contexts[1]
                connection = dial(address, context, peer, self._source)
            except OSError as error:
                self._trouble(peer, os.strerror(error.errno) if error.errno else str(error), error.errno)
                continue
            self._begin(connection)

    def _next_dial(self, now: float) -> float:
        with self._owner.lock:
            times = [
                way.dial_at - now
                for way in self._owner.ways.values()
                if way.connection is None and (way.wanted or way.link.unsent)
            ]
        return min(times, default=_IDLE_S)

    def _drop_slow_strangers(self, now: float) -> None:
        limit_ns = GREETING_S * 1e9
        for connection in [c for c in self._young if now * 1e9 - c.began_ns > limit_ns]:
            silent = connection.stage is Stage.CONNECTING
            self._drop(connection, NO_ANSWER if silent else f"no greeting within {GREETING_S:.0f} s")

    def _go_on(self, connection: Connection) -> None:
        """Connect, shake hands, greet: as far as it goes without waiting."""
        if connection.stage is Stage.CONNECTING:
            connection.connected()
        if connection.stage is Stage.SHAKING:
            certificate = connection.shake()
            if certificate is None:
                return
            self._certified[connection] = self._owner.certified(certificate)
        if connection.stage is Stage.GREETING:
            self._greet(connection)

    def _greet(self, connection: Connection) -> None:
        """The side that dialled speaks first; the other one answers, or refuses."""
        if connection.dialled and not connection.said:
            assert connection.peer is not None
            with self._owner.lock:
                connection.say(self._owner.greeting(connection.peer))
        if connection.dialled and not connection.write_greeting():
            return
        greeting = connection.read_greeting()
        if greeting is None:
            return
        with self._owner.lock:
            fault = self._owner.fault_of(greeting, self._certified.get(connection))
            if not fault and connection.dialled and connection.peer != greeting.participant:
                fault = f"participant {greeting.participant} answers where {connection.peer} should be"
            if not fault and not connection.dialled:
                fault = self._rival(connection, greeting.participant)
            if fault:
                self._refuse(connection, fault)
                raise WireError(fault)
            self._opened(connection, greeting)

    def _rival(self, connection: Connection, peer: int) -> str:
        """Both ends may have dialled at once. The lower participant's call stands."""
        ours = self._owner.greeting(peer).participant
        way = self._owner.way(peer)
        dialling = any(each.peer == peer and each.dialled for each in self._young)
        if ours < peer and dialling:
            return RIVAL
        called = way.connection is not None and way.opened_at * 1e9 > connection.began_ns
        return RIVAL if called and ours < peer else ""

    def _refuse(self, connection: Connection, why: str) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            connection.write(memoryview(record(Kind.REFUSED, why.encode()[:2000])))

    def _opened(self, connection: Connection, greeting: Greeting) -> None:
        """The greeting is over. Called with the lock held."""
        peer = greeting.participant
        way = self._owner.way(peer)
        for other in [each for each in self._young if each.peer == peer and each is not connection]:
            self._close(other)
        if way.connection is not None:
            self._close(way.connection)
            way.connection = None
        connection.peer = peer
        answer = b"" if connection.dialled else greeting_record(self._owner.greeting(peer))
        way.link.connect(greeting.received, answer)
        self._young.pop(connection, None)
        connection.stage = Stage.OPEN
        self._open[connection] = 0
        way.connection, way.opened_at, way.told = connection, time.monotonic(), {}
        way.pause_s, way.trouble, way.refused_since = _FIRST_PAUSE_S, "", None
        way.apart_ns = 0
        self._owner.news_for(peer, way)

    # Reading and writing

    def _read(self, connection: Connection) -> None:
        assert connection.peer is not None
        link, left = self._owner.ways[connection.peer].link, _TURN_BYTES
        while left > 0:
            with self._owner.lock:
                memory = link.buffer()
            count = connection.read_into(memory)
            if count is None:
                return
            left -= count
            with self._owner.lock:
                found = link.filled(count)
                if found:
                    self._owner.take(connection.peer, found)
            if count < len(memory) and not connection.pending:
                return
        self._again.add(connection)

    def _write_all(self) -> None:
        for connection in list(self._open):
            if connection.stage is Stage.OPEN and not connection.wants_write:
                self._guarded_write(connection)

    def _guarded_write(self, connection: Connection) -> None:
        try:
            self._write(connection)
        except (EOFError, ssl.SSLError, OSError) as error:
            self._drop(connection, str(error))
        else:
            self._watch(connection)

    def _write(self, connection: Connection) -> None:
        assert connection.peer is not None
        link, left = self._owner.ways[connection.peer].link, _TURN_BYTES
        while left > 0:
            with self._owner.lock:
                parts = link.outgoing()
                first = next(iter(parts), None)
            if first is None:
                return
            count = connection.write(first)
            if not count:
                return
            left -= count
            with self._owner.lock:
                link.wrote(count)
        self._again.add(connection)

    # What goes wrong

    def _fault(self, connection: Connection, why: str) -> None:
        """The other end sends what we refuse, or refuses us."""
        peer = connection.peer
        self._drop(connection, why)
        if peer is None or connection.refusal == RIVAL:
            return
        with self._owner.lock:
            way = self._owner.way(peer)
            way.faults += 1
            if way.faults >= _FAULTS:
                self._owner.lost(peer, why)

    def _drop(self, connection: Connection, why: str, code: int | None = None) -> None:
        opened = connection.stage is Stage.OPEN
        self._close(connection)
        peer = connection.peer
        if peer is None or (not opened and not connection.dialled):
            return
        with self._owner.lock:
            way = self._owner.way(peer)
            if way.connection is connection:
                way.connection = None
                way.link.forget_news()
                way.dial_at = time.monotonic() + (0.0 if connection.dialled else way.pause_s)
                way.wanted = True
        if connection.refusal != RIVAL:
            self._trouble(peer, why, code)

    def _trouble(self, peer: int, why: str, code: int | None = None) -> None:
        """There is no connection with this peer, for this reason."""
        now = time.monotonic()
        with self._owner.lock:
            way = self._owner.way(peer)
            if way.connection is not None:
                return
            way.trouble = why
            if code != errno.ECONNREFUSED:
                way.refused_since = None
            elif way.refused_since is None:
                way.refused_since = now
            elif now - way.refused_since > self._refused_s:
                self._owner.lost(peer, "nobody listens at its address any more, so its process has ended")

    def _close(self, connection: Connection) -> None:
        self._young.pop(connection, None)
        self._open.pop(connection, None)
        self._certified.pop(connection, None)
        self._again.discard(connection)
        if connection.stage is not Stage.CLOSED:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection)
            connection.close()


def in_words(error: ssl.SSLError) -> str:
    """What a failed handshake means for somebody who set up the job."""
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError) or "unknown ca" in reason or "certificate" in reason:
        return f"its certificate and ours are not of one job; give all hosts the same secret (TLS: {reason})"
    if "wrong version number" in reason or "record layer" in reason or "http request" in reason:
        return f"something else than a FAST participant with TLS is at its address (TLS: {reason})"
    return f"TLS: {reason}"
