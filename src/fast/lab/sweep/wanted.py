"""A sweep that has been checked and can start, and the plain values that say what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from fast.errors import UsageError
from fast.lab.plan import Plan
from fast.lab.settings import Settings, Simulated
from fast.lab.surroundings import versions
from fast.lab.sweep.searching import check_search
from fast.lab.sweep.space import Space, grid, parse_knob, spaces_of
from fast.lab.tuning import RATES, Setting


class Wanted(msgspec.Struct, frozen=True):
    """All that is needed to go on with a sweep: the first line of its record."""

    settings: Settings
    spaces: list[Space]
    search: int = 0
    """Trials of each strategy in a search; 0 for the whole grid."""
    versions: dict[str, str] = {}
    """Of what its trials were made with."""
    schema: Literal[1] = 1
    kind: Literal["sweep"] = "sweep"


@dataclass(frozen=True)
class Sweep:
    """What `Wanted` says, with everything that could be wrong in it found out."""

    plan: Plan
    spaces: Sequence[Space]
    grids: Sequence[Sequence[Setting]]
    """What is tried of each strategy; nothing yet, if it is searched for."""
    search: int = 0

    @staticmethod
    def of(
        plan: Plan, *, knobs: Sequence[str] = (), rates: Sequence[float] = RATES, search: int = 0
    ) -> Sweep:
        """`knobs` are sentences such as `local_sgd.tau=2,8,32`; `search` is 0, or how many trials for each."""
        return _checked(plan, spaces_of(plan, [parse_knob(each) for each in knobs], rates), search)

    @staticmethod
    def again(wanted: Wanted) -> Sweep:
        """The same as before, whatever a strategy's knobs are today."""
        return _checked(Plan.again(wanted.settings), wanted.spaces, wanted.search)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.plan.settings, list(self.spaces), self.search, versions())

    @property
    def seed(self) -> int:
        """Of every trial: a number of its own, so that no setting is chosen for the luck of the seed that a
        comparison will use."""
        return self.plan.tuning_seed

    @property
    def trials(self) -> int:
        """At most; a search may come to a setting twice, and two strategies to the same one."""
        if self.search:
            return self.search * len(self.spaces)
        return len({setting for each in self.grids for setting in each})

    @property
    def left_out(self) -> dict[str, int]:
        """How many combinations of knobs can't be built, by strategy, where there are any."""
        if self.search:
            return {}
        counts = {
            space.asked: sum(1 for _ in space.combinations()) - len(settings) // len(space.rates)
            for space, settings in zip(self.spaces, self.grids, strict=True)
        }
        return {asked: count for asked, count in counts.items() if count}


def _checked(plan: Plan, spaces: Sequence[Space], search: int) -> Sweep:
    settings = plan.settings
    if not isinstance(settings.world, Simulated):
        raise UsageError("a sweep runs in the simulator; compare real workers with `fast compare`")
    if search < 0:
        raise UsageError(f"--search {search}: the number of trials for each strategy, at least 1")
    if search:
        check_search()
    plan.split.assign(plan.task, settings.workers, plan.tuning_seed)
    grids = [[] if search else grid(plan, space) for space in spaces]
    for space, each in zip(spaces, grids, strict=True):
        if not search and not each:
            raise UsageError(
                f"{space.asked}: no combination of its knobs can be built; give fewer of them with --knob"
            )
    return Sweep(plan, spaces, grids, search)
