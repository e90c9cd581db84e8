"""Situations that are drawn from a seed, and the task that is trained in them."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass, field
from typing import Any

from fast.core import Task
from fast.lab import Simulated, load_task
from fast.lab.judging import Judge
from fast.lab.planner.checking import UNLIKE
from fast.lab.planner.needs import Needs
from fast.lab.planner.situation import COMPUTING_COPIES, Situation
from fast.lab.sizes import Sizes

TASK = "digits"
STEP_S = 0.020
WORKERS = (4, 4, 8, 8, 8, 16, 16, 16, 32)
LEAST_COMMUNICATION, MOST_COMMUNICATION = 0.02, 50.0
"""An all-reduce against a step's computing."""
LEAST_LATENCY, MOST_LATENCY = 0.01, 0.9
"""The share of an all-reduce that is latency."""
CHECKED, FITTING = 0, 1
"""The seeds of the situations that are judged, and of those that numbers are fitted to."""
SEEDS = 4
"""Trainings have one of so many seeds, others for fitting."""
NEEDS = {"none": 60, "reproducible": 8, "unreliable": 8, "tuning": 8, "hostile": 5, "iid": 6, "memory": 5}
"""How often which one of them is there, in per cent."""
HOSTILE = 1
LEAST_HOSTILE = 2 * HOSTILE + 3
"""So few workers can tell a hostile one from the others."""
MOST_UNLIKE = 8
"""Among more workers the data of digits can't be divided so unequally that nobody is left without any."""


@dataclass(frozen=True)
class Case:
    """One situation, in the words of the command line, and the seed of its trainings."""

    key: str
    seed: int
    workers: int
    communication: float
    network: str
    straggler: str | None = None
    spread: float | None = None
    needs: dict[str, Any] = field(default_factory=dict)

    @property
    def split(self) -> str:
        """How the data is divided."""
        return "iid" if self.needs.get("iid", True) else UNLIKE

    def world(self) -> Simulated:
        return Simulated(network=self.network, step="20ms", straggler=self.straggler, spread=self.spread)

    def situation(self) -> Situation:
        return Situation.of(the_sizes(), self.workers, self.world(), Needs(**self.needs), task=TASK)

    def __str__(self) -> str:
        slow = self.straggler or (f"spread {self.spread:g}" if self.spread else "alike")
        needs = "".join(f", {name}={value}" for name, value in self.needs.items())
        return f"{self.workers} workers, all-reduce {self.communication:.2g} x computing, {self.network}, {slow}{needs}"


def drawn(count: int, seed: int) -> list[Case]:
    """The first ones are the same, however many are drawn."""
    return [_drawn(seed, number) for number in range(count)]


def _drawn(seed: int, number: int) -> Case:
    chance = random.Random(f"{seed} {number}")
    workers = chance.choice(WORKERS)
    communication = _log_uniform(chance, LEAST_COMMUNICATION, MOST_COMMUNICATION)
    latency = _log_uniform(chance, LEAST_LATENCY, MOST_LATENCY)
    return Case(
        key=f"{seed}/{number}",
        seed=SEEDS * seed + chance.randrange(SEEDS),
        workers=workers,
        communication=float(f"{communication:.3g}"),
        network=network_of(workers, communication * STEP_S, latency),
        **_straggling(chance),
        needs=_needs(chance, workers),
    )


def network_of(workers: int, mean_s: float, latency: float) -> str:
    """On which everybody's mean takes so long, with such a share of latency."""
    rate = 2 * (workers - 1) / workers * weights_bytes() / (mean_s * (1 - latency))
    return f"{8 * rate:.4g},{mean_s * latency / 2:.4g}s"


def _straggling(chance: random.Random) -> dict[str, Any]:
    factor = float(f"{_log_uniform(chance, 1.5, 8.0):.2g}")
    match chance.choices(("none", "spread", "always", "at times"), (35, 25, 20, 20))[0]:
        case "spread":
            return {"spread": round(chance.uniform(0.1, 0.6), 2)}
        case "always":
            return {"straggler": f"{factor:g}x"}
        case "at times":
            return {"straggler": f"{factor:g}x@{_log_uniform(chance, 0.02, 0.2):.2g}"}
    return {}


def _needs(chance: random.Random, workers: int) -> dict[str, Any]:
    """Small memory is what the optimizer's state doesn't fit into any more."""
    match chance.choices(list(NEEDS), list(NEEDS.values()))[0]:
        case "none":
            return {}
        case "tuning":
            return {"tuning": "low"}
        case "hostile":
            return {"hostile": HOSTILE} if workers >= LEAST_HOSTILE else {}
        case "iid":
            return {"iid": False} if workers <= MOST_UNLIKE else {}
        case "memory":
            return {"memory_bytes": (COMPUTING_COPIES + 1) * weights_bytes()}
        case need:
            return {need: True}


def _log_uniform(chance: random.Random, low: float, high: float) -> float:
    return math.exp(chance.uniform(math.log(low), math.log(high)))


@functools.cache
def the_task() -> Task:
    return load_task(TASK)


@functools.cache
def the_sizes() -> Sizes:
    return Sizes.of_task(TASK, the_task(), with_rows=True)


@functools.cache
def weights_bytes() -> int:
    return sum(each.numel() * each.element_size() for each in the_task().model().parameters())


@functools.cache
def the_judge(tuning: bool) -> Judge:
    return Judge(the_task(), the_task().validation() if tuning else the_task().test())
