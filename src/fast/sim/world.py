"""SimWorld: the verbs behind `me`, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, final

import torch
from torch import Tensor

from fast.collectives.performing import Performer
from fast.core import Letter, Need, Reduction, World
from fast.core.framing import header_of
from fast.core.seeds import stream_seed
from fast.core.world import Kind, Labour, Pause, Round, is_round
from fast.errors import FastError, UsageError
from fast.membership import Change
from fast.sim.cluster import Work
from fast.sim.cores import Cores
from fast.sim.effort import Effort
from fast.sim.events import Events
from fast.sim.inbox import Inbox, LetterWait, NewsWait
from fast.sim.interference import Interference
from fast.sim.memory import Memory, Windows
from fast.sim.post import Post
from fast.sim.programs import Computing, Overtakable, Request
from fast.sim.rounds import NAMED, MeanWait, Rounds
from fast.trace import Dropped, Observer, Record, Waited
from fast.view import View
from fast.wire import HEADER_BYTES, decode_header, encode_header

_PLAIN = bytes(HEADER_BYTES)


@dataclass(frozen=True)
class Surroundings:
    """What all participants of one simulation share."""

    view: View
    seed: int
    events: Events
    post: Post
    rounds: Rounds
    observers: Sequence[Observer] = ()
    work: Work | None = None
    """None where local work takes no time."""
    cores: Cores | None = None
    faults: Interference | None = None
    spoil_letters: bool = False
    """Whether letters are made useless when their turn is over, as memory that is used again would be."""
    windows: Windows = field(default_factory=dict)
    """What participants have published."""


@final
class SimWorld(World):
    """One participant's world. Its waits yield to the simulation's event loop.

    Local work (an optimizer's step, a copy) happens inside a turn, which can't stand still there. So
    its time is owed: `now` is ahead of the events by it, letters leave that much later, and the time
    passes at the next wait or at the end of the turn.
    """

    observed = False

    def __init__(self, id_: int, surroundings: Surroundings, inbox: Inbox, *, life: int = 0) -> None:
        self.id = id_
        self.start_view = surroundings.view
        self.inbox = inbox
        self.seed = surroundings.seed
        words = ("draw", id_, life) if life else ("draw", id_)
        self.random = Random(stream_seed(self.seed, *words))
        self.touched = False
        """Whether the turn under way has read or sent anything; until then it can be given up."""
        self.suspensions = 0
        """How often a program of this participant really had to wait."""
        self._events, self._post, self._rounds = surroundings.events, surroundings.post, surroundings.rounds
        self._observers, self._faults = surroundings.observers, surroundings.faults
        self.observed = bool(self._observers)
        self._cores, self._work_takes_time = surroundings.cores, surroundings.work is not None
        self.effort = Effort(surroundings.work, server=id_ in surroundings.view.servers)
        workers = surroundings.view.workers
        self.link = surroundings.post.traffic.link(
            workers[0], workers[-1]
        )  # one for all, who must choose alike
        self.ready_ns: Sequence[int] = ()
        """When the buckets of the gradient under way are computed; empty once all of it is."""
        self.gradient_computed: Callable[[], None] = lambda: None
        self.on_step: Callable[[int], None] = lambda steps: None
        self.over = False
        """Whether everybody has taken its last step: what happens then takes no time."""
        self._memory = Memory(self, surroundings.windows, surroundings.post.traffic)
        self._spoil, self._taken = surroundings.spoil_letters, list[Letter]()
        self._reading_shows = self._work_takes_time or self._spoil
        inbox.noticing = self._work_takes_time
        self._plain: set[tuple[str, torch.dtype, int] | None] = set()
        """Kinds of letters whose header has the usual size, whatever their numbers are."""
        self.performer = Performer(self)

    def now(self) -> int:
        return self._events.now_ns + self.effort.owed_ns

    def draw(self) -> float:
        return self.random.random()

    def departures(self) -> Mapping[int, int]:
        return self._post.departures

    def listening(self) -> Collection[int]:
        return self._post.listening

    def changes(self) -> Sequence[Change]:
        return self._post.changes

    def view_at(self, step: int | None, period: int) -> View:
        """The same for everybody who is alive, so that thousands don't each work it out."""
        if self.id in self._post.departures:
            return super().view_at(step, period)
        return self._post.views.now() if step is None else self._post.views.at(step, period)

    def stepped(self, steps: int) -> None:
        self.on_step(steps)

    # Local work

    def working(self) -> None:
        if self._work_takes_time:
            self.effort.pause()

    def worked(self, on: Labour, nbytes: int) -> None:
        if self._work_takes_time:
            self.effort.resume()
            self.effort.charge(on, nbytes)

    async def catch_up(self) -> None:
        """Let the time of the work pass that has been done so far."""
        if self.effort.owed_ns and not self.polled:
            await self.occupy(self.effort.settle())

    async def occupy(self, work_ns: int) -> None:
        """Let the time of this work pass, on a core of this host if they are few: in turns with the others."""
        if self._cores is None or self.effort.work is None:
            await self.compute(work_ns)
            return
        try:
            while work_ns > 0:
                await self.take_core()
                stint_ns = self._cores.stint_ns(self.id, work_ns)
                await self.compute(stint_ns)
                self._cores.worked(self.id, stint_ns)
                work_ns -= stint_ns
        except GeneratorExit:  # it is dead
            self._cores.give_back(self.id)
            raise
        self._cores.rests(self.id)

    async def take_core(self) -> None:
        """Wait for a core of this host, if they are few; who works already has one."""
        if self._cores is None:
            return
        turn = Computing()
        if not self._cores.take(self.id, turn.resume):
            try:
                await turn
            except GeneratorExit:  # it has died in the queue
                self._cores.give_back(self.id)
                raise

    async def wake(self) -> None:
        """After a wait or a sleep: nobody goes on without a core, and nobody keeps one who has nothing to do."""
        if self._cores is not None and not self.polled and not self.over:
            await self.take_core()
            self._cores.rests(self.id)

    def outgoing(self, tensor: Tensor) -> Tensor:
        return tensor if self._faults is None else self._faults.sent_by(self.id, tensor, self.now())

    # Letters

    def send(self, to: tuple[int, ...], letter: Letter) -> None:
        self.touched = True
        reaches = self._post.reaches
        reachable = to if not self._post.departures else tuple(peer for peer in to if reaches(peer))
        if len(reachable) < len(to):
            for peer in to:
                if not reaches(peer):
                    self._post.drop(self.id, letter, peer, f"peer {peer} has left")
        if not reachable:
            return
        header = self._header(letter)
        payload_bytes = letter.tensor.nbytes
        if self._work_takes_time:
            self.effort.pause()
        tensor = letter.tensor.clone() if letter.tensor.is_contiguous() else letter.tensor.contiguous()
        if self._work_takes_time:
            self.effort.charge(Labour.SEND, payload_bytes, len(reachable))
            self.effort.resume()
        private, leaves_ns = len(reachable) == 1, self.now()
        for peer in reachable:
            # The note goes through its bytes: what the real world refuses is refused here too,
            # and no two participants ever hold the same list.
            note = decode_header(header).note if letter.note else {}
            copy = _copy(letter, tensor, note, private)
            self._post.send(peer, copy, len(header) + payload_bytes, leaves_ns)

    def _header(self, letter: Letter) -> bytes:
        """What is refused in the real world is refused here too. That takes most of the time of sending a
        small letter, so one that has nothing but values is weighed, once the first of its kind was taken."""
        plain = not letter.note and letter.codec is None and letter.present is None and len(letter.steps) == 1
        kind = (letter.tag, letter.tensor.dtype, letter.tensor.dim()) if plain else None
        if kind in self._plain:
            return _PLAIN
        header = encode_header(header_of(letter))
        if kind is not None and len(header) == HEADER_BYTES:
            self._plain.add(kind)
        return header

    def drop(self, letter: Letter, to: int, why: str) -> None:
        """Report that nobody will read this letter."""
        if self.observed and letter.whole:
            self.emit(
                Dropped(self.id, self.now(), letter.sender, to, letter.tag, why, letter.steps, letter.letters)
            )

    def take(self, tag: str, senders: Collection[int] | None) -> list[Letter]:
        letters = self.inbox.mailbox.take(tag, senders)
        if letters:
            self.touched = True
            for letter in letters if self._reading_shows else ():
                self._read(letter)
        return letters

    def take_one(self, tag: str, sender: int) -> Letter | None:
        letter = self.inbox.mailbox.take_one(tag, sender)
        if letter is not None:
            self.touched = True
            if self._reading_shows:
                self._read(letter)
        return letter

    def _read(self, letter: Letter) -> None:
        if self._work_takes_time:
            known = self.inbox.was_noticed(letter)
            self.effort.charge(Labour.TAKE if known else Labour.READ, letter.tensor.nbytes)
        if self._spoil:
            letter.tensor = letter.tensor.clone()
            self._taken.append(letter)

    def ready(self, tag: str, peers: tuple[int, ...], need: Need) -> bool:
        return not self._missing(tag, peers, need)

    async def wait(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        """Most letters have come before they are needed: then there is nothing to wait for."""
        if self._missing(tag, peers, need):
            await super().wait(tag, peers, need)

    async def block(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        missing = self._missing(tag, peers, need)
        if missing and self.effort.owed_ns:
            await self.catch_up()
            missing = self._missing(tag, peers, need)
        if not missing:
            return
        since_ns = self.now()
        for peer in self._departed(missing):
            self._post.tell_later(peer, self.id)
        await self._await_mail(LetterWait(tag, missing, need), missing)
        on = missing if len(missing) <= NAMED else ()
        self._report_wait(on, "mean" if is_round(tag) else tag, since_ns, self.now())

    async def _await_mail(self, wait: LetterWait | NewsWait, peers: tuple[int, ...] = ()) -> None:
        self.inbox.waiting = wait
        self._post.waits(self.id, peers)
        self.suspensions += 1
        since_ns = self._events.now_ns
        try:
            await wait
        finally:
            self.inbox.waiting = None
            self._post.waited(self.id, peers)
        self.effort.slept(self._events.now_ns - since_ns)
        self.effort.charge(Labour.WAKE, 0)
        await self.wake()

    def _missing(self, tag: str, peers: tuple[int, ...], need: Need) -> tuple[int, ...]:
        """Who has neither written nor gone; nobody if that is already enough."""
        left = self._post.departures
        if need is Need.ANY:
            enough = self.inbox.mailbox.has_any(tag) or not peers
            return () if enough or (left and self._has_gone(peers)) else peers
        missing = self.inbox.mailbox.lacks(tag, peers)
        if not left or not missing:
            return missing
        return tuple(peer for peer in missing if not self._post.is_gone(peer, self.id))

    def _has_gone(self, peers: tuple[int, ...]) -> bool:
        """Whether any of these is gone."""
        return any(self._post.is_gone(peer, self.id) for peer in self._departed(peers))

    def _departed(self, peers: tuple[int, ...]) -> list[int]:
        """Those of these who have left, in the order of `peers` or (of many) in that of leaving."""
        left = self._post.departures
        if len(left) * NAMED < len(peers):
            return [peer for peer in left if peer in peers]
        return [peer for peer in peers if peer in left] if left else []

    async def wait_for_news(self) -> None:
        """Until anything arrives or anybody leaves: a server that has nothing to do. What comes while it is still at
        work is no news afterwards, so then it looks again first."""
        if self.effort.owed_ns:
            await self.catch_up()
            return
        since_ns = self.now()
        await self._await_mail(NewsWait())
        self._report_wait((), "news", since_ns, self.now())

    # Collectives

    async def collective(self, round_: Round) -> Reduction:
        everybody = round_.among is self.start_view.workers  # ten thousand, in which to look takes long
        if self.id in self.start_view.servers if everybody else self.id not in round_.among:
            raise UsageError(
                f"participant {self.id} asked for the mean among {round_.among}, to which it doesn't belong. "
                "Only members may ask; servers receive letters instead."
            )
        self.touched = True
        await self.catch_up()
        round_ = round_.in_groups(self.start_view.groups)
        plain = round_.kind is Kind.MEAN and round_.coder is None
        if not plain or round_.algorithm != "auto":
            return await self.performer.perform(round_)
        wait, since_ns = MeanWait(round_), self.now()
        self.effort.pause()
        self._rounds.join(self.id, wait)
        self.effort.resume()
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
        self.effort.slept(closed_ns - since_ns)
        self._report_wait(wait.missing, "mean", since_ns, closed_ns)
        await self.wake()
        wait.took_ns = self.now() - closed_ns

    # Computing

    async def compute(self, duration_ns: int) -> None:
        """Let the time pass that something takes."""
        request = Computing()
        self._events.at(self._events.now_ns + duration_ns, request.resume)
        if not self.polled:
            await request
        while not request.fulfilled:
            await Pause(lambda: request.fulfilled, lambda: _await(request))

    async def compute_unless(self, duration_ns: int, tag: str) -> None:
        """Let the time pass that something takes, or until a letter with this tag makes it worthless."""
        if self.inbox.mailbox.has_any(tag):
            return
        self.inbox.waiting = request = Overtakable(tag)
        until_ns = self._events.now_ns + duration_ns
        self._events.at(until_ns, request.end)
        try:
            await request
        finally:
            self.inbox.waiting = None
        self._events.withdraw(until_ns, request.end)

    async def gradient_ready(self, number: int) -> None:
        if number < len(self.ready_ns):
            await self.compute(max(0, self.ready_ns[number] - self.now()))
            if number == len(self.ready_ns) - 1:
                self.gradient_computed()
                self.ready_ns = ()

    # One-sided

    def publish(self, name: str, tensor: Tensor) -> Tensor:
        self.touched = True
        return self._memory.publish(name, tensor)

    async def read(self, peer: int, name: str) -> Tensor | None:
        if self.over:
            return self._memory.as_it_is(peer, name)
        await self.catch_up()
        since_ns = self.now()
        found = await self._memory.read(peer, name)
        self._have_reached(peer, name, since_ns)
        return found

    async def amend(self, peer: int, name: str, before: Tensor, after: Tensor, *, atomic: bool) -> bool:
        await self.catch_up()
        since_ns = self.now()
        found = await self._memory.amend(peer, name, before, after, atomic=atomic)
        self._have_reached(peer, name, since_ns)
        return found

    def _have_reached(self, peer: int, name: str, since_ns: int) -> None:
        self.touched = True
        self._report_wait((peer,), name, since_ns, self.now())

    # Reports

    def turn_ended(self) -> None:
        """Each letter has memory of its own, so there is nothing to give back; but who reads a letter
        after its turn would read something else on real workers, and is shown so if asked."""
        if self._taken:
            for letter in self._taken:
                if letter.tensor.is_floating_point():
                    letter.tensor.fill_(torch.nan)
            self._taken.clear()

    def emit(self, record: Record) -> None:
        for observer in self._observers:
            observer(record)

    def _report_wait(self, on: tuple[int, ...], why: str, since_ns: int, until_ns: int) -> None:
        if self.observed and until_ns > since_ns:
            self.emit(Waited(self.id, until_ns, tuple(sorted(on)), why, until_ns - since_ns))


async def _await(request: Request) -> None:
    await request


def _copy(letter: Letter, tensor: Tensor, note: dict[str, Any], private: bool) -> Letter:
    """`dataclasses.replace` does the same and takes longer than everything else in a send."""
    return Letter(
        letter.sender, letter.tag, tensor, letter.steps, letter.view, letter.version, letter.weight, note,
        letter.present, private, letter.codec, letter.dtype, letter.shape, letter.part, letter.letters,
    )  # fmt: skip
