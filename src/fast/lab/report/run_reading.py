"""The folder of one run of `fast run` or `fast.launch`, as its report needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fast.errors import UsageError
from fast.lab.report.reading import Entry, Row, printable
from fast.lab.report.series import PLACES, Numbers
from fast.loop.run_folder import KIND, RUN
from fast.runtime.logbook import METRICS, read_lines

RATE = "samples_per_s"
SHORT_S = 0.5
"""Rates over less time than this are mostly noise."""


@dataclass(frozen=True)
class Participant:
    """One logbook; its times are moved to the clock of the training, which begins with the first line of all
    that says more than that a log was opened."""

    name: str
    lines: Sequence[Mapping[str, Any]]
    later_s: float

    @property
    def totals(self) -> Mapping[str, Any]:
        return next((line for line in reversed(self.lines) if line["kind"] == "totals"), {})

    @cached_property
    def logged(self) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["kind"] == "values"]

    def curve(self, name: str) -> Row:
        """A value that this worker logged, against step and time; long ones as means over pieces."""
        here = [line for line in self.logged if name in line["values"]]
        values = [line["values"][name] for line in here]
        found = np.array([np.nan if value is None else value for value in values], dtype=float)
        steps = np.array([line["step"] for line in here], dtype=float)
        times = np.array([line["at_s"] + self.later_s for line in here], dtype=float)
        return _row(step=steps, at_s=times, **{name: found})

    def rate(self) -> Row:
        """Samples per second: over the whole seconds between lines of totals, or over all of a shorter run."""
        begun = [{**line, "steps": 0, "samples": 0} for line in self.lines if line["kind"] == "joined"]
        totals = [*begun, *(line for line in self.lines if line["kind"] == "totals")]
        pairs = [(a, b) for a, b in pairwise(totals) if b["at_s"] - a["at_s"] > SHORT_S]
        if not pairs and len(totals) > 1:
            pairs = [(totals[0], totals[-1])]
        rates = [
            (after["samples"] - before["samples"]) / (after["at_s"] - before["at_s"])
            for before, after in pairs
        ]
        return _row(
            step=np.array([after["steps"] for _, after in pairs], dtype=float),
            at_s=np.array([after["at_s"] + self.later_s for _, after in pairs], dtype=float),
            **{RATE: np.array(rates, dtype=float)},
        )


@dataclass(frozen=True)
class RunReading:
    """All that is known about the run. It may still be going on, or have been killed."""

    data: Mapping[str, Any]
    participants: Sequence[Participant]

    @staticmethod
    def of(folder: Path) -> RunReading:
        """UsageError if this is no such folder."""
        data = run_data(folder / RUN)
        if data is None:
            raise UsageError(f"{folder} is not the folder of a run: its {RUN} is of something else")
        books = [lines for path in sorted((folder / METRICS).glob("*.jsonl")) if (lines := read_lines(path))]
        first_ns = min((_first_ns(lines) for lines in books if len(lines) > 1), default=0)
        found = [Participant(each[0]["who"], each, (each[0]["began_ns"] - first_ns) / 1e9) for each in books]
        return RunReading(data, sorted(found, key=lambda each: _place(each.name)))

    @property
    def workers(self) -> list[Participant]:
        return [each for each in self.participants if each.name.startswith("worker")]

    @property
    def strategy(self) -> str:
        """Its canonical call; empty if nothing was joined."""
        joined = (
            line["strategy"] for each in self.workers for line in each.lines if line["kind"] == "joined"
        )
        return next(joined, self.data.get("strategy") or "")

    @property
    def names(self) -> list[str]:
        """What was logged, in the order in which it first was."""
        return list(
            dict.fromkeys(name for each in self.workers for line in each.logged for name in line["values"])
        )

    def entry(self, index: int, name: str) -> Entry:
        """A logged value as one line of a figure: each worker is a run of its own."""
        return self._entry(index, printable(name), [each.curve(name) for each in self.workers])

    def rate(self) -> Entry:
        """Throughput as one more line, after those of the logged values."""
        return self._entry(len(self.names), "samples per second", [each.rate() for each in self.workers])

    def whole(self) -> Entry:
        """The run as one row, as a comparison has it: who spent how much time on what, and staleness."""
        staleness: dict[str, int] = {}
        for each in self.participants:
            for late, count in (each.totals.get("staleness") or {}).items():
                staleness[late] = staleness.get(late, 0) + count
        rows = [{"name": each.name, **each.totals} for each in self.participants if each.totals]
        return self._entry(
            0, str(self.data.get("title") or "run"), [{"participants": rows, "staleness": staleness}]
        )

    @staticmethod
    def _entry(index: int, label: str, runs: Sequence[Row]) -> Entry:
        return Entry(index, label, label, label, None, runs, (), {})


def run_data(file: Path) -> dict[str, Any] | None:
    """What a run.json says if it is that of a run; None if it is of a comparison or of something else."""
    try:
        data = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return data if isinstance(data, dict) and data.get("kind") == KIND else None


def _first_ns(lines: Sequence[Mapping[str, Any]]) -> int:
    """When this participant's first line after the opening one was written: it has imported all it needs by then."""
    return int(lines[0]["began_ns"] + lines[1]["at_s"] * 1e9)


def _place(name: str) -> tuple[bool, int]:
    """Workers before servers, each by number."""
    kind, _, number = name.rpartition(" ")
    return kind != "worker", int(number)


def _row(**columns: Numbers) -> Row:
    """A curve; of more points than can be seen, the means of as many pieces."""
    length = len(next(iter(columns.values())))
    if length > PLACES:
        cuts = np.linspace(0, length, PLACES + 1).astype(int)[:-1]
        sizes = np.diff([*cuts, length])
        columns = {name: np.add.reduceat(values, cuts) / sizes for name, values in columns.items()}
    return {
        "curve": {name: [None if np.isnan(v) else float(v) for v in each] for name, each in columns.items()}
    }
