"""The table of a report: one row per strategy, with what to show, what to hint and what to sort by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fast.lab.report.reading import Entry
from fast.lab.report.words import BYTES, COUNT, MEMORY, NOTHING, PLAIN, SCORE, SECONDS, SHARE, Measure


@dataclass(frozen=True)
class Cell:
    """A text, its spread, the range behind it as a hint, and a number to sort by (None comes last)."""

    text: str
    spread: str = ""
    hint: str = ""
    sort: float | None = None


@dataclass(frozen=True)
class Column:
    """`fewer` is True where less is better, so that a first click puts the best on top."""

    head: str
    hint: str
    cell: Callable[[Entry], Cell]
    fewer: bool = True


def _measured(name: str, measure: Measure, missing: str = NOTHING) -> Callable[[Entry], Cell]:
    def cell(entry: Entry) -> Cell:
        stat = entry.stat(name)
        if stat is None or stat.get("mean") is None:
            return Cell(missing if entry.runs else NOTHING)
        return Cell(*measure.spread(stat), measure.extent(stat), stat["mean"])

    return cell


def _time(entry: Entry) -> Cell:
    if not entry.runs:
        return Cell("failed")
    return _measured("time_to_target_s", SECONDS, "not reached")(entry)


def _reached(entry: Entry) -> Cell:
    return Cell(f"{entry.reached} of {entry.seeds}", sort=entry.reached / max(1, entry.seeds))


def _score(entry: Entry) -> Cell:
    cell = _measured("final_score", SCORE)(entry)
    lost = entry.diverged and cell.sort is None
    return Cell("diverged") if lost else cell


def _staleness(entry: Entry) -> Cell:
    """The mean over seeds, and the largest of all of them."""
    stat = entry.stat("mean_staleness")
    if stat is None or stat.get("mean") is None:
        return Cell(NOTHING)
    largest = max((run.get("max_staleness") or 0 for run in entry.runs), default=0)
    return Cell(PLAIN.write(stat["mean"]), f"max {largest}", PLAIN.extent(stat), stat["mean"])


COLUMNS: Sequence[Column] = (
    Column("time to target", "From the common start until the mean model first reaches the target", _time),
    Column("reached", "Seeds that reached the target", _reached, fewer=False),
    Column("final score", "Of the consolidated model, on test data", _score, fewer=False),
    Column("samples to target", "Seen by all workers together", _measured("samples_to_target", COUNT)),
    Column("traffic to target", "Sent by everybody, servers too", _measured("bytes_to_target", BYTES)),
    Column("samples/s", "All workers together", _measured("samples_per_s", COUNT), fewer=False),
    Column(
        "scaling efficiency",
        "Samples per second, against as many workers as that each were as fast as one alone",
        _measured("scaling_efficiency", SHARE),
        fewer=False,
    ),
    Column("staleness", "Mean of all updates, where they are included, and the largest", _staleness),
    Column(
        "replica distance",
        "Of the replicas from their mean at the end, relative to the mean's length",
        _measured("consensus_distance", PLAIN),
    ),
    Column("peak memory", "Of the participant with most", _measured("peak_memory_bytes", MEMORY)),
)
