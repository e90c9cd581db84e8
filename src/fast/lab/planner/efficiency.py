"""How many times the samples of synchronous training a strategy needs until it has learned as much.

A prediction says how long a step takes, and nothing of what the step is worth. That depends on the task, so this is
a rule of thumb and no law: a strategy is of one of a few kinds, and each kind loses by the steps between two
exchanges, by staleness and by the number of workers,

    log2 factor = constant + a log2(interval) + b log2(1 + staleness) + c log2(workers / 4),   at least 0

Each number is from `benchmarks/advisor.py --fit`: least squares over 586 trainings of digits in the simulator, in 60
situations with 4 to 32 workers other than those that the advisor is judged by, each strategy with the best of one
grid of learning rates; 177 that were given up as too late count as at least that. They are off by 0.2 to 0.4 doublings.
Beyond what was tried, the nearest that was tried counts; and nobody is said to need fewer samples than lock-step, which
a small task may show (an outer momentum every few steps took half of them), and others won't. The literature's order
is coarser: lock-step loses nothing, staleness and long intervals cost samples, and so do neighbours in place of
everybody (Langer et al., A Taxonomic Perspective, section 4.3; Ben-Nun and Hoefler, section 7). Digits agrees but for
neighbours that take turns and gradients that are passed on, which cost nothing in its few hundred steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from types import MappingProxyType
from typing import Literal

from fast.core import GRADIENT, Strategy
from fast.lab.planner.prediction import Prediction
from fast.strategies.calls import arguments_of
from fast.strategies.catalogue import catalogue

Kind = Literal["lock-step", "packed", "late", "averaged", "neighbours", "in turn", "adrift", "hearsay"]
KINDS: tuple[Kind, ...] = (
    "lock-step", "packed", "late", "averaged", "neighbours", "in turn", "adrift", "hearsay",
)  # fmt: skip
"""One model for all: gradients whole, packed, or late. A replica each: averaged over all, over the same neighbours in
every step or over others in turn, or without waiting; and gradients that neighbours have passed on, without waiting."""
INTERVALS = ("tau", "interval", "up", "steps", "fetch")
"""What presets call the steps between two exchanges; of several the first."""
CHANCES = ("p",)
"""What they call the probability of an exchange after a step."""
TURNS = 8
"""Workers among whom it is seen whether a topology's links take turns."""
FEWEST, MOST = 4, 32
"""Workers of the situations that numbers are fitted to; likewise the longest interval and the largest staleness."""
LONGEST_INTERVAL = 64
LARGEST_STALENESS = 64


@dataclass(frozen=True)
class Features:
    """What the factor depends on."""

    kind: Kind
    interval: float
    staleness: float
    workers: int

    @property
    def row(self) -> tuple[float, float, float, float]:
        """One of a linear model of the factor's logarithm; inside what was tried."""
        return (
            1.0,
            log2(min(self.interval, LONGEST_INTERVAL)),
            log2(1 + min(self.staleness, LARGEST_STALENESS)),
            log2(min(max(self.workers, FEWEST), MOST) / FEWEST),
        )


@dataclass(frozen=True)
class Loss:
    """The four numbers of a kind, in doublings of the samples."""

    constant: float = 0.0
    interval: float = 0.0
    staleness: float = 0.0
    workers: float = 0.0

    @property
    def row(self) -> tuple[float, float, float, float]:
        return (self.constant, self.interval, self.staleness, self.workers)


LOSSES: Mapping[Kind, Loss] = MappingProxyType(
    {
        "lock-step": Loss(),
        "packed": Loss(constant=0.27, workers=-0.07),
        "late": Loss(constant=0.22, workers=-0.07),
        "averaged": Loss(constant=-0.39, interval=0.22, workers=-0.1),
        "neighbours": Loss(constant=0.9, workers=-0.15),
        "in turn": Loss(constant=0.01, workers=-0.06),
        "adrift": Loss(constant=0.47, interval=0.07, staleness=0.01, workers=-0.05),
        "hearsay": Loss(constant=-0.04, workers=-0.14),
    }
)


def samples_factor(strategy: Strategy, prediction: Prediction, workers: int, model_bytes: int) -> float:
    """How many times the samples of synchronous training with as many workers."""
    wasted = workers / strategy.contributors(workers) if strategy.never_stale else 1.0
    sent = prediction.sent_bytes / model_bytes
    return wasted * factor_of(features_of(strategy, workers, prediction.staleness, prediction.period, sent))


def factor_of(features: Features, losses: Mapping[Kind, Loss] = LOSSES) -> float:
    loss = losses[features.kind]
    return 2.0 ** max(0.0, sum(weight * value for weight, value in zip(loss.row, features.row, strict=True)))


def features_of(
    strategy: Strategy,
    workers: int,
    staleness: float | None = None,
    period: int | None = None,
    sent: float | None = None,
) -> Features:
    """`sent`: what a worker sends in a step, in models. Who exchanges when it has nothing else to send may do so
    rarely over a slow link, whatever its arguments say."""
    kind = kind_of(strategy)
    interval = (
        1.0 if kind in ("lock-step", "packed") else interval_of(strategy, period, central=kind == "late")
    )
    if kind == "adrift" and sent and not encodes(strategy):
        interval = max(interval, 1 / sent)
    return Features(kind, interval, float(staleness or 0), workers)


def kind_of(strategy: Strategy) -> Kind:
    """By what it says of itself and by its place in the taxonomy, never by its name."""
    if is_central(strategy):
        if not strategy.synchronous and not strategy.never_stale:
            return "late"
        return "packed" if encodes(strategy) else "lock-step"
    if not strategy.synchronous:
        return "hearsay" if any(tag.carries == GRADIENT for tag in strategy.tags) else "adrift"
    if strategy.topology is None:
        return "averaged"
    return "in turn" if strategy.topology.period(TURNS) > 1 else "neighbours"


def is_central(strategy: Strategy) -> bool:
    """Whether there is one model, which all gradients change; those without a place tell it by their promises."""
    preset = catalogue().get(strategy.call.partition("(")[0])
    if preset is not None:
        return preset.place.optimization == "central"
    return strategy.replicas_agree or (strategy.servers(2) > 0 and strategy.servers_optimize)


def interval_of(strategy: Strategy, period: int | None = None, *, central: bool = False) -> float:
    """Steps between two exchanges of a worker: as its arguments say, else as was seen. At a server `tau` and
    `interval` would bound a delay instead."""
    arguments = arguments_of(strategy.call)
    names = INTERVALS[-2:] if central else INTERVALS
    steps = [_number(arguments[name]) for name in names if name in arguments]
    chances = [_number(arguments[name]) for name in CHANCES if name in arguments and not central]
    known = [each for each in steps if each >= 1] + [1 / each for each in chances if 0 < each <= 1]
    return (known or [float(period or 1)])[0]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def encodes(strategy: Strategy) -> bool:
    """Whether something that it sends is compressed."""
    codecs = (getattr(strategy, "codec", None), *(tag.codec for tag in strategy.tags))
    return any(codec is not None for codec in codecs)
