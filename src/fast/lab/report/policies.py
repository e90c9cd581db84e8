"""Which model stands for all replicas, and what that makes of the score: a table of strategies by policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fast.lab.report.reading import Entry, Reading
from fast.lab.report.summary import Cell
from fast.lab.report.words import NOTHING, SCORE

HEADS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "average": (
            "mean of all",
            "The consolidated model: the mean of the replicas, or the servers' weights",
        ),
        "reestimated": ("mean, BatchNorm anew", "Its statistics estimated again on training data"),
        "best": ("best replica", "Chosen by its score on validation data"),
        "first": ("worker 0", "The replica of the first worker"),
        "ema": (
            "moving average",
            "Of the consolidated model over the ticks, with a decay of 0.8 from one to the next",
        ),
    }
)
"""By the name in run.json: the head of its column, and what it means."""


@dataclass(frozen=True)
class PolicyRow:
    """One strategy's final scores on test data, in the order of the columns."""

    entry: Entry
    cells: Sequence[Cell]


@dataclass(frozen=True)
class PolicyTable:
    """`columns` are the names of those policies that any strategy has a score for."""

    columns: Sequence[str]
    rows: Sequence[PolicyRow]

    @property
    def heads(self) -> Sequence[tuple[str, str]]:
        return [HEADS.get(name, (name, "")) for name in self.columns]


def policy_table(reading: Reading) -> PolicyTable | None:
    """None for runs that were made before there was such a table, and for those without weights."""
    rows = [(entry, entry.summary.get("policies") or {}) for entry in reading.ordered if entry.runs]
    known = [name for name in HEADS if any(scores.get(name) for _, scores in rows)]
    if not known:
        return None
    return PolicyTable(
        known, [PolicyRow(entry, [_cell(scores.get(name)) for name in known]) for entry, scores in rows]
    )


def _cell(stat: Mapping[str, Any] | None) -> Cell:
    if stat is None or stat.get("mean") is None:
        return Cell(NOTHING)
    return Cell(*SCORE.spread(stat), SCORE.extent(stat), stat["mean"])
