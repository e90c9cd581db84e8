"""When a clause holds: spans of a scenario once the run is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from fast.sim.faults.parties import Span, Step, Time

if TYPE_CHECKING:
    from fast.sim.simulation import Simulation


@final
class Window:
    """A span of time whose beginning may be a step: then it is known only when the first of the
    `watched` workers has come there."""

    def __init__(self, span: Span, watched: Sequence[int]) -> None:
        start, length = span.start, span.length
        self._first = start.number if isinstance(start, Step) else 0
        self._opened_ns = start.ns if isinstance(start, Time) else None if start.number else 0
        self._length_ns = length.ns if isinstance(length, Time) else None
        self._steps = length.number if isinstance(length, Step) else None
        self._watched = watched

    def prepare(self, simulation: Simulation) -> None:
        """Have the simulation tell when it begins."""
        if self._opened_ns is None:
            for worker in self._watched:
                simulation.at_step(worker, self._first, lambda: self._open(simulation.now_ns))

    def _open(self, now_ns: int) -> None:
        if self._opened_ns is None:
            self._opened_ns = now_ns

    def covers(self, now_ns: int) -> bool:
        if self._opened_ns is None or now_ns < self._opened_ns:
            return False
        return self._length_ns is None or now_ns < self._opened_ns + self._length_ns

    def covers_step(self, steps: int, now_ns: int) -> bool:
        """For the one worker that is watched, once it has done so many steps. What it sends ahead for a
        step belongs to that step, whether or not the news of its beginning has come round."""
        if steps < self._first or (self._steps is not None and steps >= self._first + self._steps):
            return False
        return (self._opened_ns is None and self._first > 0) or self.covers(now_ns)

    @property
    def closed_ns(self) -> int | None:
        """When it ends; None if never, or if that isn't known yet."""
        if self._opened_ns is None or self._length_ns is None:
            return None
        return self._opened_ns + self._length_ns
