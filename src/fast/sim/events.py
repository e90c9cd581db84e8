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
        self.happened = 0
        """So many events, so far."""
        self._queue: list[tuple[int, int, Action]] = []
        self._sequence = count()
        self._background: set[int] = set()

    def at(self, time_ns: int, action: Action, *, background: bool = False) -> None:
        """Let this happen at `time_ns`, which must not lie in the past. What happens in the background
        matters only as long as somebody is there."""
        if time_ns < self.now_ns:
            raise ValueError(f"an event at {time_ns} ns, and it is already {self.now_ns} ns")
        number = next(self._sequence)
        if background:
            self._background.add(number)
        heapq.heappush(self._queue, (time_ns, number, action))

    def soon(self, action: Action) -> None:
        """Let this happen now, after everything else that was already asked for at this time."""
        self.at(self.now_ns, action)

    def run_next(self) -> None:
        """Move the clock to the next event and let it happen."""
        self.now_ns, number, action = heapq.heappop(self._queue)
        self.happened += 1
        if self._background:
            self._background.discard(number)
        action()

    @property
    def only_background(self) -> bool:
        return bool(self._background) and len(self._queue) == len(self._background)

    def __bool__(self) -> bool:
        return bool(self._queue)
