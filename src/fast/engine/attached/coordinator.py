"""Where hosts and workers of a run meet that were started by hand: a small server on the first host.

It keeps what everybody brings under a topic, and answers all who ask for it when it is complete:

    hosts    every host comes; each of them gets the plan of the run
    come     every worker's first words
    where    every worker's address

When all of that is known to all, it ends: a run that has begun doesn't need it. Strangers get nothing but a closed
connection, and can't hold more than a few of them, or one for long.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import final

import msgspec

from fast.engine.attached.asking import ASK_BYTES, LENGTH, SESSION, Answer, Ask, framed
from fast.engine.attached.plan import Plan
from fast.errors import UsageError, WireError
from fast.transport.tcp import Secret, issue, peer_of, server_context
from fast.transport.tcp.connection import Connection, Stage, listen
from fast.transport.tcp.driver import in_words

HOSTS, COME, WHERE = "hosts", "come", "where"
_STRANGER_S = 10.0
_STRANGERS = 32
_TICK_S = 0.1
_GOODBYE_S = 3.0
"""How long it stays, once the run is known to have failed, for those who have not heard of it."""


@dataclass(eq=False)
class _Visit:
    """One connection."""

    connection: Connection
    address: str
    began: float
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: memoryview = field(default_factory=lambda: memoryview(b""))
    asked: Ask | None = None
    answered: bool = False


@final
class Coordinator:
    """Serves one run, in a thread of its own."""

    def __init__(
        self,
        plan: Plan,
        secret: Secret | None,
        release: str,
        place: tuple[str, int],
        stranger_s: float = _STRANGER_S,
    ) -> None:
        """`stranger_s`: how long a visitor may take for its question."""
        self._stranger_s = stranger_s
        self._plan, self._release = plan, release
        self._identity = None if secret is None else issue(secret, SESSION, 0)
        self._context = None if self._identity is None else server_context(self._identity)
        self._listener = _listener(place)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._expected: Mapping[str, int] = MappingProxyType(
            {HOSTS: len(plan.hosts), COME: plan.workers, WHERE: plan.workers}
        )
        self._brought: dict[str, dict[int, bytes]] = {topic: {} for topic in self._expected}
        self._since: dict[str, float] = {}
        self._visits: dict[Connection, _Visit] = {}
        self._served: set[tuple[str, str, int]] = set()
        self._trouble = ""
        self._failure: Answer | None = None
        self._until: float | None = None
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="fast-coordinator", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def fail(self, why: str) -> None:
        """Everybody who asks from now on is told that the run has ended."""
        with self._lock:
            self._fail(Answer(refusal=why, blame="lost"))

    def close(self) -> None:
        """Go, at once or when those who came have been told why the run has failed."""
        with self._lock:
            self._until = time.monotonic() + (_GOODBYE_S if self._failure is not None else 0.0)
        self._thread.join()

    def join(self) -> None:
        """Wait until all have met, or it has been closed."""
        self._thread.join()

    # The loop

    def _run(self) -> None:
        try:
            while not self._may_go():
                ready = self._selector.select(_TICK_S)
                with self._lock:
                    for key, _ in ready:
                        if key.fileobj is self._listener:
                            self._accept()
                        else:
                            self._turn(key.data)
                    self._mind_time(time.monotonic())
        finally:
            for visit in list(self._visits.values()):
                visit.connection.close()
            self._listener.close()
            self._selector.close()

    def _may_go(self) -> bool:
        with self._lock:
            asked = {("look", WHERE, host) for host in range(len(self._plan.hosts))}
            asked |= {("bring", WHERE, worker) for worker in range(self._plan.workers)}
            if asked <= self._served:
                return True
            came = self._brought[HOSTS].keys()
            told = self._failure is not None and all(("end", "", host) in self._served for host in came)
            return self._until is not None and (told or time.monotonic() >= self._until)

    def _mind_time(self, now: float) -> None:
        for visit in [
            v for v in self._visits.values() if v.asked is None and now - v.began > self._stranger_s
        ]:
            self._drop(visit)
        for topic, since in self._since.items():
            missing = [n for n in range(self._expected[topic]) if n not in self._brought[topic]]
            if missing and self._failure is None and now - since > self._plan.deadline_s:
                self._fail(Answer(refusal=self._missing(topic, missing), blame="silent", absent=missing))

    def _missing(self, topic: str, missing: list[int]) -> str:
        plan, total = self._plan, self._expected[topic]
        if topic == HOSTS:
            names = ", ".join(f"{plan.hosts[host]} (host {host})" for host in missing)
            words = (
                f"of {total} hosts {total - len(missing)} have come within {plan.deadline_s:.0f} s, and these have "
                f"not: {names}. Was `fast worker` started there, and does it reach the coordinator?"
            )
        else:
            part = plan.part(0)
            names = ", ".join(f"worker {worker} on {part.name_of(worker)}" for worker in missing[:8])
            names += ", ..." * (len(missing) > 8)
            words = (
                f"of {total} workers {total - len(missing)} have come to fast.join within {plan.deadline_s:.0f} s, and "
                f"these have not: {names}. Does every worker run the whole script?"
            )
        return f"{words} A longer --deadline waits longer.{self._trouble}"

    # Connections

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, (address, *_) = self._listener.accept()
            strangers = [visit for visit in self._visits.values() if visit.asked is None]
            if len(strangers) >= _STRANGERS + sum(self._expected.values()):
                self._drop(strangers[0])  # the oldest has had its time: a friend needs milliseconds
            visit = _Visit(Connection(sock, self._context, None), str(address), time.monotonic())
            self._visits[visit.connection] = visit
            self._selector.register(visit.connection, selectors.EVENT_READ, visit)
            self._turn(visit)

    def _turn(self, visit: _Visit) -> None:
        """Go on as far as possible without waiting. What goes wrong ends this visit and nothing else."""
        connection = visit.connection
        if connection.stage is Stage.CLOSED:
            return
        connection.wants_write = False
        try:
            if connection.stage is Stage.SHAKING:
                certificate = connection.shake()
                if certificate is not None and self._identity is not None:
                    peer_of(certificate, self._identity)
            if connection.stage is Stage.GREETING:
                self._read(visit)
                self._write(visit)
        except ssl.SSLError as error:
            self._refused(visit, in_words(error))
        except WireError as error:
            self._refused(visit, str(error))
        except (EOFError, OSError):
            self._drop(visit)
        else:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write else 0)
            self._selector.modify(connection, wanted, visit)

    def _refused(self, visit: _Visit, why: str) -> None:
        self._trouble = f" A connection from {visit.address} was refused: {why}."
        self._drop(visit)

    def _drop(self, visit: _Visit) -> None:
        """Whoever goes before it has been answered has not come."""
        if self._visits.pop(visit.connection, None) is None:
            return
        self._selector.unregister(visit.connection)
        visit.connection.close()
        asked = visit.asked
        if asked is not None and asked.what == "bring" and not visit.answered:
            self._brought[asked.topic].pop(asked.number, None)

    def _read(self, visit: _Visit) -> None:
        while True:
            part = bytearray(1 << 14)
            count = visit.connection.read_into(memoryview(part))
            if count is None:
                return
            visit.incoming += part[:count]
            if visit.asked is not None:
                raise WireError("it asks a second time")
            if len(visit.incoming) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(visit.incoming)
                if length > ASK_BYTES or len(visit.incoming) > LENGTH.size + length:
                    raise WireError("it sends something else than a question")
                if len(visit.incoming) == LENGTH.size + length:
                    self._take(visit, bytes(visit.incoming[LENGTH.size :]))

    def _write(self, visit: _Visit) -> None:
        while visit.outgoing:
            count = visit.connection.write(visit.outgoing)
            if not count:
                return
            visit.outgoing = visit.outgoing[count:]
        if visit.answered and visit.asked is not None:
            asked = visit.asked
            self._served.add((asked.what, asked.topic, asked.number))
            if self._failure is not None and (asked.what == "look" or asked.topic == HOSTS):
                self._served.add(("end", "", asked.number))

    # Questions

    def _take(self, visit: _Visit, body: bytes) -> None:
        try:
            asked = msgspec.msgpack.decode(body, type=Ask)
        except ValueError as error:
            raise WireError(f"its question can't be read: {error}") from error
        visit.asked = asked
        if self._failure is not None:
            self._answer(visit, self._failure)
        elif asked.release != self._release:
            words = (
                f"FAST {self._release} is on {self._plan.hosts[0]} and {asked.release} on {visit.address}. Install the "
                "same version on all hosts."
            )
            self._answer(visit, Answer(refusal=words, blame="usage"))
        elif asked.what == "end":
            self._served.add(("end", "", asked.number))
            met = len(self._brought[WHERE]) == self._expected[WHERE]
            self._answer(visit, Answer([b"met"] if met else []))
            self._fail(Answer(refusal=asked.value.decode(errors="replace"), blame="lost"))
        elif asked.what == "bring":
            self._bring(visit, asked)
        if asked.topic in self._expected and self._failure is None:
            self._answer_all(asked.topic)

    def _bring(self, visit: _Visit, asked: Ask) -> None:
        who = "host" if asked.topic == HOSTS else "worker"
        total = self._expected.get(asked.topic)
        refusal = ""
        if total is None:
            raise WireError("it brings what nobody needs")
        if asked.number not in range(total):
            refusal = (
                f"there is no {who} {asked.number}: this run has {who}s 0 to {total - 1}, on "
                f"{', '.join(self._plan.hosts)}"
            )
        elif asked.number in self._brought[asked.topic]:
            refusal = (
                f"{who} {asked.number} has already come, and now another one comes from {visit.address}. Was a command "
                "typed twice, or do two runs use one port?"
            )
        if refusal:
            self._answer(visit, Answer(refusal=refusal, blame="usage"))
            return
        self._brought[asked.topic][asked.number] = asked.value
        self._since.setdefault(asked.topic, time.monotonic())

    def _answer_all(self, topic: str) -> None:
        brought = self._brought[topic]
        if len(brought) < self._expected[topic]:
            return
        values = (
            [msgspec.msgpack.encode(self._plan)] if topic == HOSTS else [brought[n] for n in sorted(brought)]
        )
        self._say_to_all(topic, Answer(values))

    def _fail(self, answer: Answer) -> None:
        if self._failure is None:
            self._failure = answer
            self._say_to_all(None, answer)

    def _say_to_all(self, topic: str | None, answer: Answer) -> None:
        """To all who wait for this topic, or for any."""
        for visit in list(self._visits.values()):
            if visit.asked is not None and not visit.answered and topic in (None, visit.asked.topic):
                self._answer(visit, answer)

    def _answer(self, visit: _Visit, answer: Answer) -> None:
        visit.answered = True
        visit.outgoing = memoryview(framed(answer))
        visit.connection.wants_write = True
        self._selector.modify(visit.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, visit)


def _listener(place: tuple[str, int]) -> socket.socket:
    host, port = place
    try:
        return listen(host, port)
    except OSError as error:
        hints = {
            errno.EADDRINUSE: "Another run or program uses that port: choose another one with --coordinator HOST:PORT.",
            errno.EADDRNOTAVAIL: "Type `fast run` on the host of the coordinator, or name it with --coordinator.",
        }
        hint = hints.get(error.errno or 0, "Choose another port with --coordinator HOST:PORT.")
        raise UsageError(
            f"the coordinator can't listen at {host}:{port}: {error.strerror}. {hint}"
        ) from error
