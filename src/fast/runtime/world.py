"""RealWorld: the verbs of World over a transport."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fast.collectives.direct import MEAN_TAGS, direct_mean
from fast.core import Letter, Mailbox, Need, Reduction, Tag, World
from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.runtime.patience import Deadline
from fast.trace import Choosy, Dropped, Listeners, Observer, Record, Waited
from fast.transport import Phase, Transport
from fast.transport.base import Patience
from fast.view import View

_NAP_S = 0.1
_FOLDING_LIMIT = 2
"""Letters of a folding tag that may wait at a peer; what comes after folds before it is sent."""


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
    ) -> None:
        self.id, self.start_view, self.transport = transport.id, view, transport
        self.patience = Deadline(transport, (*view.workers, *view.servers), deadline_s, say)
        self._tags = {tag.name: tag for tag in tags}
        self._mailbox = Mailbox(self._tags)
        self._outboxes: dict[int, Mailbox] = {}
        self._taken: list[Letter] = []
        self._random = random.Random(stream_seed(seed, "draw", self.id))
        self.observe(observers)
        self._results: dict[tuple[int, torch.dtype], Tensor] = {}
        self._others = tuple(p for p in (*view.workers, *view.servers) if p != self.id)
        self._waited_ns = 0
        self._heart = _Heart(transport, deadline_s)

    now = staticmethod(time.monotonic_ns)

    def draw(self) -> float:
        return self._random.random()

    def departures(self) -> Mapping[int, int]:
        transport = self.transport
        gone = [peer for peer in self._others if transport.phase(peer) >= Phase.DONE]
        return {peer: transport.status(peer).steps for peer in gone}

    # Letters

    def send(self, to: tuple[int, ...], letter: Letter) -> None:
        here = tuple(peer for peer in to if self.transport.phase(peer) < Phase.DONE)
        for peer in to:
            if peer not in here:
                self.emit(Dropped(self.id, self.now(), self.id, peer, letter.tag, "the receiver has left"))
        outboxes = self._outboxes
        queued = tuple(p for p in here if p in outboxes and outboxes[p].has(letter.tag, self.id))
        direct = tuple(peer for peer in here if peer not in queued)
        refused = self.transport.post(direct, letter, self._limit(letter.tag)) if direct else ()
        for peer in queued + refused:
            outbox = self._outboxes.setdefault(peer, Mailbox(self._tags))
            outbox.deliver(replace(letter, tensor=letter.tensor.clone(), private=True))
        self._flush()

    def _limit(self, tag: str) -> int:
        declared = self._tags.get(tag) or Tag(tag)
        return declared.capacity if declared.fold is None else _FOLDING_LIMIT

    def _flush(self) -> None:
        """Send what had no room before."""
        for peer, outbox in self._outboxes.items():
            if not len(outbox):
                continue
            waiting, self._outboxes[peer] = outbox.letters(), Mailbox(self._tags)
            has_left = self.transport.phase(peer) >= Phase.SETTLED  # until then it waits for what was sent
            full: set[str] = set()
            for letter in waiting:
                if has_left:
                    self.emit(
                        Dropped(self.id, self.now(), self.id, peer, letter.tag, "the receiver has left")
                    )
                elif letter.tag in full or self.transport.post((peer,), letter, self._limit(letter.tag)):
                    full.add(letter.tag)  # what comes after it under this tag stays behind it
                    self._outboxes[peer].deliver(letter)

    @property
    def unsent(self) -> tuple[int, ...]:
        """The peers for whom letters wait here, because they have no room there."""
        self._flush()
        return tuple(peer for peer, outbox in self._outboxes.items() if len(outbox))

    def pump(self) -> None:
        """Move what has come in to the mailbox, and what had no room out.

        Every wait does this again and again, because whoever leaves waits for room for its last letters.
        """
        if self._outboxes:
            self._flush()
        for letter in self.transport.arrivals():
            self.transport.release(self._mailbox.deliver(letter))

    def take(self, tag: str, senders: Collection[int] | None) -> list[Letter]:
        self.pump()
        letters = self._mailbox.take(tag, senders)
        self._taken += letters
        return letters

    def take_one(self, tag: str, sender: int) -> Letter | None:
        letter = self._mailbox.take_one(tag, sender)
        if letter is not None:
            self._taken.append(letter)
        return letter

    def unread(self) -> int:
        """Letters that have arrived and were not read yet."""
        self.pump()
        return len(self._mailbox)

    def turn_ended(self) -> None:
        if self._taken:
            self.transport.release(self._taken)
            self._taken.clear()

    # Waiting

    async def wait(self, tag: str, peers: tuple[int, ...], need: Need) -> None:
        missing = self._missing(tag, peers, need)
        if not missing:
            return
        began, on = self.now(), missing
        self.patience.begin()
        while missing:
            token = self.transport.listen()
            missing = self._missing(tag, peers, need)
            if missing:
                self.transport.sleep(token, _NAP_S)
                self.patience.check(missing, f"letter {tag!r}")
        self.patience.end()
        self._report_wait(on, "mean" if tag in MEAN_TAGS else tag, began, self.now())

    def _missing(self, tag: str, peers: tuple[int, ...], need: Need) -> tuple[int, ...]:
        """Who still has to send; empty when the wait is over. Phases are read before the mail, so
        that whoever counts as gone has really nothing more on its way."""
        gone = [peer for peer in peers if self.transport.phase(peer) >= Phase.DONE]
        self.pump()
        if need is Need.ALL:
            return tuple(p for p in peers if p not in gone and not self._mailbox.has(tag, p))
        return () if gone or self._mailbox.has_any(tag) else peers

    async def collective(
        self, tensor: Tensor, among: tuple[int, ...], weight: float, present: int | None, read_only: bool
    ) -> Reduction:
        if self.id not in among:
            raise UsageError(f"participant {self.id} calls mean() among {among} and isn't one of them")
        began_ns, waited_before_ns = self.now(), self._waited_ns
        if self.transport.can_reduce(tensor):
            reduction = self._reduce_in_place(tensor, among, weight, present, read_only)
            self._report_waits_of_mean(began_ns)
        else:
            reduction = await direct_mean(self, tensor, among, weight, present)
        if not self.observed:
            return reduction
        waited_ns = self._waited_ns - waited_before_ns
        reduction.took_ns = self.now() - began_ns - waited_ns
        return reduction

    def _reduce_in_place(
        self, tensor: Tensor, among: tuple[int, ...], weight: float, present: int | None, read_only: bool
    ) -> Reduction:
        self.patience.begin()
        reduction = self.transport.reduce(tensor, among, weight, present, _Attentive(self))
        self.patience.end()
        if read_only and reduction.tensor.device == tensor.device:
            return reduction
        return replace(reduction, tensor=self._own_copy(reduction.tensor, tensor))

    def _report_waits_of_mean(self, began_ns: int) -> None:
        """Members wait for each other before they add and after it; reported as one wait, before."""
        waited = self.transport.take_waited_ns()
        if waited:
            slowest = max(waited, key=lambda peer: waited[peer])
            self._report_wait((slowest,), "mean", began_ns, began_ns + sum(waited.values()))

    def _own_copy(self, result: Tensor, like: Tensor) -> Tensor:
        key = (like.numel(), like.dtype)
        if key not in self._results:
            self._results[key] = torch.empty_like(like, memory_format=torch.contiguous_format).reshape(-1)
        return self._results[key].copy_(result.reshape(-1)).view(like.shape)

    # Reporting

    def observe(self, observers: Iterable[Observer]) -> None:
        """From now on report to these, and to nobody else."""
        self._listeners = listeners = Listeners(observers)
        self.observed = bool(listeners.observers)
        # One observer is called without a detour: records are made in the middle of a step.
        direct = len(listeners.observers) == 1 and not isinstance(listeners.observers[0], Choosy)
        self.emit = listeners.observers[0] if direct else self._emit  # type: ignore[assignment, method-assign]

    def _report_wait(self, on: tuple[int, ...], why: str, began_ns: int, ended_ns: int) -> None:
        self._waited_ns += ended_ns - began_ns
        if self.observed:
            self.emit(Waited(self.id, ended_ns, on, why, ended_ns - began_ns))

    def emit(self, record: Record) -> None:
        """Replaced by what `observe` finds best."""

    def _emit(self, record: Record) -> None:
        for take in self._listeners[type(record)]:
            take(record)

    def close(self) -> None:
        self._heart.stop()


class _Attentive(Patience):
    """Reads the mail during a collective."""

    def __init__(self, world: RealWorld) -> None:
        self._world = world

    def check(self, peers: tuple[int, ...], why: str) -> None:
        self._world.pump()
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
