"""The settings of a comparison: plain values, all that is needed to run it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fast.errors import UsageError
from fast.lab.budget import TICKS
from fast.lab.journal import RUN, UNREADABLE
from fast.membership import parse_groups
from fast.sim import Cluster, Compute
from fast.sim.cluster import cluster_of
from fast.sim.faults import Scenario, parse_scenario
from fast.view import Groups


class Real(msgspec.Struct, frozen=True, tag_field="kind", tag="real"):
    """The real world: processes on this machine."""

    straggler: str | None = None
    """Workers that sleep so that they are slower than the others."""


class Simulated(msgspec.Struct, frozen=True, tag_field="kind", tag="sim"):
    """The simulated world of a comparison, in the words of the command line."""

    network: str | None = None
    step: str | None = None
    straggler: str | None = None
    check: bool = False
    """Whether every event is watched: a broken promise ends the run."""

    cluster: str | None = None
    """The text of a cluster file; what else is given takes the place of what it says."""
    hosts: str | None = None
    racks: str | None = None
    speeds: str | None = None
    spread: float | None = None
    gradients: str = "auto"
    """How gradients are computed: together, exact, or as the rule in `lab.batching` says."""
    scenario: str | None = None
    """What goes wrong, in sentences."""

    def model(self) -> Cluster:
        """The machines and links that these words describe."""
        return cluster_of(
            self.cluster,
            network=self.network,
            step=self.step,
            straggler=self.straggler,
            spread=self.spread,
            speeds=self.speeds,
            hosts=self.hosts,
            racks=self.racks,
        )

    @property
    def step_s(self) -> float:
        """Of a usual step, in the mean."""
        compute = self.model().compute
        return compute.mean_s if isinstance(compute, Compute) else 0.0

    def faults(self) -> Scenario:
        """What goes wrong; nothing, unless told."""
        return parse_scenario(self.scenario or "")

    def short(self) -> str:
        """What was asked for, in a few words."""
        usual = self.cluster is None
        options = {
            "step": self.step or ("20ms" if usual else None),
            "straggler": self.straggler,
            "hosts": self.hosts,
            "racks": self.racks,
            "speeds": self.speeds,
            "spread": self.spread,
        }
        base = [] if usual else ["a cluster file"]
        network = self.network or ("1gbit" if usual else None)
        said = [f"{name} {value}" for name, value in options.items() if value is not None]
        return ", ".join([*base, *([network] if network else []), *said])


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Strategies are canonical calls."""

    task: str
    strategies: list[str]
    workers: int
    target: float
    epochs: float | None
    seconds: float | None = None
    """The budget of a run: passes over the data, or (if not None) time."""
    seeds: list[int]
    tune: int = 0
    """Trials for each strategy before its runs; 0: everybody keeps the task's own learning rate."""
    split: str = "iid"
    ticks: int = TICKS
    pace_s: float | None = None
    deadline_s: float = 60.0
    groups: str | None = None
    """In which order sums are made, as it was asked for. None: the workers of a host are one group."""
    world: Real | Simulated

    @property
    def order(self) -> Groups | None:
        """The groups; None where the hosts say it."""
        return None if self.groups is None else parse_groups(self.groups, self.workers)

    @property
    def simulated(self) -> bool:
        return isinstance(self.world, Simulated)


def settings_of(path: Path) -> Settings:
    """The settings in a run.json, or in that of a run's folder."""
    file = path / RUN if path.is_dir() else path
    try:
        data: Any = msgspec.json.decode(file.read_bytes())
        if not isinstance(data, dict) or "settings" not in data:
            raise msgspec.ValidationError("it has no settings")
        return msgspec.convert(_as_it_was(data["settings"]), Settings)
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise UsageError(
            f"{file} is not a run.json of a comparison: {error}. Give the file that `fast compare` wrote."
        ) from error


def _as_it_was(settings: Any) -> Any:
    """With what went without saying when it was written: gradients were computed one by one, and all workers
    were one group."""
    match settings:
        case {"world": {"kind": "sim"} as world} if "gradients" not in world:
            settings = {**settings, "world": {**world, "gradients": "exact"}}
    match settings:
        case {"world": {"kind": "sim"}} if "groups" not in settings:
            return {**settings, "groups": "all"}
    return settings
