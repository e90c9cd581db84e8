"""The director: carries a scenario out in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from torch import Tensor

from fast.core import Letter
from fast.sim.faults.deeds import Deed, Freezes, Lie, Lies, Moves
from fast.sim.faults.hostile import Liar
from fast.sim.faults.letters import Letters
from fast.sim.faults.parties import Step, Time, When
from fast.sim.faults.scenario import Scenario
from fast.sim.faults.windows import Window
from fast.sim.interference import UNHARMED, Fate

if TYPE_CHECKING:
    from fast.sim.simulation import Simulation


@final
class Director:
    """One scenario in one simulation: an `Interference`. Same scenario and seed, same faults.

    What comes at a step or at a time when its worker is not there (any more, or yet) doesn't happen.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self._seed = seed
        self._letters: Letters | None = None
        self._lies: dict[int, list[tuple[Window, Lie]]] = {}
        self._liars: dict[int, Liar] = {}
        self._died_ns: dict[int, int] = {}

    def prepare(self, simulation: Simulation) -> None:
        self._simulation = simulation
        letters = Letters(self.scenario, self._seed, len(simulation.workers))
        letters.ways.prepare(simulation)
        self._letters = None if letters.harmless else letters
        for clause in self.scenario.clauses:
            match clause:
                case Moves():
                    for worker in clause.who.workers:
                        self._schedule_move(worker, clause)
                case Freezes():
                    for who in sorted(clause.who.ids(len(simulation.workers))):
                        self._schedule((who,), clause.when, self._freezing(who, clause.for_ns))
                case Lies():
                    for worker in clause.who.workers:
                        self._prepare_lie(worker, clause)

    def fate(self, letter: Letter, to: int, now_ns: int) -> Fate:
        return UNHARMED if self._letters is None else self._letters.fate(letter.sender, to, now_ns)

    def held_ns(self, members: Sequence[int], now_ns: int) -> int:
        """How much longer a round among these takes whose values begin to move now."""
        return 0 if self._letters is None else self._letters.held_ns(members, now_ns)

    def sent_by(self, who: int, tensor: Tensor, now_ns: int) -> Tensor:
        if who in self._lies:
            steps = self._simulation.workers[who].me.steps
            for window, lie in self._lies[who]:
                if window.covers_step(steps, now_ns):
                    tensor = self._liars[who].told(tensor, lie)
        return tensor

    # Who comes and goes

    def _schedule_move(self, worker: int, clause: Moves) -> None:
        others = [other for other in range(len(self._simulation.workers)) if other != worker]
        match clause.deed:
            case Deed.STOP:
                self._schedule((worker,), clause.when, lambda: self._stop(worker))
            case Deed.DIE:
                self._schedule((worker,), clause.when, lambda: self._kill(worker))
            case Deed.RETURN | Deed.JOIN:
                self._schedule(others, clause.when, lambda: self._admit(worker))

    def _schedule(self, counting: Sequence[int], when: When, action: Callable[[], None]) -> None:
        """At a time, or when the first of these has done so many steps."""
        match when:
            case Time(ns):
                self._simulation.at(ns, action)
            case Step(0):
                self._simulation.at(0, action)
            case Step(number):
                once = _Once(action)
                for worker in counting:
                    self._simulation.at_step(worker, number, once)

    def _stop(self, worker: int) -> None:
        if self._is_in(worker):
            self._simulation.stop(worker)

    def _kill(self, worker: int) -> None:
        if self._is_in(worker):
            self._died_ns[worker] = self._simulation.now_ns
            self._simulation.kill(worker, notice_ns=self.scenario.notice_ns)

    def _admit(self, worker: int) -> None:
        """As soon as everybody knows that it was gone, and if anybody is there to train with."""
        died_ns = self._died_ns.pop(worker, None)
        known_ns = -1 if died_ns is None else died_ns + self.scenario.notice_ns
        if known_ns >= self._simulation.now_ns:  # also when the news comes in this very moment, after it
            self._simulation.at(known_ns, lambda: self._admit(worker))
        elif not self._is_in(worker) and any(map(self._is_in, range(len(self._simulation.workers)))):
            self._simulation.admit(worker)

    def _is_in(self, who: int) -> bool:
        return self._simulation.participants[who].alive

    def _freezing(self, who: int, for_ns: int) -> Callable[[], None]:
        def freeze() -> None:
            if self._is_in(who):
                self._simulation.freeze(who, for_ns)

        return freeze

    # Who lies

    def _prepare_lie(self, worker: int, clause: Lies) -> None:
        window = Window(clause.span, (worker,))
        window.prepare(self._simulation)
        self._liars.setdefault(worker, Liar(self._seed, worker))
        self._lies.setdefault(worker, []).append((window, clause.lie))


@final
class _Once:
    """An action that several may call and that happens once."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()
