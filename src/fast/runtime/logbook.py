"""A participant's logbook: what it measured and what its script logged, in a file of its own.

During a step, records are only appended to a list. A thread adds them up about once a second and appends whole lines to
the file. So a participant that is killed leaves everything but its last second, and no two participants share a file.

    {"kind": "opened", "schema": 1, "who": "worker 0", "began_ns": ...}     always the first line
    {"kind": "joined", "at_s": ..., "strategy": "allreduce(...)", "parameters": 4810}
    {"kind": "values", "at_s": ..., "step": 12, "values": {"loss": 0.31}}   one per call of fast.log
    {"kind": "totals", "at_s": ..., "steps": ..., "samples": ..., ...}      since the beginning
    {"kind": "ended", "at_s": ..., "failure": null}                         missing if it was killed

Times are seconds since `began_ns`, on the machine's monotonic clock. Numbers that aren't finite are null.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

import msgspec
from torch import Tensor

from fast.runtime.events import EventFile
from fast.trace import Computed, Meter, Record, Stepped

SCHEMA = 1
METRICS = "metrics"
_PAUSE_S = 1.0
_ENOUGH_BYTES = 1 << 16
"""The first and the last lines of a logbook are among so many bytes."""

Item = TypeVar("Item")


@final
class Logbook:
    """Observes one participant with `collect`. Made in the process that writes it; OSError if its file can't be."""

    def __init__(
        self, folder: Path, id: int, name: str, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._id, self._name, self._say, self._meter = id, name, say, Meter()
        self._records: list[Record] = []
        self.collect: Callable[[Record], None] = self._records.append
        """An observer; it only appends."""
        self._logged: list[tuple[int, int, Mapping[str, float | Tensor]]] = []
        self._steps: Callable[[], int] = lambda: 0
        self._began_ns = self._since_ns = time.monotonic_ns()
        self._encoder = msgspec.json.Encoder()
        self._file: int | None = os.open(
            metrics_file(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
        )
        self._events = EventFile(folder, name)
        self._write([{"kind": "opened", "schema": SCHEMA, "who": name, "began_ns": self._began_ns}])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, name="fast-log", daemon=True)
        self._thread.start()

    def joined(self, strategy: str, parameters: int, steps: Callable[[], int]) -> None:
        """The training begins. `steps` is the number of steps done at any time."""
        self._steps, self._since_ns = steps, time.monotonic_ns()
        self._write([self._line("joined", self._since_ns, strategy=strategy, parameters=parameters)])

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Keep these values of the current step. Tensors belong to the logbook from now on."""
        self._logged.append((time.monotonic_ns(), self._steps(), values))

    def stepped_alone(self, step: int, samples: int) -> None:
        """A step without other workers: all time since the last one was computing."""
        began_ns, self._since_ns = self._since_ns, time.monotonic_ns()
        self.collect(Computed(self._id, self._since_ns, began_ns))
        self.collect(Stepped(self._id, self._since_ns, step, samples))

    def close(self, failure: str | None = None) -> None:
        """Write what is left, and how it ended. Later calls do nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._flush()
        self._write([self._line("ended", time.monotonic_ns(), failure=failure)])
        self._events.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _keep_writing(self) -> None:
        while not self._closing.wait(_PAUSE_S):
            self._flush()

    def _flush(self) -> None:
        logged, records = _taken(self._logged), _taken(self._records)
        lines = [
            self._line(
                "values", at_ns, step=step, values={name: float(value) for name, value in values.items()}
            )
            for at_ns, step, values in logged
        ]
        for line in lines:
            self._events.add(line["step"], line["values"])
        for record in records:
            self._meter(record)
        if records:
            lines.append(self._line("totals", time.monotonic_ns(), **totals(self._meter)))
        self._events.flush()
        self._write(lines)

    def _line(self, kind: str, at_ns: int, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "at_s": round((at_ns - self._began_ns) / 1e9, 6), **more}

    def _write(self, lines: list[dict[str, Any]]) -> None:
        """Append whole lines. After an error nothing more is written: the training is worth more than its log."""
        if self._file is None or not lines:
            return
        rest = self._encoder.encode_lines(lines)
        try:
            while rest:  # a disk that is nearly full may take a part of it
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.close(self._file)
            self._file = None
            self._say(
                f"the log of {self._name} can't be written any more: {error.strerror}; the training goes on"
            )


def totals(meter: Meter) -> dict[str, Any]:
    """What a meter has added up, as plain data."""
    return {
        "steps": meter.steps,
        "samples": meter.samples,
        "bytes_sent": meter.bytes_sent,
        "compute_s": meter.computed_ns / 1e9,
        "merge_s": meter.merged_ns / 1e9,
        "send_s": meter.sent_ns / 1e9,
        "wait_s": meter.waited_ns / 1e9,
        "staleness": {str(staleness): count for staleness, count in sorted(meter.staleness.items())},
    }


def metrics_file(folder: Path, name: str) -> Path:
    """The file of "worker 0" in the folder of a run."""
    return folder / METRICS / f"{name.replace(' ', '-')}.jsonl"


# Reading


def read_lines(path: Path, start: int = 0, nbytes: int = -1) -> list[dict[str, Any]]:
    """The whole lines of a logbook in this range of bytes. The end of a process may have torn the last one."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(nbytes)
    except FileNotFoundError:
        return []
    whole = data[: data.rfind(b"\n") + 1].splitlines()
    return [msgspec.json.decode(line) for line in (whole[1:] if start else whole)]


def first_lines(path: Path) -> list[dict[str, Any]]:
    return read_lines(path, 0, _ENOUGH_BYTES)


def last_lines(path: Path) -> list[dict[str, Any]]:
    """Among them the last totals, which follow what was logged before them."""
    return read_lines(path, max(0, path.stat().st_size - _ENOUGH_BYTES)) if path.exists() else []


def _taken(items: list[Item]) -> list[Item]:
    """What is in a list that another thread appends to; it is removed from there."""
    found = items[:]
    del items[: len(found)]
    return found
