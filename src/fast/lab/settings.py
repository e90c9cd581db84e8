"""The settings of a comparison: plain values, all that is needed to run it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fast.errors import UsageError
from fast.lab.budget import TICKS
from fast.sim import Compute, Network, parse_duration, parse_network, parse_straggler


class Real(msgspec.Struct, frozen=True, tag_field="kind", tag="real"):
    """The real world: processes on this machine."""


class Simulated(msgspec.Struct, frozen=True, tag_field="kind", tag="sim"):
    """The simulated world of a comparison, in the words of the command line."""

    network: str = "1gbit"
    step: str = "20ms"
    straggler: str | None = None

    def links(self) -> Network:
        return parse_network(self.network)

    def compute(self) -> Compute:
        slow = None if self.straggler is None else parse_straggler(self.straggler)
        return Compute(self.step_s, slow)

    @property
    def step_s(self) -> float:
        return parse_duration(self.step) / 1e9


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
    world: Real | Simulated

    @property
    def simulated(self) -> bool:
        return isinstance(self.world, Simulated)


def settings_of(path: Path) -> Settings:
    """The settings in a run.json, or in that of a run's folder."""
    file = path / "run.json" if path.is_dir() else path
    try:
        data: Any = msgspec.json.decode(file.read_bytes())
        if not isinstance(data, dict) or "settings" not in data:
            raise msgspec.ValidationError("it has no settings")
        return msgspec.convert(data["settings"], Settings)
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(
            f"{file} is not a run.json of a comparison: {error}. Give the file that `fast compare` wrote."
        ) from error
