"""One runs at a time: the participants of a replay are threads, and only the one with the baton runs.

It is handed over only where a participant would sleep or has finished a step, so whatever the user's
script does in between is never disturbed. Who gets it next follows from the record alone, so a
replay is the same each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from fast.engine.belongings import Belongings, Modules
from fast.runtime.prompting import Halt


@dataclass
class _Runner:
    """One thread, as the baton sees it."""

    id: int
    thread: threading.Thread
    due_ns: Callable[[], int]
    """When it finished its next step in the record."""
    belongings: Belongings
    resumed: threading.Event = field(default_factory=threading.Event)
    asleep_at: int | None = None
    """It can't go on before something has changed since; None if it can."""
    done: bool = False


@final
class Baton:
    """Hands itself over. `changes` counts what has happened that a sleeper may wait for."""

    def __init__(self, changes: Callable[[], int]) -> None:
        self._changes = changes
        self._runners: dict[int, _Runner] = {}
        self._modules = Modules()
        self._start = Belongings.now(self._modules)
        self._over = threading.Event()
        self.halting = False
        """Whether everybody who still runs is to end."""

    def add(self, id: int, body: Callable[[], None], due_ns: Callable[[], int]) -> None:
        """One more participant. It begins with what was laid out at the start, when its turn comes."""

        def run() -> None:
            runner.resumed.wait()
            try:
                if not self.halting:
                    runner.belongings.lay_out(self._modules)
                    body()
            finally:
                runner.done = True
                self._hand_on()

        thread = threading.Thread(target=run, name=f"fast-{id}", daemon=True)
        runner = self._runners[id] = _Runner(id, thread, due_ns, self._start)
        thread.start()

    def run(self) -> None:
        """Until everybody is done."""
        try:
            self._hand_on()
            self._over.wait()
        finally:
            self._start.lay_out(self._modules)

    def sleep(self, id: int, token: int) -> None:
        """Let others run until something has changed since `token`."""
        self._runners[id].asleep_at = token
        self._yield(self._runners[id])
        self._runners[id].asleep_at = None

    def step_done(self, id: int) -> None:
        """Let those run who were there earlier in the record."""
        self._yield(self._runners[id])

    def halt(self) -> None:
        """Everybody ends where it is, one after another."""
        self.halting = True

    def _yield(self, mine: _Runner) -> None:
        if self.halting:
            raise Halt
        following = self._choose()
        if following is not mine:
            mine.belongings = Belongings.now(self._modules)
            mine.resumed.clear()
            following.resumed.set()
            mine.resumed.wait()
            mine.belongings.lay_out(self._modules)
        if self.halting:
            raise Halt

    def _hand_on(self) -> None:
        if all(runner.done for runner in self._runners.values()):
            self._over.set()
        else:
            self._choose().resumed.set()

    def _choose(self) -> _Runner:
        """Who was first in the record of those who can go on. If nobody can, all must end."""
        left = [runner for runner in self._runners.values() if not runner.done]
        now = self._changes()
        able = [runner for runner in left if runner.asleep_at is None or runner.asleep_at != now]
        if not able:
            self.halt()
            able = left
        return min(able, key=lambda runner: (runner.due_ns(), runner.id))
