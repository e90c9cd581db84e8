"""Virtual time: an integer number of nanoseconds and a queue of what happens next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import final

Action = Callable[[], None]


@final
class Events:
    """Actions in the order of their time; ties in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._queue: list[tuple[int, int, Action]] = []
        self._sequence = count()

    def at(self, time_ns: int, action: Action) -> None:
        """Let this happen at `time_ns`, which must not lie in the past."""
        if time_ns < self.now_ns:
            raise ValueError(f"an event at {time_ns} ns, and it is already {self.now_ns} ns")
        heapq.heappush(self._queue, (time_ns, next(self._sequence), action))

    def soon(self, action: Action) -> None:
        """Let this happen now, after everything else that was already asked for at this time."""
        self.at(self.now_ns, action)

    def run_next(self) -> None:
        """Move the clock to the next event and let it happen."""
        self.now_ns, _, action = heapq.heappop(self._queue)
        action()

    def __bool__(self) -> bool:
        return bool(self._queue)
