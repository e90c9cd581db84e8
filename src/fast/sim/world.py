"""SimWorld: the verbs behind `me`, in virtual time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import final

from torch import Tensor

from fast.core import Letter, Need, Reduction, World
from fast.core.framing import header_of
from fast.core.seeds import stream_seed
from fast.errors import FastError, UsageError
from fast.sim.events import Events
from fast.sim.inbox import Inbox, LetterWait, NewsWait
from fast.sim.post import Post
from fast.sim.programs import Computing
from fast.sim.rounds import MeanWait, Rounds
from fast.trace import Dropped, Observer, Record, Waited
from fast.view import View
from fast.wire import decode_header, encode_header


@dataclass(frozen=True)
class Surroundings:
    """What all participants of one simulation share."""

    view: View
    seed: int
    events: Events
    post: Post
    rounds: Rounds
    observers: Sequence[Observer]


@final
class SimWorld(World):
    """One participant's world. Its waits yield to the simulation's event loop."""

    def __init__(self, id_: int, surroundings: Surroundings, inbox: Inbox) -> None:
        self.id = id_
        self.start_view = surroundings.view
        self.inbox = inbox
        self.random = Random(stream_seed(surroundings.seed, "draw", id_))
        self.touched = False
        """Whether the turn under way has read or sent anything; until then it can be given up."""
        self.suspensions = 0
        """How often a program of this participant really had to wait."""
        self._events, self._post, self._rounds = surroundings.events, surroundings.post, surroundings.rounds
        self._observers = surroundings.observers

    def now(self) -> int:
        return self._events.now_ns

    def draw(self) -> float:
        return self.random.random()

    def departures(self) -> Mapping[int, int]:
        return self._post.departures

    # Letters

    def send(self, to: tuple[int, ...], letter: Letter) -> None:
        self.touched = True
        reachable = [peer for peer in to if peer not in self._post.departures]
        for peer in to:
            if peer in self._post.departures:
                self._drop(letter, peer)
        if not reachable:
            return
        header, payload_bytes = (
            encode_header(header_of(letter)),
            letter.tensor.numel() * letter.tensor.element_size(),
        )
        tensor = letter.tensor.detach().clone()
        for peer in reachable:
            # The note goes through its bytes: what the real world refuses is refused here too,
            # and no two participants ever hold the same list.
            note = decode_header(header).note if letter.note else {}
            copy = replace(letter, tensor=tensor, note=note, private=len(reachable) == 1)
            self._post.send(peer, copy, len(header) + payload_bytes)

    def _drop(self, letter: Letter, to: int) -> None:
        if self.observed:
            self.emit(Dropped(self.id, self.now(), letter.sender, to, letter.tag, f"peer {to} has left"))

    def take(self, tag: str, senders: Collection[int] | None) -> list[Letter]:
        letters = self.inbox.mailbox.take(tag, senders)
        self.touched |= bool(letters)
        return letters

    def take_one(self, tag: str, sender: int) -> Letter | None:
        letter = self.inbox.mailbox.take_one(tag, sender)
        self.touched |= letter is not None
        return letter

    async def wait(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        missing = self._missing(tag, peers, need)
        if not missing:
            return
        since_ns = self.now()
        for peer in missing:
            if peer in self._post.departures:
                self._post.tell_later(peer, self.id)
        self.inbox.waiting = wait = LetterWait(tag, missing, need)
        self.suspensions += 1
        await wait
        self.inbox.waiting = None
        self._report_wait(missing, tag, since_ns, self.now())

    def _missing(self, tag: str, peers: tuple[int, ...], need: Need) -> tuple[int, ...]:
        """Who has neither written nor gone; nobody if that is already enough."""
        gone = {peer for peer in peers if peer in self._post.departures and self._post.is_gone(peer, self.id)}
        if need is Need.ANY:
            return () if gone or self.inbox.mailbox.has_any(tag) else peers
        return tuple(peer for peer in peers if peer not in gone and not self.inbox.mailbox.has(tag, peer))

    async def wait_for_news(self) -> None:
        """Until anything arrives or anybody leaves: a server that has nothing to do."""
        wait, since_ns = NewsWait(), self.now()
        self.inbox.waiting = wait
        self.suspensions += 1
        await wait
        self._report_wait((), "news", since_ns, self.now())

    # Collectives

    async def collective(
        self, tensor: Tensor, among: tuple[int, ...], weight: float, present: int | None, read_only: bool
    ) -> Reduction:
        if self.id not in among:
            raise UsageError(
                f"participant {self.id} asked for the mean among {among}, to which it doesn't belong. "
                "Only members may ask; servers receive letters instead."
            )
        self.touched = True
        wait, since_ns = MeanWait(tensor, weight, present, read_only), self.now()
        self._rounds.join(self.id, among, wait)
        if wait.missing or wait.reduction is None or len(wait.reduction.members) > 1:
            self.suspensions += 1
            await wait
            self._report_wait(wait.missing, "mean", since_ns, wait.closed_ns)
        if wait.reduction is None:
            raise FastError("a mean ended without a result")
        return replace(wait.reduction, took_ns=self.now() - wait.closed_ns)

    # Computing

    async def compute(self, duration_ns: int) -> None:
        """Let the time pass that this step's gradient takes."""
        request = Computing()
        self._events.at(self.now() + duration_ns, request.resume)
        await request

    # Reports

    def turn_ended(self) -> None:
        """Nothing to do: each letter has memory of its own."""

    def emit(self, record: Record) -> None:
        for observer in self._observers:
            observer(record)

    @property
    def observed(self) -> bool:
        return bool(self._observers)

    def _report_wait(self, on: tuple[int, ...], why: str, since_ns: int, until_ns: int) -> None:
        if self.observed and until_ns > since_ns:
            self.emit(Waited(self.id, until_ns, tuple(sorted(on)), why, until_ns - since_ns))
