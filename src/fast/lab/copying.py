"""Copies of the weights along the way: all that measuring costs while the clock runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fast.errors import FastError
from fast.lab.budget import Budget
from fast.lab.measures import Report, State
from fast.trace import Meter

Tell = Callable[[dict[str, int]], None]


@final
class Copies:
    """Room for a copy of the model at every tick, made before the clock starts.

    `live` are the model's own tensors. Each copy notes when it was made, and what its owner had
    seen and sent by then.
    """

    def __init__(self, live: State, budget: Budget, report: Report, meter: Meter, tell: Tell) -> None:
        self.budget, self.report = budget, report
        self.rows = {
            name: torch.empty((budget.ticks, *value.shape), dtype=value.dtype, device="cpu").fill_(0)
            for name, value in live.items()
        }
        self._live, self._meter, self._tell = live, meter, tell

    @property
    def nbytes(self) -> int:
        return sum(row.numel() * row.element_size() for row in self.rows.values())

    def take(self, seen: int, own: int, steps: int) -> bool:
        """At a step boundary: a copy for every tick that has passed. Returns whether the budget is
        used up. `seen` are all workers' samples, `own` those of this one."""
        now_ns, report = time.monotonic_ns(), self.report
        elapsed_ns = now_ns - report.started_ns
        passed = self.budget.ticks_after(seen, elapsed_ns)
        while len(report.tick_ns) < passed:
            tick = len(report.tick_ns)
            report.tick_ns.append(now_ns)
            report.tick_samples.append(own)
            report.tick_bytes.append(self._meter.bytes_sent)
            for name, value in self._live.items():
                self.rows[name][tick].copy_(value)
            self._tell(
                {
                    "tick": tick,
                    "elapsed_ns": elapsed_ns,
                    "steps": steps,
                    "samples": own,
                    "bytes_sent": self._meter.bytes_sent,
                    "waited_ns": self._meter.waited_ns,
                }
            )
        return self.budget.is_over(seen, elapsed_ns)


def save(rows: State, path: Path) -> None:
    """Write tensors to a file; a full disk is said in words."""
    try:
        save_file(rows, path)
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
