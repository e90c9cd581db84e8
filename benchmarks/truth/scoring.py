"""What the cells come to: the error of each, all of them in a few numbers, and what is demanded of those."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from truth.cells import Cell, Seen, Time

MEDIAN_LIMIT, WORST_LIMIT, OUTSIDE_LIMIT = 0.10, 0.30, 0.25
OUTSIDE_SHARE = 0.4


@dataclass(frozen=True)
class Row:
    """One cell, both ways."""

    cell: Cell
    measured: Time
    simulated: Time
    low_s: float
    high_s: float
    """The fastest and the slowest of the real runs."""
    error: float
    outside_error: float
    """Medians over the runs, each against its own simulation."""


def row_of(cell: Cell, seen: Sequence[Seen], models: Sequence[Time]) -> Row:
    times = [each.time for each in seen]
    steps, pairs = [each.step_s for each in times], list(zip(times, models, strict=True))
    return Row(
        cell,
        middle(times),
        middle(models),
        min(steps),
        max(steps),
        error=statistics.median(off(model.step_s, real.step_s) for real, model in pairs),
        outside_error=statistics.median(off(model.outside_s, real.outside_s) for real, model in pairs),
    )


def off(model_s: float, real_s: float) -> float:
    """Nothing measured and nothing simulated is no error."""
    return model_s / real_s - 1 if real_s else math.inf if model_s else 0.0


def middle(times: Sequence[Time]) -> Time:
    return Time(
        statistics.median(each.step_s for each in times), statistics.median(each.outside_s for each in times)
    )


@dataclass(frozen=True)
class Summary:
    """The whole grid in a few numbers."""

    cells: int
    median_error: float
    worst_error: float
    outside_cells: float
    """The share of cells that spend 40 % or more of the measured step outside computation."""
    median_outside_error: float
    pairs: int
    """Strategies of one group whose measured times differ by more than the worst error that is allowed."""
    pairs_agree: int
    close_pairs: int
    """And by more than the median that is allowed."""
    close_pairs_agree: int

    @property
    def holds(self) -> bool:
        return (
            self.median_error <= MEDIAN_LIMIT
            and self.worst_error <= WORST_LIMIT
            and self.outside_cells >= 0.5
            and self.median_outside_error <= OUTSIDE_LIMIT
            and self.pairs == self.pairs_agree
        )


def summary_of(rows: Sequence[Row]) -> Summary:
    far, close = (list(_pairs(rows, apart)) for apart in (WORST_LIMIT, MEDIAN_LIMIT))
    return Summary(
        cells=len(rows),
        median_error=statistics.median(abs(row.error) for row in rows),
        worst_error=max(abs(row.error) for row in rows),
        outside_cells=statistics.fmean(row.measured.share >= OUTSIDE_SHARE for row in rows),
        median_outside_error=statistics.median(abs(row.outside_error) for row in rows),
        pairs=len(far),
        pairs_agree=sum(far),
        close_pairs=len(close),
        close_pairs_agree=sum(close),
    )


def _pairs(rows: Sequence[Row], apart: float) -> Iterator[bool]:
    """For each two strategies of a group that are so far apart: whether the simulator has the same one ahead."""
    for one, other in itertools.combinations(rows, 2):
        slow, fast = sorted((one, other), key=lambda row: -row.measured.step_s)
        if one.cell.group == other.cell.group and slow.measured.step_s > (1 + apart) * fast.measured.step_s:
            yield slow.simulated.step_s > fast.simulated.step_s


def show(rows: Sequence[Row], summary: Summary) -> None:
    for group, members in itertools.groupby(rows, key=lambda row: row.cell.group):
        print(
            f"\n{group}\n{'':16} {'measured':>10} {'(from .. to)':>17} {'simulated':>10} {'error':>7}", end=""
        )
        print(f" {'outside':>9} {'simulated':>10} {'error':>7}")
        for row in members:
            real, model = row.measured, row.simulated
            print(
                f"{row.cell.strategy:16} {real.step_s * 1e3:7.3f} ms {row.low_s * 1e3:8.3f} ..{row.high_s * 1e3:7.3f} "
                f"{model.step_s * 1e3:7.3f} ms {100 * row.error:+6.1f}% {real.outside_s * 1e3:6.3f} ms "
                f"{model.outside_s * 1e3:7.3f} ms {100 * row.outside_error:+6.1f}%"
            )
    print(
        f"\n{summary.cells} cells: error {100 * summary.median_error:.1f} % in the median, "
        f"{100 * summary.worst_error:.1f} % at worst\n"
        f"outside computation: {100 * summary.outside_cells:.0f} % of cells spend 40 % or more there; the error "
        f"of that part is {100 * summary.median_outside_error:.1f} % in the median\n"
        f"order: {summary.pairs_agree} of {summary.pairs} pairs that differ by more than {100 * WORST_LIMIT:.0f} % are "
        f"ordered alike, {summary.close_pairs_agree} of {summary.close_pairs} by more than {100 * MEDIAN_LIMIT:.0f} %\n"
        f"{'all that is demanded holds' if summary.holds else 'NOT all that is demanded holds'}"
    )
