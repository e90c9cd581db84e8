"""All checkers that apply to a strategy, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, final

from fast.core import Letter, Strategy
from fast.sim.checkers.agreement import RoundsAgree, ViewsAgree
from fast.sim.checkers.base import Checker, Taker, Takers
from fast.sim.checkers.bounds import Lead, Staleness
from fast.sim.checkers.conservation import Conservation
from fast.sim.checkers.letters import CountedOnce, LettersAccounted
from fast.sim.checkers.order import FiniteWeights, GoneIsGone, TimeGoesOn
from fast.sim.checkers.reads import ReachKept, ReadsComplete
from fast.trace import Record, Reduced, Sent, Stepped

if TYPE_CHECKING:
    from fast.core import Me
    from fast.sim.participant import Participant
    from fast.sim.simulation import Simulation


@dataclass
class Seen:
    """How much was watched."""

    events: int = 0
    steps: int = 0
    letters: int = 0
    rounds: int = 0
    dropped: int = 0
    doubled: int = 0
    died: int = 0
    came: int = 0

    def add(self, other: Seen) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@final
class Checkers:
    """Watches a run with everything that the strategy promises.

        checkers = Checkers(strategy)
        simulation = Simulation(strategy, ..., observers=[checkers], spoil_letters=True)
        checkers.attach(simulation)
        simulation.run(after_event=checkers.after_event)
        checkers.finish()

    A broken promise is a `Violation`, raised where it is seen. With `finite=False` weights may become
    NaN: where somebody is hostile, or the problem itself diverges.
    """

    def __init__(self, strategy: Strategy, *, finite: bool = True) -> None:
        self.checkers = tuple(_applying(strategy, finite=finite))
        self.seen = Seen()
        self._lives: dict[int, Me | None] = {}
        """Each worker's handle, which is another one when it comes back; None while it isn't there."""
        self._takers: defaultdict[type[Record], list[Taker]] = defaultdict(list)
        counting: Takers = {Sent: self._count_sent, Stepped: self._count_step, Reduced: self._count_round}
        for takers in (counting, *(checker.takers() for checker in self.checkers)):
            for kind, taker in takers.items():
                self._takers[kind].append(taker)

    @property
    def promises(self) -> tuple[str, ...]:
        """What is watched, in words."""
        return tuple(checker.promise for checker in self.checkers)

    def attach(self, simulation: Simulation) -> None:
        """Before the run."""
        simulation.on_dropped, simulation.on_doubled = self._dropped, self._doubled
        self._lives = {worker.me.id: _life(worker) for worker in simulation.workers}
        for checker in self.checkers:
            checker.attach(simulation)

    def __call__(self, record: Record) -> None:
        for taker in self._takers.get(type(record), ()):
            taker(record)

    def after_event(self, simulation: Simulation) -> None:
        self.seen.events += 1
        for worker in simulation.workers:
            life = _life(worker)
            if life is not self._lives[worker.me.id]:
                self._change(worker.me.id, life)
        for checker in self.checkers:
            checker.after_event()

    def finish(self) -> None:
        """After a run that ended in order."""
        for checker in self.checkers:
            checker.finish()

    def _change(self, who: int, life: Me | None) -> None:
        """Somebody has died, or come; or had left, and came back."""
        before, self._lives[who] = self._lives[who], life
        for checker in self.checkers:
            if before is not None:
                checker.died(who)
            if life is not None:
                checker.came(who)
        self.seen.died += life is None
        self.seen.came += life is not None

    def _dropped(self, letter: Letter, to: int) -> None:
        self.seen.dropped += 1
        for checker in self.checkers:
            checker.dropped(letter, to)

    def _doubled(self, letter: Letter, to: int) -> None:
        self.seen.doubled += 1
        for checker in self.checkers:
            checker.doubled(letter, to)

    def _count_sent(self, record: Sent) -> None:
        self.seen.letters += len(record.to) * record.whole

    def _count_step(self, record: Stepped) -> None:
        self.seen.steps += 1

    def _count_round(self, record: Reduced) -> None:
        self.seen.rounds += 1


def _life(worker: Participant) -> Me | None:
    return None if worker.dead or worker.absent else worker.me


def _applying(strategy: Strategy, *, finite: bool) -> Iterator[Checker]:
    """Those that have something to watch."""
    yield TimeGoesOn()
    yield GoneIsGone()
    yield LettersAccounted()
    yield CountedOnce(strategy)
    yield ViewsAgree()
    yield RoundsAgree(synchronous=strategy.synchronous)
    if strategy.conserves:
        yield Conservation(strategy.conserves)
    if isfinite(strategy.lead):
        yield Lead(strategy.lead)
    if strategy.synchronous or isfinite(strategy.lead):
        yield Staleness(strategy.lead, late=strategy.late if strategy.synchronous else None)
    if isfinite(strategy.misses):
        yield ReadsComplete(strategy)
    if isfinite(strategy.reach):
        yield ReachKept(strategy)
    if finite:
        yield FiniteWeights()
