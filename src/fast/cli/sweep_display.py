"""How a sweep is shown: its progress while it runs, and its table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fast.cli.progress import Remaining
from fast.lab.report.words import SECONDS
from fast.lab.sweep import Point, Sweep, Swept, front
from fast.lab.sweep.points import best
from fast.lab.sweep.trying import judged_on
from fast.strategies.calls import short_call

_QUIET_S = 10.0
_WIDTH = 100
_UNBEATEN = "*"


class SweepDisplay:
    """One live line on a terminal, a plain one now and then elsewhere; all of it on standard error."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._began = self._spoke = time.monotonic()
        self._before = 0
        columns = (BarColumn(20), TextColumn("{task.fields[words]}", markup=False), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not self._live)
        self._bar = self._progress.add_task("", total=sweep.trials, words="starting")

    @property
    def _live(self) -> bool:
        return self._console.is_terminal

    def __enter__(self) -> SweepDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def tell(self, done: int, point: Point | None) -> None:
        if point is None:
            self._before = done
        words = self._words(done, point)
        self._progress.update(self._bar, completed=done, words=words)
        if not self._live and (point is None or time.monotonic() - self._spoke > _QUIET_S):
            self._spoke = time.monotonic()
            self._console.print(Text(f"fast: {words}", style="dim"))

    def _words(self, done: int, point: Point | None) -> str:
        searching = "at most " if self._sweep.search else ""
        words = f"{done} of {searching}{self._sweep.trials} trials"
        if point is None:
            return f"{words} done before" if done else words
        return f"{words}; {point.label}: {_outcome(point)}{self._left(done)}"

    def _left(self, done: int) -> str:
        """If the rest takes as long as what was done since the beginning, on as many cores."""
        left = Remaining(self._sweep.trials - self._before)
        for _ in range(done - self._before):
            left.ended((time.monotonic() - self._began) / (done - self._before))
        return left.words()


def _outcome(point: Point) -> str:
    if point.error is not None:
        return "failed"
    if point.score is None:
        return "diverged"
    if point.cost is None:
        return "target not reached"
    return f"target after {SECONDS.write(point.time_to_target_s)}"


# The table


def print_swept(swept: Swept, title: str, *, to_stderr: bool) -> None:
    """Title, what there is to say about it, the table, then a line for each trial that failed."""
    file = sys.stderr if to_stderr else sys.stdout
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDTH)
    console.print(Text(title, style="bold"), soft_wrap=True)
    for line in _about(swept):
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    console.print(_table(swept))
    if swept.reached:
        console.print(
            Text(f"{_UNBEATEN} no setting of any strategy is faster with fewer bytes"), soft_wrap=True
        )
    for point in swept.failed:
        console.print(Text(f"{point.label} failed: {point.error}", style="red"), soft_wrap=True)


def _about(swept: Swept) -> list[str]:
    sweep, points = swept.sweep, swept.points
    reached = sum(point.cost is not None for point in points)
    lines = [f"{len(points)} trials, {reached} at the target; {_judged(swept)}"]
    lines += [*sweep.plan.facts.get("model", ()), *sweep.plan.facts.get("faults", ())]
    for asked, count in sweep.left_out.items():
        many = "s" * (count > 1)
        lines.append(
            f"{short_call(asked)}: {count} combination{many} of its knobs can't be built and left out"
        )
    return lines


def _judged(swept: Swept) -> str:
    if judged_on(swept.sweep.plan.task) == "validation":
        return "judged on validation data"
    return "judged on test data, for the task has no other: the best look a little better than they are"


def _table(swept: Swept) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("strategy", overflow="fold")
    for head in ("rate", "time to\ntarget", "sent to\ntarget", "final\nscore", ""):
        table.add_column(head, justify="right", no_wrap=True)
    unbeaten = set(swept.front)
    for points in swept.tried.values():
        for point in _shown(points):
            table.add_row(*_cells(point, point in unbeaten))
        table.add_section()
    return table


def _shown(points: Sequence[Point]) -> list[Point]:
    """What no other setting of the strategy beats, the fastest first; else the one with the highest score."""
    return front(points) or ([best(points)] if points else [])


def _cells(point: Point, unbeaten: bool) -> list[str]:
    score = "-" if point.error else "diverged" if point.score is None else f"{point.score:.3f}"
    rest = [score, _UNBEATEN if unbeaten else ""]
    if point.bytes_to_target is None:
        return [
            short_call(point.strategy), f"x {point.rate:g}", "failed" if point.error else "not reached", "-", *rest
        ]  # fmt: skip
    return [
        short_call(point.strategy), f"x {point.rate:g}", SECONDS.write(point.time_to_target_s),
        decimal(point.bytes_to_target), *rest,
    ]  # fmt: skip
