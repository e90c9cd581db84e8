"""What ten thousand workers did, added up as it happens: no record is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fast.trace import (
    Computed,
    Dropped,
    Included,
    Observer,
    Record,
    Reduced,
    Sent,
    Stepped,
    Turned,
    Waited,
)

Part = tuple[int, int]
"""Of a turn: when it ended, and how long it took."""


@dataclass
class Tally:
    """An observer of all workers of a simulation together. Ids from `workers` on are servers', of which
    only the bytes count. computed + waited + exchanged + merged is all time of the workers' steps."""

    workers: int
    steps: int = 0
    bytes_sent: int = 0
    server_bytes: int = 0
    computed_ns: int = 0
    waited_ns: int = 0
    exchanged_ns: int = 0
    """Handing letters over, and moving and adding in rounds."""
    merged_ns: int = 0
    """What else turns took."""
    last_step_ns: int = 0
    dropped: int = 0
    records: int = 0
    staleness: dict[int, int] = field(default_factory=dict)
    """How many updates were included at each staleness."""
    _exchanging: defaultdict[int, list[Part]] = field(default_factory=lambda: defaultdict(list), repr=False)
    """Of each worker, since its last boundary. Likewise the waits."""
    _waiting: defaultdict[int, list[Part]] = field(default_factory=lambda: defaultdict(list), repr=False)

    def __post_init__(self) -> None:
        self._takers: dict[type[Record], Callable[[Any], None]] = {
            Sent: self._take_traffic,
            Reduced: self._take_traffic,
            Included: self._take_included,
            Waited: self._take_waited,
            Computed: self._take_computed,
            Stepped: self._take_stepped,
            Turned: self._take_turned,
            Dropped: self._take_dropped,
        }

    def __call__(self, record: Record) -> None:
        self.records += 1
        taker = self._takers.get(type(record))
        if taker is not None:
            taker(record)

    def taker(self, kind: type[Record]) -> Observer | None:
        return self._takers.get(kind)

    def _take_traffic(self, record: Sent | Reduced) -> None:
        if record.who >= self.workers:
            self.server_bytes += record.nbytes
            return
        self.bytes_sent += record.nbytes
        if record.took_ns:
            self._exchanging[record.who].append((record.at_ns, record.took_ns))

    def _take_included(self, record: Included) -> None:
        self.staleness[record.staleness] = self.staleness.get(record.staleness, 0) + 1

    def _take_waited(self, record: Waited) -> None:
        if record.who < self.workers:
            self._waiting[record.who].append((record.at_ns, record.waited_ns))

    def _take_computed(self, record: Computed) -> None:
        """While backward was running something may have been sent already."""
        self.computed_ns += self._rest_ns(record.who, record.began_ns, record.at_ns)

    def _take_turned(self, record: Turned) -> None:
        if record.who < self.workers:
            self.merged_ns += self._rest_ns(record.who, record.began_ns, record.at_ns)

    def _rest_ns(self, who: int, began_ns: int, at_ns: int) -> int:
        """What of this time was neither exchange nor waiting, both of which are counted. What began earlier,
        before the first step, belongs to no time that counts."""
        exchanged_ns = _taken(self._exchanging, who, began_ns)
        waited_ns = _taken(self._waiting, who, began_ns)
        self.exchanged_ns += exchanged_ns
        self.waited_ns += waited_ns
        return at_ns - began_ns - exchanged_ns - waited_ns

    def _take_stepped(self, record: Stepped) -> None:
        self.steps += 1
        self.last_step_ns = max(self.last_step_ns, record.at_ns)

    def _take_dropped(self, record: Dropped) -> None:
        self.dropped += record.letters

    @property
    def time_ns(self) -> int:
        """Of all workers together."""
        return self.computed_ns + self.waited_ns + self.exchanged_ns + self.merged_ns

    @property
    def largest_staleness(self) -> int | None:
        return max(self.staleness, default=None)

    @property
    def median_staleness(self) -> int | None:
        """The lower one of two in the middle."""
        half, seen = (sum(self.staleness.values()) + 1) // 2, 0
        for staleness in sorted(self.staleness):
            seen += self.staleness[staleness]
            if seen >= half:
                return staleness
        return None


def _taken(parts: defaultdict[int, list[Part]], who: int, since_ns: int) -> int:
    known = parts.get(who)
    if not known:
        return 0
    total = sum(took_ns for at_ns, took_ns in known if at_ns - took_ns >= since_ns)
    known.clear()
    return total
