"""SimWorld: the verbs behind `me`, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import final

import torch
from torch import Tensor

from fast.collectives.performing import Performer
from fast.core import Letter, Need, Reduction, World
from fast.core.framing import header_of
from fast.core.seeds import stream_seed
from fast.core.world import Kind, Link, Pause, Round, is_round
from fast.errors import FastError, UsageError
from fast.sim.events import Events
from fast.sim.inbox import Inbox, LetterWait, NewsWait
from fast.sim.post import Post
from fast.sim.programs import Computing, Request
from fast.sim.rounds import MeanWait, Rounds
from fast.trace import Dropped, Observer, Record, Waited
from fast.view import View
from fast.wire import decode_header, encode_header

READ_SLICES = 8
"""A one-sided read sees each of so many slices at a time of its own: it may be torn by writes in between."""


@dataclass(frozen=True)
class Surroundings:
    """What all participants of one simulation share."""

    view: View
    seed: int
    events: Events
    post: Post
    rounds: Rounds
    observers: Sequence[Observer]
    windows: dict[tuple[int, str], Tensor]
    """What participants have published, by their ids and its name."""


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
        self.seed = surroundings.seed
        network = surroundings.post.network
        self.link = Link(network.latency_s, network.rate_bytes_per_s)
        self.ready_ns: Sequence[int] = ()
        """When the buckets of the gradient under way are computed; empty once all of it is."""
        self.gradient_computed: Callable[[], None] = lambda: None
        self._windows = surroundings.windows
        self.performer = Performer(self)

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
        tensor = letter.tensor.detach().clone(memory_format=torch.contiguous_format)
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

    def ready(self, tag: str, peers: tuple[int, ...], need: Need) -> bool:
        return not self._missing(tag, peers, need)

    async def block(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
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
        self._report_wait(missing, "mean" if is_round(tag) else tag, since_ns, self.now())

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

    async def collective(self, round_: Round) -> Reduction:
        if self.id not in round_.among:
            raise UsageError(
                f"participant {self.id} asked for the mean among {round_.among}, to which it doesn't belong. "
                "Only members may ask; servers receive letters instead."
            )
        self.touched = True
        plain = round_.kind is Kind.MEAN and round_.coder is None
        if not plain or round_.algorithm != "auto":
            return await self.performer.perform(round_)
        wait, since_ns = MeanWait(round_), self.now()
        self._rounds.join(self.id, wait)
        if self.polled:
            while not wait.fulfilled:
                await Pause(lambda: wait.fulfilled, lambda: self._await_mean(wait, self.now()))
        else:
            await self._await_mean(wait, since_ns)
        if wait.reduction is None:
            raise FastError("a mean ended without a result")
        return replace(wait.reduction, took_ns=wait.took_ns)

    async def _await_mean(self, wait: MeanWait, since_ns: int) -> None:
        """Until the last member has come it is waiting; from then on values move."""
        if wait.fulfilled:
            return
        self.suspensions += 1
        await wait
        closed_ns = max(since_ns, wait.closed_ns)
        self._report_wait(wait.missing, "mean", since_ns, closed_ns)
        wait.took_ns = self.now() - closed_ns

    # Computing

    async def compute(self, duration_ns: int) -> None:
        """Let the time pass that this step's gradient takes."""
        request = Computing()
        self._events.at(self.now() + duration_ns, request.resume)
        if not self.polled:
            await request
        while not request.fulfilled:
            await Pause(lambda: request.fulfilled, lambda: _await(request))

    async def gradient_ready(self, number: int) -> None:
        if number < len(self.ready_ns):
            await self.compute(max(0, self.ready_ns[number] - self.now()))
            if number == len(self.ready_ns) - 1:
                self.gradient_computed()
                self.ready_ns = ()

    # One-sided: what is written is there at once, what is read travels slice by slice

    def publish(self, name: str, tensor: Tensor) -> Tensor:
        self.touched = True
        self._windows[self.id, name] = tensor
        return tensor

    async def read(self, peer: int, name: str) -> Tensor | None:
        window = self._windows.get((peer, name))
        if window is None:
            return None
        self.touched, since_ns = True, self.now()
        link = self._post.network.between(peer, self.id)
        copy = torch.empty_like(window)
        arriving = copy.view(-1).chunk(READ_SLICES)
        await self.compute(2 * link.latency_ns)
        for slice_, source in zip(arriving, window.reshape(-1).chunk(READ_SLICES), strict=True):
            slice_.copy_(source)
            await self.compute(link.sending_ns(slice_.numel() * slice_.element_size()))
        self._report_wait((peer,), name, since_ns, self.now())
        return copy

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


async def _await(request: Request) -> None:
    await request
