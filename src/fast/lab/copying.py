"""Copies of the weights along the way: all that measuring costs while the clock runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fast.errors import FastError
from fast.lab.budget import Budget
from fast.lab.measures import Report, State
from fast.lab.notebook import Notebook
from fast.view import Layout

Passed = Callable[[int, int, int], int]
"""How many ticks have passed, by all workers' samples, the own steps and the own time."""


@final
class Copies:
    """Room for a copy of the model at every tick, made before the clock starts.

    `live` gives the model's own tensors by name (a model may replace a buffer, so it is asked each
    time); those in `flat` are copied at once, as the flat tensor that they are views of. Each copy
    notes when it was made, and what its owner had seen by then.
    """

    def __init__(
        self,
        live: Callable[[], State],
        budget: Budget,
        report: Report,
        notebook: Notebook,
        ticker: Ticker | None = None,
        flat: Flat | None = None,
        passed: Passed | None = None,
    ) -> None:
        self.budget, self.report = budget, report
        state = live()
        self._flat = flat if flat is not None and set(flat.names) <= state.keys() else None
        covered = set(self._flat.names) if self._flat is not None else set()
        self._rows = {
            name: _room(budget.ticks, value) for name, value in state.items() if name not in covered
        }
        self._live = live
        self._flat_rows = _room(budget.ticks, self._flat.tensor) if self._flat is not None else None
        self._notebook, self._ticker, self._passed = notebook, ticker, passed
        self._nothing_before = 0 if budget.seconds is not None else budget.samples_at(1)

    @property
    def rows(self) -> State:
        """All copies by name: the first dimension counts the ticks."""
        if self._flat is None or self._flat_rows is None:
            return self._rows
        return {**self._rows, **self._flat.named(self._flat_rows)}

    @property
    def nbytes(self) -> int:
        rows = [*self._rows.values(), *([] if self._flat_rows is None else [self._flat_rows])]
        return sum(row.numel() * row.element_size() for row in rows)

    def take(self, seen: int, own: int, steps: int) -> bool:
        """At a step boundary: a copy for every tick that has passed. Returns whether the budget is
        used up. `seen` are all workers' samples, `own` those of this one."""
        if seen < self._nothing_before:  # nearly always: this is all that most steps pay
            return False
        now_ns, report, budget = time.monotonic_ns(), self.report, self.budget
        elapsed_ns = now_ns - report.started_ns
        if self._passed is None:
            passed = budget.ticks_after(seen, elapsed_ns)
        else:
            passed = self._passed(seen, steps, elapsed_ns)
        self._take_until(passed, now_ns, own, steps)
        if budget.seconds is None and passed < budget.ticks:
            self._nothing_before = budget.samples_at(passed + 1)
        return passed >= budget.ticks

    def finish(self, steps: int) -> None:
        """Nothing will change any more: what is left of the ticks is now."""
        self._take_until(self.budget.ticks, time.monotonic_ns(), 0, steps)

    def _take_until(self, passed: int, now_ns: int, own: int, steps: int) -> None:
        report = self.report
        for tick in range(len(report.tick_ns), passed):
            report.tick_ns.append(now_ns)
            report.tick_samples.append(own)
            self._notebook.tick()
            self._copy(tick)
            if self._ticker is not None:
                self._ticker.write(tick, now_ns - report.started_ns, steps, own)

    def _copy(self, tick: int) -> None:
        if self._flat is not None and self._flat_rows is not None:
            self._flat_rows[tick].copy_(self._flat.tensor)
        if self._rows:
            state = self._live()
            for name, rows in self._rows.items():
                rows[tick].copy_(state[name])


@dataclass(frozen=True)
class Flat:
    """A flat tensor, and the parameters that are views of it."""

    tensor: Tensor
    layout: Layout

    @property
    def names(self) -> list[str]:
        return [segment.name for segment in self.layout.segments]

    def named(self, rows: Tensor) -> State:
        """Many copies of the flat tensor as copies of its parameters."""
        return {
            each.name: rows[:, each.start : each.start + each.size].reshape(len(rows), *each.shape)
            for each in self.layout.segments
        }


def _room(ticks: int, value: Tensor) -> Tensor:
    """Touched once, because the first touch of memory takes several times as long as a copy."""
    return torch.empty((ticks, *value.shape), dtype=value.dtype, device="cpu").fill_(0)


@final
class Ticker:
    """Writes a line to metrics.jsonl as soon as a tick has passed.

    Every participant appends for itself, in one system call: sent to the process that wrote
    all the rest, each line would wake up two processes, on cores that the workers need.
    """

    def __init__(self, path: str, run: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._run, self._who = run, who
        self._torn = False

    def write(self, tick: int, elapsed_ns: int, steps: int, samples: int) -> None:
        line = {
            "kind": "tick",
            "run": self._run,
            "who": self._who,
            "tick": tick,
            "elapsed_s": elapsed_ns / 1e9,
            "steps": steps,
            "samples": samples,
        }
        data = b"\n" * self._torn + msgspec.json.encode(line) + b"\n"
        with contextlib.suppress(OSError):  # a full disk ends the comparison, and says so, not the training
            self._torn = os.write(self._file, data) < len(data)


def save(rows: State, path: Path) -> None:
    """Write tensors to a file; a full disk is said in words."""
    try:
        save_file({name: row.contiguous() for name, row in rows.items()}, path)
    except (OSError, SafetensorError) as error:
        nbytes = sum(row.numel() * row.element_size() for row in rows.values())
        raise FastError(
            f"the copies of the weights ({nbytes / 1e6:.0f} MB) can't be written to {path.parent}: {error}. "
            "Make room there, or name a folder on another disk in TMPDIR."
        ) from error


@final
class SavedCopies:
    """The copies of one participant, read from its file tick by tick."""

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, framework="pt")
        self._names: Sequence[str] = list(self._file.keys())  # type: ignore[no-untyped-call]

    def at(self, tick: int) -> State:
        return {
            name: self._file.get_slice(name)[tick]  # type: ignore[no-untyped-call]
            for name in self._names
        }
