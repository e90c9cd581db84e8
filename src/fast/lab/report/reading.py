"""The dictionary of `run.json`, arranged by strategy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fast.lab.report.look import Look, look

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Entry:
    """One strategy: its runs over all seeds, and how it is shown. Each is a thing of its own."""

    index: int
    label: str
    """Short, and no other entry has the same."""
    call: str
    asked: str
    rate: float | None
    runs: Sequence[Row]
    """Those that trained, also if they diverged."""
    failures: Sequence[Row]
    summary: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"s{self.index}"

    @property
    def look(self) -> Look:
        return look(self.index)

    @property
    def file(self) -> str:
        """The label as part of a file's name; the number keeps similar ones apart."""
        words = re.sub(r"[^A-Za-z0-9]+", "-", self.label)[:40].strip("-").lower()
        return f"{self.index + 1:02d}-{words}".rstrip("-")

    @property
    def seeds(self) -> int:
        return len(self.runs) + len(self.failures)

    @property
    def diverged(self) -> int:
        return sum(1 for run in self.runs if run.get("diverged"))

    @property
    def reached(self) -> int:
        return sum(1 for run in self.runs if run.get("reached_target"))

    def stat(self, name: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.summary.get(name)
        return found

    def mean(self, name: str) -> float | None:
        stat = self.stat(name)
        return None if stat is None else stat.get("mean")

    @property
    def place(self) -> tuple[float, ...]:
        """Its place in the table: most often at the target, then fastest, then the highest score."""
        score = self.mean("final_score")
        return (
            float(not self.runs),
            -self.reached / max(1, self.seeds),
            self.mean("time_to_target_s") or 0.0 if self.reached else 0.0,
            float("inf") if score is None else -score,
        )


@dataclass(frozen=True)
class Reading:
    """A comparison, as the report needs it."""

    data: Mapping[str, Any]

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.data.get("results") or []:
            groups.setdefault((row.get("asked") or row["strategy"], row["strategy"]), []).append(row)
        labels = _distinct([(rows[0].get("label") or asked, asked) for (asked, _), rows in groups.items()])
        return tuple(
            self._entry(index, label, rows)
            for index, (label, rows) in enumerate(zip(labels, groups.values(), strict=True))
        )

    def _entry(self, index: int, label: str, rows: Sequence[Row]) -> Entry:
        call, asked = rows[0]["strategy"], rows[0].get("asked") or rows[0]["strategy"]
        summaries: list[Mapping[str, Any]] = self.data.get("summary") or []
        return Entry(
            index=index,
            label=label,
            call=printable(call),
            asked=printable(asked),
            rate=rows[0].get("rate"),
            runs=[row for row in rows if not row.get("error")],
            failures=[row for row in rows if row.get("error")],
            summary=next((s for s in summaries if (s.get("asked"), s.get("strategy")) == (asked, call)), {}),
        )

    @property
    def trained(self) -> tuple[Entry, ...]:
        """Those with something to draw."""
        return tuple(entry for entry in self.entries if entry.runs)

    @property
    def ordered(self) -> tuple[Entry, ...]:
        return tuple(sorted(self.entries, key=lambda entry: entry.place))

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.data.get("settings") or {}

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.data.get("facts") or {}

    @property
    def simulated(self) -> bool:
        return bool(self.data.get("world") == "sim")

    @property
    def seeds(self) -> int:
        asked = self.settings.get("seeds")
        return len(asked) if asked else max((entry.seeds for entry in self.entries), default=0)

    def failures(self) -> list[tuple[str, list[int], str]]:
        """Who failed, with which seeds, and why; the same error is told once."""
        return [
            (entry.label, [row["seed"] for row in entry.failures if row["error"] == error], error)
            for entry in self.entries
            for error in dict.fromkeys(row["error"] for row in entry.failures)
        ]


def _distinct(labels: Sequence[tuple[str, str]]) -> list[str]:
    """Labels that two strategies share give way to what was asked for, and then to numbers."""
    often = Counter(label for label, _ in labels)
    chosen = [printable(label if often[label] == 1 else asked) for label, asked in labels]
    seen: Counter[str] = Counter()
    named = []
    for label in chosen:
        seen[label] += 1
        named.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return named


def printable(text: str) -> str:
    """What XML can't hold, and what would break a line, becomes a visible sign."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)
