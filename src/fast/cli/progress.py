"""How a comparison is shown while it runs: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
import traceback
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from fast.errors import FastError
from fast.lab import Stage
from fast.lab.real import TrainingFailed

_QUIET_S = 10.0
"""Without a terminal, a line about the progress at most this often."""


class CompareDisplay:
    """A listener of a comparison; everything goes to standard error. Use it in a `with` statement."""

    def __init__(self, runs: int) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._left = Remaining(runs)
        self._name, self._steps = "", 1
        self._virtual_s: float | None = None
        self._began = self._spoke = time.monotonic()
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._said: set[str] = set()

    def __enter__(self) -> CompareDisplay:
        if self._console.is_terminal:
            title = TextColumn("{task.description}", markup=False)
            columns = (title, BarColumn(20), TextColumn("{task.fields[words]}", markup=False))
            self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    # What a comparison tells

    def begins(self, stage: Stage, name: str, steps: int) -> None:
        self._name, self._steps, self._virtual_s = _title(stage, name, self._left), steps, None
        self._began = self._spoke = time.monotonic()
        if self._progress is not None:
            self._bar = self._progress.add_task(self._name, total=steps or None, words="starting")

    def event(self, message: dict[str, Any]) -> None:
        match message:
            case {"event": "progress", "steps": steps}:
                self._virtual_s = message.get("virtual_s")
                self._tell_progress(sum(steps) / len(steps), message.get("workers"))
            case {"event": "line", "who": who, "text": text}:
                self._print(f"[{who}] {text}")
            case {"event": "say", "text": text} if text not in self._said:  # every seed says the same
                self._said.add(text)
                self._print(f"fast: {text}")
            case {"event": "failed", "error": Exception() as error}:
                self._print(_details(error))

    def ends(self, stage: Stage, words: str) -> None:
        if self._progress is not None and self._bar is not None:
            self._progress.remove_task(self._bar)
        elapsed = time.monotonic() - self._began
        if stage != "alone":
            self._left.ended(elapsed)
        took = f"took {elapsed:.1f} s{against_reality(self._virtual_s, elapsed)}"
        self._print(f"fast: {self._name}: {words}, {took}{self._left.words()}")

    def skips(self, stage: Stage) -> None:
        self._left.skipped()

    def _tell_progress(self, steps: float, workers: int | None) -> None:
        elapsed = time.monotonic() - self._began
        words = f"{steps:.0f} of {self._steps} steps" if self._steps else f"{steps:.0f} steps"
        if workers is not None:
            words += f" of {workers:,} worker{'s' * (workers != 1)}"
        words += against_reality(self._virtual_s, elapsed)
        share = min(1.0, steps / self._steps) if self._steps else 0.0
        words += self._left.words(share, elapsed)
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=steps, words=words)
        elif time.monotonic() - self._spoke > _QUIET_S:
            self._spoke = time.monotonic()
            self._print(f"fast: {self._name}: {words}")

    def _print(self, text: str) -> None:
        if text:
            self._console.print(Text(text, style="dim" if text.startswith("fast:") else ""))


class Remaining:
    """How many trainings are done, and how long the rest will take if it goes on like this."""

    def __init__(self, runs: int) -> None:
        self.runs, self.number = runs, 1
        self._took_s: list[float] = []

    def ended(self, took_s: float) -> None:
        self.number += 1
        self._took_s.append(took_s)

    def skipped(self) -> None:
        self.number += 1

    def left_s(self, share: float = 0.0, elapsed_s: float = 0.0) -> float | None:
        """`share` of the present training is done, after `elapsed_s`."""
        whole = self.runs - self.number + 1
        if self._took_s:
            mean = sum(self._took_s) / len(self._took_s)
            return max(0.0, mean * whole - min(elapsed_s, mean))
        return elapsed_s / share * whole - elapsed_s if share > 0.1 else None

    def words(self, share: float = 0.0, elapsed_s: float = 0.0) -> str:
        left_s = self.left_s(share, elapsed_s)
        return "" if left_s is None or self.number > self.runs else f", about {_duration(left_s)} left"


def against_reality(virtual_s: float | None, real_s: float) -> str:
    """How much virtual time has passed, and how fast; nothing in the real world."""
    if virtual_s is None:
        return ""
    simulated = f", {virtual_s:.1f} s simulated"
    if not virtual_s > 0 or not real_s > 0:
        return simulated
    times = max(virtual_s / real_s, real_s / virtual_s)
    word = "faster" if virtual_s >= real_s else "slower"
    return f"{simulated}, {times:{'.1f' if times < 9.95 else ',.0f'}} times {word} than reality"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _title(stage: Stage, name: str, left: Remaining) -> str:
    match stage:
        case "alone":
            return name
        case "tuning":
            return f"{left.number} of {left.runs}: tuning {name}"
        case _:
            return f"{left.number} of {left.runs}: {name}"


def _details(error: Exception) -> str:
    """The traceback of what went wrong in somebody's code; our own errors say enough."""
    if isinstance(error, TrainingFailed):
        return error.details.rstrip()
    return "" if isinstance(error, FastError) else "".join(traceback.format_exception(error)).rstrip()
