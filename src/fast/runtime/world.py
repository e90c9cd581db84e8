"""RealWorld: the verbs of World over a transport."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fast.collectives.performing import Performer
from fast.core import Letter, Mailbox, Need, Reduction, Tag, World
from fast.core.intake import Intake
from fast.core.mailbox import declared
from fast.core.rounds import LANES
from fast.core.seeds import stream_seed
from fast.core.world import Kind, Pause, Round, is_round, is_ticket
from fast.errors import MailboxFull, UsageError, WireError
from fast.parts.kernels.amending import amend, amend_atomically
from fast.runtime.across import Across
from fast.runtime.answers import Counts
from fast.runtime.journal import Journal, check_round
from fast.runtime.outbox import FOLDING_LIMIT, Outbox
from fast.runtime.patience import Deadline
from fast.trace import Dropped, Listeners, Observer, Record, Waited
from fast.transport import Phase, Transport
from fast.transport.base import Patience, UnderWay
from fast.view import View

_NAP_S = 0.1


class RealWorld(World):
    """One participant on real processes (or threads): waiting blocks."""

    observed = False

    def __init__(
        self,
        transport: Transport,
        view: View,
        tags: Iterable[Tag],
        *,
        seed: int = 0,
        deadline_s: float = 60.0,
        observers: Iterable[Observer] = (),
        say: Callable[[str], None] = lambda line: None,
        journal: Journal | None = None,
        listens: bool = False,
    ) -> None:
        """`listens`: whether a worker that has taken its last step still receives letters."""
        self.id, self.start_view, self.transport = transport.id, view, transport
        self.journal = journal
        self._deaf = Phase.SETTLED if listens else Phase.DONE
        """From this phase on a peer receives no more letters."""
        self.patience = Deadline(transport, (*view.workers, *view.servers), deadline_s, say)
        self.seed, self.link = seed, transport.link
        self._tags = {tag.name: tag for tag in tags}
        self._mailbox = Mailbox(self._tags)
        self._intake = Intake(self._tags, self.layout_of)
        self._outboxes: dict[int, Outbox] = {}
        self._refused: dict[int, WireError] = {}
        self._flooded: MailboxFull | None = None
        self._taken: list[Letter] = []
        self._of_rounds: dict[tuple[str, int], Letter] = {}
        self._random = random.Random(stream_seed(seed, "draw", self.id))
        self.observe(observers if journal is None else (*observers, *journal.observers))
        self._results: dict[tuple[int, int, torch.dtype], Tensor] = {}
        self._others = tuple(p for p in (*view.workers, *view.servers) if p != self.id)
        self._performer = Performer(self)
        self._across = Across(self, transport)
        self._waited_ns = 0
        self.exchanged = False
        """Whether the strategy has sent, read or shown anything, or taken part in a round of several."""
        self.buckets_ready = 0
        """So many buckets of this step's gradient have been computed."""
        self._backward = Backward()
        self._heart = _Heart(transport, deadline_s) if deadline_s else None

    now = staticmethod(time.monotonic_ns)

    def draw(self) -> float:
        value = self._random.random()
        if self.journal is not None:
            self.journal.drew(self.lane, value)
        return value

    def departures(self) -> Mapping[int, int]:
        transport = self.transport
        gone = [peer for peer in self._others if transport.phase(peer) >= Phase.DONE]
        found = {peer: transport.status(peer).steps for peer in gone}
        return found if self.journal is None else self.journal.departures(self.lane, found)

    def listening(self) -> tuple[int, ...]:
        phases = {peer: self.transport.phase(peer) for peer in self._others}
        found = tuple(peer for peer, phase in phases.items() if Phase.DONE <= phase < self._deaf)
        return found if self.journal is None else self.journal.listening(self.lane, found)

    # Letters

    def send(self, to: tuple[int, ...], letter: Letter) -> None:
        here = tuple(peer for peer in to if self.transport.phase(peer) < self._deaf)
        if self.journal is not None:
            here = self.journal.addressed(self.lane, letter.tag, to, here)
        for peer in to:
            if peer not in here:
                self.emit(Dropped(self.id, self.now(), self.id, peer, letter.tag, "the receiver has left"))
        queued = tuple(p for p in here if p in self._outboxes and self._outboxes[p].holds(letter.tag))
        direct = tuple(peer for peer in here if peer not in queued)
        self.exchanged |= bool(here) and not is_round(letter.tag)
        refused = self._post_first(direct, letter)
        for peer in queued + refused:
            if peer not in self._outboxes:
                self._outboxes[peer] = Outbox(self._tags, partial(self.layout_of, peer))
            self._outboxes[peer].put(letter)
        self._flush()

    def _post_first(self, peers: tuple[int, ...], letter: Letter) -> tuple[int, ...]:
        """Hand it over; returns for whom there was no room."""
        if self.journal is None:
            return self.transport.post(peers, letter, self._limit(letter)) if peers else ()
        refusing = self.journal.refusing()
        welcome = tuple(peer for peer in peers if peer not in refusing)
        refused = self.transport.post(welcome, letter, self._limit(letter)) if welcome else ()
        refused = tuple(peer for peer in peers if peer in refusing or peer in refused)
        self.journal.posted(refused)
        return refused

    def _limit(self, letter: Letter) -> int:
        """How many letters of its tag may wait at a receiver; pieces of one count together."""
        tag = declared(self._tags, letter.tag)
        limit = tag.capacity if tag.fold is None else FOLDING_LIMIT
        return limit if letter.part is None else limit * self.pieces

    def _flush(self) -> None:
        """Send what had no room before."""
        for peer, outbox in self._outboxes.items():
            if not len(outbox):
                continue
            if self.transport.phase(peer) >= Phase.SETTLED:  # until then it waits for what was sent
                for letter in outbox.drop():
                    why = "the receiver has left"
                    self.emit(Dropped(self.id, self.now(), self.id, peer, letter.tag, why))
            else:
                outbox.flush(partial(self._post, peer))

    def _post(self, peer: int, letter: Letter) -> bool:
        """Whether there was room for it."""
        if self.journal is not None and not self.journal.may_flush(peer, letter.tag):
            return False
        taken = not self.transport.post((peer,), letter, self._limit(letter))
        if taken and self.journal is not None:
            self.journal.flushed(peer, letter.tag)
        return taken

    @property
    def unsent(self) -> tuple[int, ...]:
        """The peers for whom letters wait here, because they have no room there."""
        self._flush()
        return tuple(peer for peer, outbox in self._outboxes.items() if len(outbox))

    def pump(self) -> None:
        """Move what has come in to the mailbox, and what had no room out.

        Every wait does this again and again, because whoever leaves waits for room for its last letters.
        """
        ended = self.transport.ended
        if ended is not None:
            raise ended
        if self._outboxes:
            self._flush()
        for letter in self.transport.arrivals():
            whole = self._taken_in(letter)
            if whole is not letter:
                self.transport.release((letter,))
            if whole is not None and (self.journal is None or not self.journal.keeps(whole)):
                self._deliver(whole)
        for sender, why in self.transport.refusals():
            self._refuse(sender, why)
        if self._flooded is not None:
            raise self._flooded

    def _deliver(self, letter: Letter) -> None:
        try:
            used = self._mailbox.deliver(letter)
        except MailboxFull as error:
            self._flooded = error  # raised when what the others sent has been taken in
            return
        self.transport.release(used)

    def _taken_in(self, letter: Letter) -> Letter | None:
        if is_ticket(letter.tag):
            # Many rounds are under way, and each may wait for a letter that has no room before those of
            # the others are given back: so they don't stay where they came in.
            return replace(letter, tensor=letter.tensor.clone(), private=True)
        try:
            return self._intake.take(letter)
        except WireError as error:
            self._refuse(letter.sender, error)
            return None

    def _refuse(self, sender: int, error: WireError) -> None:
        """What a peer sent can't be read. Whoever waits for that peer is told; the others go on."""
        self._refused[sender] = error
        self.emit(Dropped(self.id, self.now(), sender, self.id, "?", str(error)))

    def take(self, tag: str, senders: Collection[int] | None) -> list[Letter]:
        self.pump()
        if self.journal is not None:
            self._show(tag, self.journal.looks(self.lane, tag, senders))
        letters = self._mailbox.take(tag, senders)
        self._taken += letters
        self.exchanged |= bool(letters)
        return letters

    def take_one(self, tag: str, sender: int) -> Letter | None:
        if self.journal is not None:
            found = self._mailbox.has(tag, sender)
            self._show(tag, self.journal.looks_for(self.lane, tag, sender, found))
        letter = self._mailbox.take_one(tag, sender)
        self.exchanged |= letter is not None and not is_round(tag)
        if letter is not None and is_round(tag):
            # A round has used up a letter when it takes the next one of that sender, and one turn may
            # hold any number of rounds.
            used = self._of_rounds.pop((tag, sender), None)
            if used is not None:
                self.transport.release((used,))
            self._of_rounds[tag, sender] = letter
        elif letter is not None:
            self._taken.append(letter)
        return letter

    def _show(self, tag: str, seen: Counts) -> None:
        """In a replay: let the mailbox have what it had at this look, once that has come."""
        if seen and self.journal is not None:
            self._await_come(tag, seen)
            for letter in self.journal.due(tag, seen):
                self._deliver(letter)

    def _await_come(self, tag: str, seen: Counts) -> None:
        assert self.journal is not None
        while True:
            token = self.transport.listen()
            self.pump()
            if self.journal.come(tag, seen):
                return
            self.meanwhile()
            self.transport.sleep(token, _NAP_S)

    def doze(self, seconds: float, tag: str) -> None:
        """Sleep between two turns, but no longer than until a letter with this tag has come."""
        until_ns = self.now() + round(seconds * 1e9)
        while True:
            token = self.transport.listen()
            self.pump()
            left_s = (until_ns - self.now()) / 1e9
            if left_s <= 0 or self._mailbox.has_any(tag):
                return
            self.transport.sleep(token, min(left_s, _NAP_S))

    def unread(self) -> int:
        """Letters that have arrived and were not read yet."""
        self.pump()
        return len(self._mailbox)

    def drop_unread(self) -> None:
        """Nobody will read what has arrived and wasn't read yet: report it."""
        self.pump()
        for each in self._mailbox.letters():
            why = "unread at the end"
            self.emit(
                Dropped(self.id, self.now(), each.sender, self.id, each.tag, why, each.steps, each.letters)
            )

    def turn_ended(self) -> None:
        if self._of_rounds:
            self.transport.release(self._of_rounds.values())
            self._of_rounds.clear()
        if self._taken:
            self.transport.release(self._taken)
            self._taken.clear()

    def goes_on(self, more: bool) -> bool:
        """Whether a server serves another turn, given whether there is a reason to."""
        return more if self.journal is None else self.journal.goes_on(more)

    # Waiting

    async def wait(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        if self.journal is None:
            await super().wait(tag, peers, need)
            return
        lane, seen = self.lane, self.journal.awaits(self.lane, tag)
        if seen is None:
            await super().wait(tag, peers, need)
            self.journal.waited(lane, tag, tuple(p for p in peers if self._mailbox.has(tag, p)))
        else:
            await self._wait_again(tag, seen)

    async def _wait_again(self, tag: str, seen: Counts) -> None:
        """In a replay: until as much has come as then."""
        while self.polled and not self._come(tag, seen):
            await Pause(lambda: self._come(tag, seen), lambda: self._block_again(tag, seen))
        await self._block_again(tag, seen)

    def _come(self, tag: str, seen: Counts) -> bool:
        self.pump()
        return self.journal is None or self.journal.come(tag, seen)

    async def _block_again(self, tag: str, seen: Counts) -> None:
        self._await_come(tag, seen)

    async def block(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        missing = self._missing(tag, peers, need)
        if not missing:
            return
        began, on = self.now(), missing
        with self.patience:
            while missing:
                token = self.transport.listen()
                self.meanwhile()
                missing = self._missing(tag, peers, need)
                if missing:
                    self._check_readable(missing)
                    self.transport.sleep(token, _NAP_S)
                    self.patience.check(missing, f"letter {tag!r}")
        self._report_wait(on, "mean" if is_round(tag) else tag, began, self.now())

    def ready(self, tag: str, peers: tuple[int, ...], need: Need) -> bool:
        return not self._missing(tag, peers, need)

    def _check_readable(self, peers: tuple[int, ...]) -> None:
        for peer in peers:
            if peer in self._refused:
                raise self._refused[peer]

    def _missing(self, tag: str, peers: tuple[int, ...], need: Need) -> tuple[int, ...]:
        """Who still has to send; empty when the wait is over. Phases are read before the mail, so
        that whoever counts as gone has really nothing more on its way."""
        gone = [peer for peer in peers if self.transport.phase(peer) >= Phase.DONE]
        self.pump()
        if need is Need.ALL:
            return tuple(p for p in peers if p not in gone and not self._mailbox.has(tag, p))
        return () if gone or self._mailbox.has_any(tag) else peers

    # Rounds

    async def collective(self, round_: Round) -> Reduction:
        if self.id not in round_.among:
            raise UsageError(f"participant {self.id} calls mean() among {round_.among} and isn't one of them")
        self.exchanged |= round_.lane <= LANES and len(round_.among) > 1
        began_ns, waited_before_ns = self.now(), self._waited_ns
        if self.journal is not None:
            check_round(round_)
        round_ = round_.in_groups(self.start_view.groups)
        if self._takes(round_):
            reduction = await self._reduce_in_place(round_)
            self._report_waits_of_mean(began_ns)
        elif self.journal is None and self._across.takes(
            round_
        ):  # a record holds letters, and they have the same bits
            reduction = self._result(await self._across.perform(round_, self._await), round_)
            self._release_round(round_.tag)
            self._report_waits_of_mean(began_ns)
        else:
            reduction = await self._performer.perform(round_)
            self._release_round(round_.tag)
        if self.observed and not self.polled:
            waited_ns = self._waited_ns - waited_before_ns
            reduction.took_ns = self.now() - began_ns - waited_ns
        return reduction

    def _release_round(self, tag: str) -> None:
        """A round that is over has used up its letters; a turn may hold any number of rounds."""
        over = [key for key in self._of_rounds if key[0] == tag]
        self.transport.release([self._of_rounds.pop(key) for key in over])

    def _takes(self, round_: Round) -> bool:
        """Whether the transport's own reduction does it, which nothing on one host is faster than."""
        plain = round_.kind is Kind.MEAN and round_.algorithm == "auto" and round_.coder is None
        return plain and self.transport.can_reduce(round_)

    async def _reduce_in_place(self, round_: Round) -> Reduction:
        journal, lane = self.journal, self.lane
        if journal is not None:
            journal.reducing(lane)
        under_way = self.transport.reduce(round_)
        await self._await(under_way)
        reduction = under_way.reduction
        if journal is not None:
            journal.reduced(lane, reduction.members)
        return self._result(reduction, round_)

    def _result(self, reduction: Reduction, round_: Round) -> Reduction:
        """As its caller may have it: for itself, unless it only reads."""
        if round_.read_only and reduction.tensor.device == round_.tensor.device:
            return reduction
        return replace(reduction, tensor=self._own_copy(reduction.tensor, round_), whole=None)

    async def _await(self, under_way: UnderWay) -> None:
        if self.polled:
            while not under_way.poll():
                await Pause(under_way.poll, lambda: self._finish(under_way))
        else:
            await self._finish(under_way)

    async def _finish(self, under_way: UnderWay) -> None:
        with self.patience:
            under_way.finish(_Attentive(self))

    def _report_waits_of_mean(self, began_ns: int) -> None:
        """Members wait for each other before they add and after it; reported as one wait, before.
        Of a round that was under way meanwhile only what its owner waited for it."""
        waited = self.transport.take_waited_ns()
        if waited:
            slowest, total_ns = max(waited, key=lambda peer: waited[peer]), sum(waited.values())
            ended_ns = self.now() if self.polled else began_ns + total_ns
            self._report_wait((slowest,), "mean", ended_ns - total_ns, ended_ns)

    def _own_copy(self, result: Tensor, round_: Round) -> Tensor:
        like = round_.tensor
        key = (round_.lane, like.numel(), like.dtype)
        if key not in self._results:
            self._results[key] = torch.empty_like(like, memory_format=torch.contiguous_format).reshape(-1)
        return self._results[key].copy_(result.reshape(-1)).view(like.shape)

    # The gradient, as backward computes it

    async def gradient_ready(self, number: int) -> None:
        while number >= self.buckets_ready:
            if self.polled:
                await Pause(lambda: number < self.buckets_ready, lambda: self._await_backward(number))
            else:
                await self._backward

    async def _await_backward(self, number: int) -> None:
        while number >= self.buckets_ready:
            await self._backward

    # One-sided

    def publish(self, name: str, tensor: Tensor) -> Tensor:
        self.exchanged = True
        return self.transport.window(f"me:{name}", tensor)

    async def read(self, peer: int, name: str) -> Tensor | None:
        self.exchanged = True
        return self.transport.peek(peer, f"me:{name}")

    async def amend(self, peer: int, name: str, before: Tensor, after: Tensor, *, atomic: bool) -> bool:
        self.exchanged = True
        if peer not in self.transport.shared_with:
            raise UsageError(
                f"participant {self.id} can't amend the memory of {peer}, which is on another host. Start all "
                "workers of this strategy on one host, or take one that sends letters."
            )
        memory = self.transport.peek(peer, f"me:{name}")
        if memory is None:
            return False
        changed = amend_atomically if atomic else amend
        changed(memory.view(-1), before.reshape(-1).cpu(), after.reshape(-1).cpu())
        return True

    # Reporting

    def observe(self, observers: Iterable[Observer]) -> None:
        """From now on report to these, and to nobody else."""
        self._listeners = Listeners(observers)
        self.observed = bool(self._listeners.observers)

    def _report_wait(self, on: tuple[int, ...], why: str, began_ns: int, ended_ns: int) -> None:
        self._waited_ns += ended_ns - began_ns
        if self.observed:
            self.emit(Waited(self.id, ended_ns, on, why, ended_ns - began_ns))

    def emit(self, record: Record) -> None:
        for take in self._listeners[type(record)]:
            take(record)

    def close(self) -> None:
        if self._heart is not None:
            self._heart.stop()


class Backward:
    """What a program yields that needs a bucket which backward has not computed yet."""

    def __await__(self) -> Generator[Backward, None, None]:
        yield self


class _Attentive(Patience):
    """Reads the mail during a collective."""

    def __init__(self, world: RealWorld) -> None:
        self._world = world

    def check(self, peers: tuple[int, ...], why: str) -> None:
        self._world.pump()
        self._world.meanwhile()
        self._world.patience.check(peers, why)


class _Heart:
    """A background thread that says every now and then that this process is alive."""

    def __init__(self, transport: Transport, deadline_s: float) -> None:
        self._stopped = threading.Event()
        pause_s = min(1.0, max(0.05, deadline_s / 10))

        def beat() -> None:
            transport.beat()
            while not self._stopped.wait(pause_s):
                transport.beat()

        threading.Thread(target=beat, name="fast-heart", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
