"""Effort: the time that a participant's local work takes, owed until virtual time can pass.

Work happens inside a turn, which can't stand still there.
"""

from __future__ import annotations

from typing import final

from fast.core.world import Labour
from fast.sim.arithmetic import Arithmetic
from fast.sim.cluster import Work


@final
class Effort:
    """Of one participant, by a model of its machine; None where work takes no time."""

    def __init__(self, work: Work | None, *, server: bool) -> None:
        self.work = work
        self.owed_ns = 0
        self.arithmetic = Arithmetic(self._merged) if work is not None and work.counts else None
        """Counts the operations of the strategy's own, where they have a price."""
        self._server = server
        self._cold_ns = self._chill_ns = 0

    def charge(self, on: Labour, nbytes: int, receivers: int = 1) -> None:
        """This has been done."""
        if self.work is not None:
            self._owe(self.work.cost_ns(on, nbytes, self._server, receivers))

    def _merged(self, nbytes: int) -> None:
        self.charge(Labour.MERGE, nbytes)

    def _owe(self, work_ns: int) -> None:
        self.owed_ns += self.while_cold(work_ns)

    def settle(self) -> int:
        """All that is owed; from now on nothing is."""
        owed_ns, self.owed_ns = self.owed_ns, 0
        return owed_ns

    # What is the strategy's own arithmetic, and what isn't

    def pause(self) -> None:
        """What follows is none of the strategy's own operations."""
        if self.arithmetic is not None:
            self.arithmetic.paused = True

    def resume(self) -> None:
        if self.arithmetic is not None:
            self.arithmetic.paused = False

    # Cold caches

    def slept(self, for_ns: int) -> None:
        """What this participant needs was pushed out of the caches meanwhile, and work takes longer
        until it is there again."""
        if self.work is not None and self.work.cold:
            most_ns = self.work.cold_ns(None)
            self._cold_ns = self._chill_ns = min(most_ns, self._cold_ns + self.work.cold_ns(for_ns))

    def while_cold(self, work_ns: int) -> int:
        """How long work takes that takes `work_ns` when everything is in the caches."""
        if not self._cold_ns or self.work is None:
            return work_ns
        extra_ns = min(self._cold_ns, self._chill_ns * work_ns // self.work.warm_ns)
        self._cold_ns -= extra_ns
        return work_ns + extra_ns
