"""A participant's notebook: records are kept as they come, and worked out when there is time."""

from __future__ import annotations

from typing import final

from fast.lab.recording import RECORD_LIMIT, Recorder
from fast.trace import Listeners, Meter, Record

_ENOUGH = 50_000
"""So many records are worked out at the next tick, so that they don't fill the memory."""

_FEW = 256
"""So many records of each simulated participant wait to be worked out."""


@final
class Notebook:
    """Observes with `collect`, which only appends to a list while a step is under way.

    What the records add up to is worked out in the end, all in a row: between a step's other work,
    with cold caches, each of them would take several times as long.
    """

    def __init__(self, name: str, limit: int = RECORD_LIMIT) -> None:
        self.meter, self.recorder = Meter(), Recorder(name, limit)
        self.tick_bytes: list[int] = []
        """What had been sent at each tick, as far as it has been worked out."""
        self._listeners = Listeners([self.meter, self.recorder])
        self._records: list[Record | None] = []
        self.collect = self._records.append

    def keep(self, record: Record) -> None:
        """`collect` for a simulation: of a thousand participants in one process, each keeps only a few."""
        self._records.append(record)
        if len(self._records) >= _FEW:
            self.work_out()

    def tick(self) -> None:
        """Here is a tick."""
        self._records.append(None)
        if len(self._records) > _ENOUGH:
            self.work_out()

    def work_out(self) -> None:
        """From here on meter and recorder know all that has been written down."""
        records = self._records.copy()
        self._records.clear()  # the same list: its `append` is what the world calls
        listeners = self._listeners
        for record in records:
            if record is None:
                self.tick_bytes.append(self.meter.bytes_sent)
                continue
            for take in listeners[type(record)]:
                take(record)
