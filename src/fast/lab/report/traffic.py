"""Who sent what to whom in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fast.lab.report.reading import Entry

Letter = tuple[int, int, int, float]
"""From, to, how many, and their bytes."""
Mean = tuple[tuple[int, ...], int, float]
"""Among whom, how many, and their bytes."""


@dataclass(frozen=True)
class Graph:
    """Workers are numbered from 0, servers after them."""

    workers: int
    servers: int
    letters: Sequence[Letter]
    means: Sequence[Mean]

    @staticmethod
    def of(raw: Mapping[str, Any]) -> Graph:
        letters = [(a, b, n, size) for a, b, n, size in raw.get("letters") or [] if a != b]
        means = [(tuple(members), n, size) for members, n, size in raw.get("means") or [] if len(members) > 1]
        return Graph(raw["workers"], raw.get("servers") or 0, letters, means)

    @property
    def silent(self) -> bool:
        return not self.letters and not self.means


def graph_of(entry: Entry) -> Graph | None:
    """Of the run with the first seed."""
    raw = next((run["graph"] for run in entry.runs if run.get("graph")), None)
    return None if raw is None else Graph.of(raw)
