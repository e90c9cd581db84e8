"""`fast run` that is told to stop: the workers finish their step first."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, final

from fast.cli.ending import Ended
from fast.cli.output import OutputLost
from fast.engine import LocalEngine
from fast.engine.local import Listener

GRACE_S = 20.0
"""Batch systems and orchestrators kill after 10 to 30 seconds."""
_TOLD = (signal.SIGTERM, signal.SIGHUP)


@final
class Stopping:
    """Inside, the first SIGTERM or SIGHUP asks the workers to finish their step and leave; a second one ends all.

    A signal that is ignored (`nohup`) stays so.
    """

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._before: dict[signal.Signals, Any] = {}
        self._started = False
        self.code = 0
        """Exit code that a signal asks for; 0 without one."""

    def before(self, listen: Listener) -> Listener:
        """A listener that knows whether there are workers yet."""

        def heard(event: dict[str, Any]) -> None:
            self._started = self._started or event["event"] == "started"
            try:
                listen(event)
            except OutputLost:
                if not self.code:
                    raise  # else the terminal has gone, and the workers still finish their step

        return heard

    def __enter__(self) -> Stopping:
        for number in _TOLD:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _told(self, number: int, frame: FrameType | None) -> None:
        """Prints nothing: what it interrupts may be printing."""
        name, first = signal.Signals(number).name, not self.code
        self.code = self.code or 128 + number
        if not (first and self._started):
            raise Ended(f"ended by {name}; all workers have been ended", self.code)
        self._engine.end_soon(name, GRACE_S)
