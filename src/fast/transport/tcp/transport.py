"""Letters between hosts over TCP, with TLS 1.3 unless plain connections were asked for.

A thread of the participant drives its sockets (`driver`), so peers are answered and know that we
live while the model computes. What participants say about themselves goes through a few neighbours
(`bulletin`); connections for letters are made when the first letter is posted.

There is no memory that peers could read in place. What is published is shown to whoever asks, by
the thread, as it is in that moment.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import final

from torch import Tensor

from fast.core.framing import copied_into, flat_copy, header_of, letter_of, lies_flat, nbytes_of, typed
from fast.core.letter import Letter
from fast.errors import PeerLost, PeerSilent, RunEnded, WireError
from fast.transport.base import BETWEEN_HOSTS, Phase, Status, Transport, Trouble
from fast.transport.tcp.bulletin import (
    ENDED_CHARACTERS,
    TEXT_CHARACTERS,
    Beat,
    Bulletin,
    decode_beats,
    encode_beats,
    neighbours,
)
from fast.transport.tcp.connection import NO_ANSWER, UNACKNOWLEDGED, address_of
from fast.transport.tcp.driver import Driver, Way
from fast.transport.tcp.identity import Identity, client_context, peer_of, server_context
from fast.transport.tcp.link import Arrived, Link, Parcel, Told
from fast.transport.tcp.pool import Pool
from fast.transport.tcp.records import Greeting, Kind, Look, look_record, read_look, record
from fast.view import Groups

_SHOWN = "fast.shown"
"""The tag of letters that answer a look."""
_LETTER_BYTES = 1 << 34
_LINGER_NAP_S, _ENDLESS_DEADLINE_S = 0.05, 60.0


@dataclass(frozen=True)
class Job:
    """What all participants of a job know alike."""

    session: str
    size: int
    """The number of participants that it has room for."""
    release: str
    """The version of FAST."""
    directory: Mapping[int, str] = field(default_factory=dict)
    """Where those listen who are there from the start, as `host:port`."""
    deadline_s: float = 60.0
    groups: Groups = ()
    """Which workers share memory; () if nobody does, or all do."""


@final
class TcpTransport(Transport):
    """One participant's end.

    `listener` is a bound and listening socket; `identity` is None for plain TCP. `source` is the address from
    which to connect. `woken` is called when something has come. A participant with `friends` of its own only watches:
    it hears the news from these, and never says itself that somebody is lost.
    """

    link = BETWEEN_HOSTS

    def __init__(
        self,
        id: int,
        job: Job,
        listener: socket.socket,
        identity: Identity | None,
        *,
        friends: Iterable[int] | None = None,
        woken: Callable[[], None] = lambda: None,
        near: Iterable[int] = (),
    ) -> None:
        self.id, self.size, self.job, self.groups = id, job.size, job, job.groups
        self._near = frozenset(near)
        self.lock = threading.Lock()
        self.ways: dict[int, Way] = {}
        self._identity, self._woken = identity, woken
        self._pool = Pool()
        self._changed, self._changes = threading.Condition(self.lock), 0
        self._bulletin = Bulletin(id, job.size, time.monotonic_ns())
        self._session = number_of(job.session)
        self._life = 0 if identity is None else identity.life
        address = address_of(listener)
        self._mine = Beat(id, self._life, 1, address=address)
        self._bulletin.beats[id] = self._mine
        self._inbox: list[tuple[int, Arrived]] = []
        self._tickets: dict[int, tuple[Letter, int, int, Tensor]] = {}
        self._refusals: list[tuple[int, WireError]] = []
        self._windows: dict[str, Tensor] = {}
        self._asked: dict[int, tuple[int, str]] = {}
        self._answers: dict[int, Letter | None] = {}
        self._numbers = count(1)
        self._lost: int | None = None
        """Whom we found to be lost, if anybody."""
        contexts = None if identity is None else (server_context(identity), client_context(identity))
        beat_s = min(1.0, max(0.05, job.deadline_s / 10)) if job.deadline_s else 1.0
        refused_s = min(3.0, job.deadline_s / 2) if job.deadline_s else 3.0
        self._driver = Driver(self, listener, contexts, beat_s=beat_s, refused_s=refused_s)
        self._watches = friends is not None
        there = sorted(job.directory)
        if friends is not None:
            friends = list(friends)
        elif id in there:
            friends = [there[place] for place in neighbours(there.index(id), len(there))]
        else:  # it comes later, such as a server
            friends = sorted({there[(id + k) % len(there)] for k in range(2)}) if there else []
        for friend in friends:
            self.way(friend).wanted = id > friend or id not in there
        self._friends = frozenset(friends)
        self._driver.start()

    # For the driver: everything with the lock held

    def way(self, peer: int) -> Way:
        found = self.ways.get(peer)
        if found is None:
            found = self.ways[peer] = Way(Link(_LETTER_BYTES, self._pool.take))
        return found

    def address(self, peer: int) -> str:
        beat = self._bulletin.beats.get(peer)
        asked = any(each == peer for each, _ in self._asked.values())
        if beat is not None and beat.phase >= Phase.LEFT and not asked:
            return ""
        return beat.address if beat is not None and beat.address else self.job.directory.get(peer, "")

    def greeting(self, peer: int) -> Greeting:
        way = self.ways.get(peer)
        received = {} if way is None else way.link.counts
        return Greeting(self.job.release, self.job.session, self.id, self._life, self.size, received)

    def certified(self, certificate: bytes) -> tuple[int, int]:
        assert self._identity is not None
        peer = peer_of(certificate, self._identity)
        return peer.participant, peer.life

    def fault_of(self, greeting: Greeting, certified: tuple[int, int] | None) -> str:
        """Why this is nobody to talk to, in words; empty if all is well."""
        job, peer = self.job, greeting.participant
        if greeting.session != job.session:
            return f"job {job.session} is here and {greeting.session} calls: are two jobs using one port?"
        if greeting.release != job.release:
            return f"FAST {job.release} is here and {greeting.release} calls; install the same version everywhere"
        if greeting.size != job.size:
            return f"this job has room for {job.size} participants and the caller's for {greeting.size}"
        if not 0 <= peer < job.size or peer == self.id:
            return f"participant {peer} calls participant {self.id} of {job.size}"
        if certified is not None and certified != (peer, greeting.life):
            return f"participant {certified[0]} says that it is {peer}"
        return ""

    def take(self, peer: int, found: list[Arrived | Told]) -> None:
        for each in found:
            if isinstance(each, Told):
                self._hear(peer, each)
            elif each.header.session != self._session:
                raise WireError(f"a letter {each.header.tag!r} of another job")
            elif each.header.tag == _SHOWN:
                self._shown(peer, each)
            else:
                self._inbox.append((peer, each))
        self._ring()

    def _hear(self, peer: int, told: Told) -> None:
        match told.kind:
            case Kind.BEATS:
                self._learn(peer, told.body)
            case Kind.LOOK:
                self._show(peer, read_look(told.body))
            case Kind.NOTHING:
                self._answer(peer, read_look(told.body).number, None)
            case Kind.COUNTS:
                pass  # there may be room again, and whoever waits for it is woken
            case _:
                raise WireError(f"a {told.kind.name} record out of place")

    def news_for(self, peer: int, way: Way) -> None:
        """On a new connection: what is going on, and the questions that were not answered."""
        if self._tells(peer):
            self._tell_news(peer, way)
        for number, (asked, name) in self._asked.items():
            if asked == peer:
                way.link.look(Look(number, name))

    def tick(self) -> None:
        """A sign of life, and what else is new."""
        self._mine.number += 1
        self._spread()

    def lost(self, peer: int, why: str) -> None:
        """This peer won't come back, and everybody is to know."""
        if self._known_phase(peer) < Phase.LEFT and not self._watches:
            self._end(
                f"participant {peer} at {self.address(peer) or 'an unknown address'} is lost: {why}", peer
            )

    # What everybody says about itself

    def _known_phase(self, peer: int) -> int:
        beat = self._bulletin.beats.get(peer)
        return Phase.STARTING if beat is None else beat.phase

    def _spread(self) -> None:
        for peer, way in self.ways.items():
            if way.connection is not None and self._tells(peer):
                self._tell_news(peer, way)

    def _tells(self, peer: int) -> bool:
        """Whether news go to this peer from here: to a few of those who are there from the start, and to who
        came later."""
        return peer in self._friends or peer not in self.job.directory or self.id not in self.job.directory

    def _tell_news(self, peer: int, way: Way) -> None:
        fresh = self._bulletin.since(way.told, peer)
        if fresh:
            way.link.tell(record(Kind.BEATS, encode_beats(fresh)))

    def _learn(self, peer: int, body: bytes) -> None:
        """What is urgent goes on at once; signs of life with our own next one."""
        urgent, now = False, time.monotonic_ns()
        told = self.ways[peer].told
        for beat in decode_beats(body):
            known = self._bulletin.beats.get(beat.who)
            before = None if known is None else (known.phase, known.address, known.ended)
            told[beat.who] = max(told.get(beat.who, (-1, -1)), (beat.life, beat.number))
            if self._bulletin.take(beat, now):
                urgent |= (beat.phase, beat.address, beat.ended) != before
                if beat.who in self.ways:
                    self.ways[beat.who].dial_at = 0.0  # its address may have been missing
        if urgent:
            self._spread()
            self._driver.wake()

    def _urgent(self) -> None:
        """With the lock held: everybody is to know now."""
        self._mine.number += 1
        self._spread()
        self._ring()
        self._driver.wake()

    # Letters

    def post(self, to: Iterable[int], letter: Letter, limit: int) -> tuple[int, ...]:
        self._check_own(letter)
        targets = tuple(to)
        with self.lock:
            full = tuple(peer for peer in targets if self.way(peer).link.unread(letter.tag) >= limit)
        open_to = [peer for peer in targets if peer not in full]
        if open_to:
            parcel = self._parcel(letter, len(open_to))
            with self.lock:
                for peer in open_to:
                    self.way(peer).link.post(letter.tag, parcel)
                self._driver.wake()
        return full

    def _parcel(self, letter: Letter, peers: int) -> Parcel:
        payload = self._pool.take(nbytes_of(letter.tensor))
        copied_into(payload, letter.tensor)
        header = header_of(letter)
        header.session, header.life = self._session, self._life
        return Parcel(header, payload, peers, self._pool.give)

    def arrivals(self) -> list[Letter]:
        with self.lock:
            come, self._inbox = self._inbox, []
        letters = []
        for peer, arrived in come:
            try:
                letter = letter_of(arrived.header, arrived.payload, peer)
            except WireError as error:
                self._refusals.append((peer, error))
                self._release(peer, arrived.stream)
                continue
            letters.append(letter)
            self._tickets[id(letter)] = (letter, peer, arrived.stream, arrived.payload)
        return letters

    def release(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            ticket = self._tickets.pop(id(letter), None)
            if ticket is not None:
                _, peer, stream, payload = ticket
                self._release(peer, stream)
                self._pool.give(payload)

    def _release(self, peer: int, stream: int) -> None:
        with self.lock:
            self.way(peer).link.release(stream)
            self._driver.wake()

    def refusals(self) -> list[tuple[int, WireError]]:
        refused, self._refusals = self._refusals, []
        return refused

    # Sleeping and waking

    def _ring(self) -> None:
        self._changes += 1
        self._changed.notify_all()
        self._woken()

    def listen(self) -> int:
        return self._changes

    def sleep(self, token: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._changes != token, seconds)

    # Who is there

    def phase(self, peer: int) -> Phase:
        return self.status(peer).phase

    def status(self, peer: int) -> Status:
        with self.lock:
            if peer == self.id:
                mine = self._mine
                return Status(
                    Phase(mine.phase), mine.steps, mine.samples, time.monotonic_ns(), mine.waits,
                    mine.wait_number, mine.looks,
                )  # fmt: skip
            way = self.ways.get(peer)
            return self._bulletin.status(peer, 0 if way is None else way.link.received)

    def connected_with(self, peers: Iterable[int]) -> bool:
        """Whether there is a connection with each of these that hasn't left."""
        with self.lock:
            ways = [self.way(peer) for peer in peers if self._known_phase(peer) < Phase.LEFT]
            return all(way.connection is not None for way in ways)

    def trouble(self, peer: int) -> Trouble | None:
        with self.lock:
            return self._trouble(peer)

    def _trouble(self, peer: int) -> Trouble | None:
        way = self.ways.get(peer)
        if way is None:
            return None
        if way.connection is not None:
            return Trouble(way.stalled_ns, UNACKNOWLEDGED) if way.stalled_ns else None
        return Trouble(way.apart_ns, way.trouble or NO_ANSWER) if way.apart_ns else None

    @property
    def ended(self) -> PeerLost | None:
        """Why the run can't go on, if somebody says so."""
        with self.lock:
            beat = self._bulletin.ended
        return (
            None
            if beat is None
            else RunEnded(beat.ended, peers=(beat.who if self._lost is None else self._lost,))
        )

    def fail(self, why: str) -> None:
        """Tell everybody that the run can't go on."""
        with self.lock:
            self._end(why, None)

    def _end(self, why: str, lost: int | None) -> None:
        if self._bulletin.ended is None:
            self._mine.ended, self._lost = why[:ENDED_CHARACTERS], lost
            self._urgent()

    def set_phase(self, phase: Phase) -> None:
        with self.lock:
            self._mine.phase = phase
            if phase >= Phase.DONE:
                self._mine.sent = {peer: way.link.sent for peer, way in self.ways.items() if way.link.sent}
            self._urgent()

    def set_progress(self, steps: int, samples: int) -> None:
        self._mine.steps, self._mine.samples = steps, samples

    def set_waits(self, waits: str) -> None:
        with self.lock:
            self._mine.waits = waits[:TEXT_CHARACTERS]
            self._mine.wait_number += 1

    def set_looks(self, looks: int) -> None:
        self._mine.looks = looks

    def beat(self) -> None:
        """The driver beats by itself."""

    # What is published

    def publish(self, name: str, tensor: Tensor) -> None:
        self._windows[name] = typed(flat_copy(tensor), tensor.dtype, tensor.shape)

    def window(self, name: str, tensor: Tensor) -> Tensor:
        if not lies_flat(tensor):
            tensor = typed(flat_copy(tensor), tensor.dtype, tensor.shape)
        self._windows[name] = tensor
        return tensor

    def peek(self, peer: int, name: str) -> Tensor | None:
        """What a peer shows now: asks it, and waits for its answer."""
        if peer == self.id:
            return self._windows.get(name)
        number, began = next(self._numbers), time.monotonic()
        with self._changed:
            self._asked[number] = (peer, name)
            way = self.way(peer)
            way.wanted = True
            if way.connection is not None:
                way.link.look(Look(number, name))
            self._driver.wake()
            try:
                while number not in self._answers:
                    self._changed.wait(0.1)
                    self._check_answers(peer, name, began)
            finally:
                del self._asked[number]
                answer = self._answers.pop(number, None)
        return None if answer is None else answer.tensor

    def _check_answers(self, peer: int, name: str, began: float) -> None:
        if self._bulletin.ended is not None:
            raise RunEnded(self._bulletin.ended.ended, peers=(peer,))
        limit = self.job.deadline_s
        now, trouble = time.monotonic_ns(), self._trouble(peer)
        apart = trouble is not None and now - trouble.since_ns > limit * 1e9
        silent = now - self._bulletin.heard_ns[peer] > limit * 1e9
        if limit and (silent or apart) and time.monotonic() - began > limit:
            raise PeerSilent(
                f"participant {peer} has not shown its {name} for {limit:.0f} s. "
                f"{self._trouble_in_words(peer)}A longer --deadline waits longer.",
                peers=(peer,),
            )

    def _trouble_in_words(self, peer: int) -> str:
        trouble = self._trouble(peer)
        return "" if trouble is None else f"There is no way to it: {trouble.why}. "

    def _show(self, peer: int, look: Look) -> None:
        window = self._windows.get(look.name)
        if window is None:
            self.way(peer).link.tell(look_record(Kind.NOTHING, look))
            return
        letter = Letter(self.id, _SHOWN, window, (0,), note={"number": look.number})
        self.way(peer).link.post(_SHOWN, self._parcel(letter, 1))

    def _shown(self, peer: int, arrived: Arrived) -> None:
        self.way(peer).link.release(arrived.stream)
        number = arrived.header.note.get("number")
        self._answer(peer, number, letter_of(arrived.header, arrived.payload, peer))

    def _answer(self, peer: int, number: object, letter: Letter | None) -> None:
        """Late or doubled answers are to nobody's question."""
        if isinstance(number, int) and number in self._asked and self._asked[number][0] == peer:
            self._answers[number] = letter

    # The end

    def close(self) -> None:
        """Stay until all who can't read our memory have left: they may still look at what is published here."""
        with self._changed:
            while not self._may_go():
                self._changed.wait(_LINGER_NAP_S)
        self._driver.stop()

    def _may_go(self) -> bool:
        """Whether nobody needs an answer of ours any more, and everybody has been told that we leave."""
        beats, known = self._bulletin.beats, {*self.job.directory, *self._bulletin.beats}
        over = self._bulletin.ended is not None or all(
            (who in beats and beats[who].phase >= Phase.LEFT) or self._is_silent(who)
            for who in known - self._near
        )
        return over and all(
            way.connection is None or way.link.idle or self._is_silent(peer)
            for peer, way in self.ways.items()
        )

    def _is_silent(self, peer: int) -> bool:
        """Whether a peer has given no sign of life for the deadline, so that nothing is to be expected of it."""
        silent_ns = time.monotonic_ns() - self._bulletin.heard_ns[peer]
        return peer != self.id and silent_ns > (self.job.deadline_s or _ENDLESS_DEADLINE_S) * 1e9


def number_of(session: str) -> int:
    """The same for the same job everywhere."""
    return int.from_bytes(hashlib.sha256(session.encode()).digest()[:7], "little")
