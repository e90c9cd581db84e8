"""The few numbers that the rules look at: how long an exchange takes against a step, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fast.collectives.cost import COSTS, choose
from fast.core.world import Link
from fast.lab.planner.closed_forms import Exchange
from fast.lab.planner.situation import Situation

HOP_BY_HOP = ("tree", "doubling", "ring", "rabenseifner")
"""Ways to make a sum in which nobody talks to more than one or two others at a time."""


@dataclass(frozen=True)
class Facts:
    """Of one situation. `rho` is the exchange in the best pattern, in steps."""

    step_s: float
    pattern: str
    """The one that takes the least."""
    moving_s: float
    """Of a full exchange by that pattern: Langer et al.'s lower bound, without any latency."""
    hops_s: float
    """L ⌈log2 P⌉: what letters are on the way at least, whatever they carry (Ben-Nun and Hoefler, in whole hops)."""
    transmit_s: float
    """The model over one link, once."""
    master_s: float
    """The model of every worker over the link of one master."""
    algorithm: str
    """Which of the ways hop by hop makes a mean of all gradients in the least time; what that takes."""
    algorithm_s: float

    @property
    def exchange_s(self) -> float:
        return self.moving_s + self.hops_s

    @property
    def rho(self) -> float:
        return self.exchange_s / self.step_s

    @property
    def latency_bound(self) -> bool:
        return self.hops_s > self.transmit_s

    @property
    def master_bound(self) -> bool:
        return self.master_s > self.step_s

    def to_json(self) -> dict[str, Any]:
        return {
            "rho": self.rho,
            "pattern": self.pattern,
            "exchange_s": self.exchange_s,
            "moving_s": self.moving_s,
            "hops_s": self.hops_s,
            "transmit_s": self.transmit_s,
            "master_s": self.master_s,
            "algorithm": self.algorithm,
            "algorithm_s": self.algorithm_s,
        }


def facts_of(situation: Situation) -> Facts:
    """By the closed forms alone; nothing is simulated."""
    exchange = Exchange.of(situation.model_bytes, situation.rate_bytes_per_s)
    pattern, moving_s = exchange.fastest(situation.workers)
    means = situation.workers, situation.model_bytes, Link(situation.latency_s, situation.rate_bytes_per_s)
    algorithm = choose(HOP_BY_HOP, *means)
    return Facts(
        step_s=situation.step_s,
        pattern=pattern,
        moving_s=moving_s,
        hops_s=situation.latency_s * math.ceil(math.log2(situation.workers)),
        transmit_s=exchange.transmit_s,
        master_s=situation.workers * exchange.transmit_s,
        algorithm=algorithm,
        algorithm_s=COSTS[algorithm](*means),
    )
