"""A server's books: how far each worker is, who waits to read, and what a push counts for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from fast.view import View


@dataclass
class Shares:
    """How large pushes are, so that each counts for its share of a mean over all workers."""

    samples: dict[int, float] = field(default_factory=dict)
    """By worker: of its last push."""
    total: float = 0.0
    """Of the samples. Adding up thousands of them for each push would take longer than the push."""
    view: int = 0
    """The number of the view that is attended to."""
    others: tuple[float, int] = (0.0, 0)
    """The samples of the last pushes of those who push to somebody else, and how many these are."""

    def take(self, worker: int, samples: float, workers: int) -> float:
        """A push of so many samples: its share. With equal pushes of P workers that is 1 / P."""
        self.total += samples - self.samples.get(worker, 0.0)
        self.samples[worker] = samples
        total, pushed = self.total + self.others[0], len(self.samples) + self.others[1]
        return samples / (total / pushed * max(1, workers) or 1.0)

    def forget(self, worker: int) -> None:
        """It has left. Its last batch was a short one, maybe, and says nothing of those who go on."""
        self.total -= self.samples.pop(worker, 0.0)

    def attend(self, view: View) -> None:
        """Forget who is in this view no more."""
        if view.number != self.view:
            self.view = view.number
            for worker in self.samples.keys() - view.workers:
                self.forget(worker)

    def take_in(self, view: View, worker: int, samples: float) -> float:
        """The share of a push of somebody in this view, or of somebody who has left it right after it."""
        self.attend(view)
        share = self.take(worker, samples, len(view.workers))
        if worker not in view.everybody:
            self.forget(worker)
        return share


@dataclass
class Clocks:
    """How many pushes each worker has made, and who waits to read.

    What a push needs to know of all workers is kept up to date: looking through thousands of them
    for each push would take the server longer than the push.
    """

    pushed: dict[int, int] = field(default_factory=dict)
    reading: dict[int, float] = field(default_factory=dict)
    """By worker who waits to read: how far the slowest must be."""
    view: int = 0
    """The number of the view that is attended to."""
    at: Counter[int] = field(default_factory=Counter)
    """How many workers have made so many pushes."""
    leaving: dict[int, int] = field(default_factory=dict)
    """Who has left while some of its pushes were still on their way: how many it made in all."""
    answered: float = -inf
    """The slowest worker's clock when all who read were last looked at."""

    @staticmethod
    def of(view: View) -> Clocks:
        """Nobody has pushed yet."""
        pushed = dict.fromkeys(view.workers, 0)
        return Clocks(pushed, view=view.number, at=Counter(pushed.values()), answered=0)

    @property
    def slowest(self) -> float:
        return min(self.at, default=inf)

    def attend(self, view: View, departures: Mapping[int, int]) -> None:
        """Forget who has left, as soon as all that it pushed is here: the news may be faster than its
        letters. Who came is as far as the slowest, until its first push says more."""
        if view.number == self.view:
            return
        here = set(view.workers)
        self.leaving = {
            worker: departures.get(worker, 0)
            for worker, clock in self.pushed.items()
            if worker not in here and clock < departures.get(worker, 0)
        }
        known = here | set(self.leaving)
        self.pushed = {worker: clock for worker, clock in self.pushed.items() if worker in known}
        self.reading = {worker: clock for worker, clock in self.reading.items() if worker in here}
        slowest = min(self.pushed.values(), default=0)
        for worker in view.workers:
            self.pushed.setdefault(worker, slowest)
        self.view, self.at = view.number, Counter(self.pushed.values())

    def take(self, worker: int, clock: int, needs: float | None) -> None:
        """A push: so many has this worker made now. It waits to read until the slowest has made `needs`;
        None if it doesn't wait. Who is in the view no more holds nobody back, and waits for nothing."""
        if worker not in self.pushed:
            return
        self._move(worker, clock)
        if worker not in self.leaving:
            self.reading.update({} if needs is None else {worker: needs})
        elif clock >= self.leaving[worker]:
            self._forget(worker)

    def _move(self, worker: int, clock: int) -> None:
        before, self.pushed[worker] = self.pushed[worker], clock
        self.at[clock] += 1
        self._uncount(before)

    def _forget(self, worker: int) -> None:
        del self.leaving[worker]
        self._uncount(self.pushed.pop(worker))

    def _uncount(self, clock: int) -> None:
        self.at[clock] -= 1
        if not self.at[clock]:
            del self.at[clock]

    def moved(self) -> bool:
        """Whether the slowest worker has moved since this was last asked."""
        slowest, before = self.slowest, self.answered
        self.answered = slowest
        return slowest != before

    def ready(self, pushed: Iterable[int]) -> list[int]:
        """Who may read: of all who wait to if the slowest has moved, else of those who pushed just now."""
        asking: Iterable[int] = self.reading if self.moved() else dict.fromkeys(pushed)
        found = [worker for worker in asking if self.reading.get(worker, inf) <= self.slowest]
        for worker in found:
            del self.reading[worker]
        return found
