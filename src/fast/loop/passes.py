"""How far everybody is in a pass over the data, so that it can end before the slowest has come to its end.

Each worker keeps its own books in memory that all others can read: which pass it is in, and how much of that and
of the passes before it has done. Every word has one writer, and nobody waits for anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fast.engine import Seat
from fast.errors import UsageError
from fast.transport import Transport

KEPT = 64
"""Of so many passes it is known how much was done. Who is further ahead has left the others' pass long ago."""
_NOW = 0
"""Where the number of the pass stands that a worker is in; what it has done in the last passes stands behind."""


@final
class Books:
    """What all workers have done of each pass over one set of data; this worker writes its own part."""

    def __init__(self, transport: Transport, workers: int, name: str) -> None:
        self._transport, self._workers, self._name = transport, workers, name
        memory = transport.allocate(8 * (1 + KEPT)).view(torch.int64)
        self._mine = transport.window(name, memory)
        self._known: dict[int, Tensor] = {}

    def begin(self, number: int) -> None:
        """This worker's pass of this number begins."""
        self._mine[1 + number % KEPT] = 0
        self._mine[_NOW] = number

    def add(self, number: int, done: int) -> None:
        self._mine[1 + number % KEPT] += done

    def done(self, number: int) -> float:
        """By all of them together in this pass; without end if somebody has left it that long ago."""
        return sum(self._done_by(worker, number) for worker in range(self._workers))

    def _done_by(self, worker: int, number: int) -> float:
        books = self._of(worker)
        if books is None or int(books[_NOW]) < number:
            return 0
        return int(books[1 + number % KEPT]) if int(books[_NOW]) < number + KEPT else float("inf")

    def _of(self, worker: int) -> Tensor | None:
        """Those of a worker that hasn't begun its first pass aren't there yet. On this host they are looked up once and
        then read in place."""
        if worker in self._known:
            return self._known[worker]
        found = self._transport.peek(worker, self._name)
        if found is not None and worker in self._transport.shared_with:
            self._known[worker] = found
        return found


@dataclass(frozen=True)
class Pass:
    """One pass of one worker, which is over for everybody when so much of it is done."""

    seat: Seat
    number: int
    enough: float
    books: Books | None
    """None where nobody has to be waited for: then it ends when the data end."""

    def goes_on(self) -> bool:
        """Whether this worker takes another batch. What the others have done is different in each run, so a
        record has the answer."""
        if self.books is None:
            return True
        more = self.books.done(self.number) < self.enough
        return more if self.seat.journal is None else self.seat.journal.goes_on(more)

    def add(self, done: int) -> None:
        """So much of it has been trained on here."""
        if self.books is not None:
            self.books.add(self.number, done)


def check_finish(finish: object) -> float:
    if isinstance(finish, bool) or not isinstance(finish, int | float) or not 0 < finish <= 1:
        raise UsageError(
            f"fast.shard(finish={finish!r}): the part of an epoch after which it ends for all workers, more than 0 and "
            "at most 1"
        )
    return float(finish)


def begin_pass(seat: Seat, data: object, number: int, finish: float, total: Callable[[], int]) -> Pass:
    """Begin a pass over this data; `total` says how much there is for all workers together."""
    if finish == 1 or seat.workers == 1 or not torch.is_grad_enabled():
        return Pass(seat, number, 0, None)
    session = next((each for each in seat.sessions if each.runtime is not None), None)
    if session is None:
        raise UsageError(
            f"fast.shard(finish={finish:g}) has to know how far the other workers are: call fast.join before the loop"
        )
    strategy = session.runtime.strategy
    if strategy.synchronous:
        raise UsageError(
            f"fast.shard(finish={finish:g}) with {strategy!r}: its workers go in lock-step, so none waits at the end "
            "of an epoch. Leave finish out, or take an asynchronous strategy."
        )
    if id(data) not in session.passes:
        name = f"pass {len(session.passes)}"
        session.passes[id(data)] = Books(session.runtime.transport, seat.workers, name)
    books: Books = session.passes[id(data)]
    books.begin(number)
    return Pass(seat, number, finish * total(), books)
