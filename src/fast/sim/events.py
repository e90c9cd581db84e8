"""Virtual time: an integer number of nanoseconds and a queue of what happens next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from typing import final

Action = Callable[[], None]


@final
class Events:
    """Actions in the order of their time; ties in the order in which they were asked for.

    Workers in lock-step do the same at the same times, so the queue is one of times, and what is to
    happen at a time is a list.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.happened = 0
        """So many events, so far."""
        self.ahead = 0
        """So many are still to happen, of them so many in the background."""
        self.background = 0
        self._times: list[int] = []
        self._lists: dict[int, list[Action]] = {}
        """By time; what is asked for at the time under way is a list of its own, to follow that one."""
        self._under_way: Iterator[Action] = iter(())

    def at(self, time_ns: int, action: Action, *, background: bool = False) -> None:
        """Let this happen at `time_ns`, which must not lie in the past. What happens in the background
        matters only as long as somebody is there."""
        if time_ns < self.now_ns:
            raise ValueError(f"an event at {time_ns} ns, and it is already {self.now_ns} ns")
        if background:
            self.background += 1
            action = partial(self._happen_behind, action)
        self.ahead += 1
        alike = self._lists.get(time_ns)
        if alike is None:
            self._lists[time_ns] = [action]
            heappush(self._times, time_ns)
        else:
            alike.append(action)

    def withdraw(self, time_ns: int, action: Action) -> None:
        """Let this not happen after all. What is asked for at the time under way still happens, and so does what
        was asked for in the background."""
        alike = self._lists.get(time_ns)
        if alike is None or action not in alike:
            return
        alike.remove(action)
        self.ahead -= 1
        if not alike:
            del self._lists[time_ns]
            self._times.remove(time_ns)
            heapify(self._times)

    def soon(self, action: Action) -> None:
        """Let this happen now, after everything else that was already asked for at this time."""
        self.at(self.now_ns, action)

    def run_next(self) -> None:
        """Move the clock to the next event and let it happen."""
        action = next(self._under_way, None)
        if action is None:
            self.now_ns = heappop(self._times)
            self._under_way = iter(self._lists.pop(self.now_ns))
            action = next(self._under_way)
        self.happened += 1
        self.ahead -= 1
        action()

    def _happen_behind(self, action: Action) -> None:
        self.background -= 1
        action()

    def __bool__(self) -> bool:
        return self.ahead > 0
