"""The search for settings: the same number of trials for every strategy, on one grid of rates.

Each trial is a whole training, judged on validation data. First comes the grid: the task's own
learning rate times each of `RATES`, the same for all strategies. The trials that are left go where
they help most: past the grid if its edge was best (a grid that misses a strategy's best rate
makes the others look good), else to the strategy's own knobs, else between the rates.

The best setting would reach the target soonest. How many samples that takes is what a trial tells
well; how long a sample takes doesn't depend on the rate, and the fastest of all trials of one call
tells it best, because whatever else the machine does only adds to it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fast.core import Strategy
from fast.errors import UsageError
from fast.loop.loading import strategy_from
from fast.strategies.calls import open_knobs, short_call, with_argument

RATES = (1.0, 0.5, 2.0, 0.25, 4.0, 0.125)
"""Factors on the task's own learning rate, in the order in which they are tried."""
DEFAULT_TRIALS = 8

Knobs = Mapping[str, tuple[object, ...]]


@dataclass(frozen=True)
class Setting:
    """What a run is set to: the strategy's call, and a factor on the task's learning rate."""

    call: str
    rate: float = 1.0


class Trial(msgspec.Struct, frozen=True):
    """One setting and what it was worth on validation data."""

    strategy: str
    rate: float
    score: float | None = None
    time_to_target_s: float | None = None
    samples_to_target: int | None = None
    samples_per_s: float | None = None
    held: bool = True
    """Whether the last model was still as good as the target, where one before it was."""
    diverged: bool = False
    error: str | None = None

    @property
    def setting(self) -> Setting:
        return Setting(self.strategy, self.rate)

    def worth(self, trials: Sequence[Trial]) -> tuple[float, ...]:
        """Among these trials; larger is better: reaching the target soon, else a high score at the end. Who falls
        below it again reached it by luck, which another seed may not have: after all who stay there."""
        if self.error is not None or self.score is None:
            return (0.0,)
        if self.samples_to_target is None:
            return (1.0, self.score)
        known = [each.samples_per_s for each in trials if each.strategy == self.strategy]
        fastest = max((speed for speed in known if speed is not None), default=1.0)
        return (3.0 if self.held else 2.0, -self.samples_to_target / fastest, self.score)


class Tuning(msgspec.Struct, frozen=True):
    """All trials of one strategy."""

    asked: str
    trials: list[Trial]

    @property
    def chosen(self) -> Trial:
        """The best one; of equal ones the first."""
        return _best(self.trials)

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or largest tried, so that a better one may lie beyond."""
        return _is_edge(self.chosen.setting, self.trials)

    def to_json(self) -> dict[str, object]:
        trials = [
            {
                **msgspec.to_builtins(trial),
                "label": short_call(trial.strategy),
                "chosen": trial is self.chosen,
            }
            for trial in self.trials
        ]
        return {
            "asked": self.asked,
            "label": short_call(self.asked),
            "budget": len(trials),
            "at_edge": self.at_edge,
            "trials": trials,
        }


def knobs_for(strategy: Strategy, workers: int) -> Knobs:
    """Knobs that nobody has turned, without the values that so many workers can't train with."""
    knobs = {
        name: tuple(value for value in values if _is_possible(strategy, name, value, workers))
        for name, values in open_knobs(strategy).items()
    }
    return {name: values for name, values in knobs.items() if values}


def _is_possible(strategy: Strategy, knob: str, value: object, workers: int) -> bool:
    try:
        strategy_from(with_argument(strategy.call, knob, value)).check(workers)
    except UsageError:
        return False
    return True


def next_setting(asked: str, knobs: Knobs, trials: Sequence[Trial]) -> Setting:
    """What to try after these trials."""
    if len(trials) < len(RATES):
        return Setting(asked, RATES[len(trials)])
    tried = {trial.setting for trial in trials}
    best = _best(trials).setting
    return next(setting for setting in _ideas(best, knobs, trials) if not _known(setting, tried))


def _best(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.worth(trials))


def _known(setting: Setting, tried: Iterable[Setting]) -> bool:
    """Whether this was tried, or a rate so near to it that it would tell nothing."""
    return any(
        setting.call == each.call and math.isclose(setting.rate, each.rate, rel_tol=0.02) for each in tried
    )


def _ideas(best: Setting, knobs: Knobs, trials: Sequence[Trial]) -> Iterator[Setting]:
    """Without end, the most promising first."""
    if _is_edge(best, trials):
        rates = _rates_of(best, trials)
        yield Setting(best.call, best.rate / 2 if best.rate == min(rates) else best.rate * 2)
    for name, values in knobs.items():
        for value in values:
            yield Setting(with_argument(best.call, name, value), best.rate)
    for gap in (2**0.5, 2**0.25, 2**0.125):
        for rate in (best.rate * gap, best.rate / gap):
            yield Setting(best.call, float(f"{rate:.4g}"))
    for doubled in itertools.count(1):  # nothing near is left: ever farther away
        for rate in (best.rate * 2**doubled, best.rate / 2**doubled):
            yield Setting(best.call, float(f"{rate:.4g}"))


def _is_edge(best: Setting, trials: Sequence[Trial]) -> bool:
    rates = _rates_of(best, trials)
    return len(rates) > 1 and best.rate in (min(rates), max(rates))


def _rates_of(best: Setting, trials: Sequence[Trial]) -> set[float]:
    """The rates that were tried with this call; a knob is turned at one rate only, which has no edge."""
    return {trial.rate for trial in trials if trial.strategy == best.call}
