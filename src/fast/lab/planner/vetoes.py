"""What a situation rules out, whatever its speed: V1 to V5, and what R8 and R9 can't do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fast.core import Strategy
from fast.lab.planner.rules import LANGER
from fast.lab.planner.situation import Situation
from fast.lab.planner.techniques import Technique
from fast.parts.rules import Robust

MOST_DIFFICULTY = 1
"""Of reproducing a result, where it has to be reproducible: trivial or easy."""
MOST_HYPERPARAMETERS = 2
"""With a low budget for tuning. Ours."""
LEAST_RESILIENCE = 3
"""On machines that come and go; with the pairwise methods that R8 names as exceptions."""
PAIRWISE = ("sgp", "osgp", "noloco")


@dataclass(frozen=True)
class Option:
    """A call that somebody might take."""

    name: str
    """Of the preset."""
    call: str
    strategy: Strategy
    technique: Technique


@dataclass(frozen=True)
class Veto:
    """When it holds, and what it forbids then."""

    id: str
    holds: Callable[[Situation], bool]
    forbids: Callable[[Option, Situation], bool]
    says: Callable[[Situation], str]
    source: str


@dataclass(frozen=True)
class Vetoed:
    """A preset that isn't allowed, with the first reason."""

    name: str
    call: str
    id: str
    reason: str
    source: str

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "call": self.call,
            "id": self.id,
            "reason": self.reason,
            "source": self.source,
        }


def veto_of(option: Option, situation: Situation) -> Veto | None:
    """The first one that forbids it, or None."""
    return next((veto for veto in held(situation) if veto.forbids(option, situation)), None)


def held(situation: Situation) -> tuple[Veto, ...]:
    """Those that hold in a situation."""
    return tuple(veto for veto in VETOES if veto.holds(situation))


# What they forbid


def _any(option: Option, situation: Situation) -> bool:
    return True


def _not_together(option: Option, situation: Situation) -> bool:
    return not option.technique.central_and_synchronous


def _irreproducible(option: Option, situation: Situation) -> bool:
    """Who comes first makes a difference also where late gradients are thrown away."""
    return option.technique.reproducibility_difficulty > MOST_DIFFICULTY or not option.strategy.synchronous


def _much_to_tune(option: Option, situation: Situation) -> bool:
    return option.technique.hyperparameter_complexity > MOST_HYPERPARAMETERS


def _optimizer_on_workers(option: Option, situation: Situation) -> bool:
    strategy = option.strategy
    on_servers = strategy.servers(situation.workers) > 0 and strategy.servers_optimize
    return option.technique.decentral or not on_servers


def _trusting(option: Option, situation: Situation) -> bool:
    return not isinstance(getattr(option.strategy, "rule", None), Robust)


def _fragile(option: Option, situation: Situation) -> bool:
    """Where another need leaves only rounds of everybody, rounds that survive a death have to do."""
    if not option.strategy.survives_death:
        return True
    needs = situation.needs
    resilient = option.technique.resilience >= LEAST_RESILIENCE or option.name in PAIRWISE
    return not (resilient or needs.shards_unlike or needs.hostile)


# What they say


def _unlike(situation: Situation) -> str:
    why = (
        "data differ from worker to worker"
        if not situation.needs.iid
        else "a worker's share of the data is small"
    )
    return f"{why}, so a replica that learns alone learns something else"


VETOES = (
    Veto(
        "V1", lambda situation: not situation.fits, _any,
        lambda situation: f"the model doesn't fit one worker. {situation.memory_words}",
        f"{LANGER}, section 3.1.1",
    ),
    Veto(
        "R9", lambda situation: situation.needs.hostile > 0, _trusting,
        lambda situation: "without a robust rule one hostile worker is enough",
        "Blanchard et al., NIPS 2017",
    ),
    Veto(
        "V2", lambda situation: situation.needs.shards_unlike, _not_together, _unlike,
        f"{LANGER}, section 4.3",
    ),
    Veto(
        "V3", lambda situation: situation.needs.reproducible, _irreproducible,
        lambda situation: "what comes out depends on who comes first, so no run is like another",
        f"{LANGER}, section 4.3",
    ),
    Veto(
        "V4", lambda situation: situation.needs.tuning == "low", _much_to_tune,
        lambda situation: "so many hyperparameters can't be tuned with a low budget",
        f"{LANGER}, section 4.3",
    ),
    Veto(
        "V5", lambda situation: not situation.fits_optimizer, _optimizer_on_workers,
        lambda situation: f"every worker would run the optimizer, whose state doesn't fit. {situation.memory_words}",
        f"{LANGER}, section 3.2.2",
    ),
    Veto(
        "R8", lambda situation: situation.needs.unreliable, _fragile,
        lambda situation: "rounds wait for workers that may be gone, or break when one dies in the middle",
        f"{LANGER}, section 4.3",
    ),
)  # fmt: skip
"""In the order in which they are named as the reason."""
