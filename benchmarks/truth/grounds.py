"""Grounds: where cells run for real, and the model of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import harness
from fast.engine import LocalEngine
from fast.lab import Run, train_task
from fast.lab.calibration import Effort, cluster_of, measure
from fast.sim import Cluster, Compute, parse_straggler
from fast.sim.cluster import read_cluster, to_toml
from truth.cells import Cell
from truth.tasks import TASKS

Models = dict[str, list[dict[str, Any]]]
"""By ground the calibrations of all repetitions."""


class Ground(Protocol):
    """Where cells run for real, and the model of it: for now this host; links between hosts may follow."""

    name: str

    def calibrate(self, cell: Cell, effort: Effort) -> None:
        """For this cell's model and number of workers."""

    def train(self, cell: Cell, seed: int) -> Run: ...

    def cluster(self, cell: Cell, repetition: int) -> Cluster:
        """The model that a run is simulated with."""


class ThisHost:
    """Processes on this machine, over shared memory."""

    name = "this host"

    def __init__(self, engine: LocalEngine, known: Models) -> None:
        self._engine = engine
        self.found = known
        """By model and workers, of each repetition: the cluster file and by how much a sleep is longer than told."""

    def calibrate(self, cell: Cell, effort: Effort) -> None:
        measured = measure(
            TASKS[cell.model], workers=(cell.workers,), effort=effort, engine=self._engine, tell=harness.note
        )
        found = {
            "cluster": to_toml(cluster_of(measured)),
            "oversleeping_s": measured.oversleeping.median_s,
        }
        self.found.setdefault(cell.ground, []).append(found)
        harness.note(found["cluster"])

    def train(self, cell: Cell, seed: int) -> Run:
        return train_task(
            TASKS[cell.model],
            cell.strategy,
            workers=cell.workers,
            budget=cell.budget(),
            seed=seed,
            engine=self._engine,
            pace_s=cell.pace_s,
            straggler=cell.straggler,
        )

    def cluster(self, cell: Cell, repetition: int) -> Cluster:
        found = self.found[cell.ground][repetition]
        usual = read_cluster(found["cluster"])
        assert isinstance(usual.compute, Compute)
        straggler = None if cell.straggler is None else parse_straggler(cell.straggler)
        pace_s = None if cell.pace_s is None else cell.pace_s + found["oversleeping_s"]
        return replace(usual, compute=replace(usual.compute, straggler=straggler, pace_s=pace_s))


def grounds_on(engine: LocalEngine, known: Models) -> dict[str, Ground]:
    """All that there are, by name."""
    host = ThisHost(engine, known)
    return {host.name: host}
