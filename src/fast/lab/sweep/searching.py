"""A search in the space around a strategy's knobs, by optuna, an extra.

Numbers are drawn between the smallest and the largest value of a knob, whatever else it has is chosen from.
There are two aims, time and bytes to the target, and the sampler (a tree-structured Parzen estimator)
looks for all settings that no other beats. It is asked for a few settings at a time and told what they
were worth in the order in which it was asked: who finishes first changes nothing.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Generator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.lab.plan import Plan
from fast.lab.sweep.points import Point
from fast.lab.sweep.space import Space, possible_call
from fast.lab.tuning import Setting

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

Batches = Generator[list[Setting], list[Point], None]
"""Settings to try next, for what the last ones were worth."""
BATCH = 4
"""So many settings of a strategy are tried at once, however many processes there are."""
STARTUP = 8
"""So many trials are drawn at random before the sampler learns from them."""
FAR = 5.0
"""A setting that misses the target counts as exp(FAR) times slower and dearer than its whole training was."""
_RATE = "learning rate"
"""Its name among the parameters; no argument has a space in its name."""


def check_search() -> None:
    if find_spec("optuna") is None:
        raise UsageError(
            "--search needs optuna, which isn't installed: pip install 'fast-training[search]'. "
            "Without it, leave out --search, and the whole grid is tried."
        )


def searched(plan: Plan, space: Space, trials: int) -> Batches:
    """So many trials of one strategy, the first of them with its own values."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = stream_seed(plan.settings.seeds[0], "search", space.asked) % 2**32
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    drawn = {name: _drawn_from(values) for name, values in space.knobs.items()}
    drawn[_RATE] = optuna.distributions.FloatDistribution(min(space.rates), max(space.rates), log=True)
    study.enqueue_trial(_first(space))
    for done in range(0, trials, BATCH):
        asked = [study.ask(drawn) for _ in range(min(BATCH, trials - done))]
        settings = [_setting(plan, space, trial.params) for trial in asked]
        points = iter((yield [setting for setting in settings if setting is not None]))
        for trial, setting in zip(asked, settings, strict=True):
            _tell(study, trial, None if setting is None else aims(next(points), plan.settings.target))


def _tell(study: Any, trial: Trial, values: tuple[float, float] | None) -> None:
    """What failed, or can't be built, teaches nothing about its neighbours."""
    from optuna.trial import TrialState

    if values is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, values)


def aims(point: Point, target: float) -> tuple[float, float] | None:
    """What is made small: the logarithms of time and bytes to the target. Who misses it is far from everybody
    who doesn't, and the farther the lower its score is; a lost model counts as a score below all."""
    if point.cost is not None:
        return _log(point.cost[0]), _log(point.cost[1])
    if point.error is not None or point.duration_s is None or point.bytes_sent is None:
        return None
    short_by = FAR * (1 + target - (-1.0 if point.score is None else max(-1.0, point.score)))
    return _log(point.duration_s) + short_by, _log(point.bytes_sent) + short_by


def _log(value: float) -> float:
    return math.log(max(value, 1e-9))


# Values as optuna knows them, and as calls have them


def _drawn_from(values: Sequence[str]) -> BaseDistribution:
    """From the smallest to the largest if all are numbers, else one of them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    numbers = _numbers(values)
    if numbers is None:
        return CategoricalDistribution(list(values))
    low, high = min(numbers), max(numbers)
    if all(isinstance(each, int) for each in numbers):
        return IntDistribution(int(low), int(high), log=low >= 1)
    return FloatDistribution(low, high, log=low > 0)


def _numbers(values: Sequence[str]) -> list[int | float] | None:
    found = [_literal(value) for value in values]
    numbers = [each for each in found if isinstance(each, int | float) and not isinstance(each, bool)]
    return numbers if len(numbers) == len(values) else None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):  # `inf`, a codec, a topology
        return None


def _first(space: Space) -> dict[str, Any]:
    """The strategy's own values, or the first that were asked for; and the task's own rate, if that is in range."""
    own = {
        name: values[0] if _numbers(values) is None else _literal(values[0])
        for name, values in space.knobs.items()
    }
    return {**own, _RATE: min(max(1.0, min(space.rates)), max(space.rates))}


def _setting(plan: Plan, space: Space, drawn: Mapping[str, Any]) -> Setting | None:
    """None for knobs that exclude one another."""
    values = {name: _written(value) for name, value in drawn.items() if name != _RATE}
    call = possible_call(plan, space.asked, values)
    return None if call is None else Setting(call, _rounded(drawn[_RATE]))


def _written(value: Any) -> str:
    """Texts are what stands in a call already."""
    if isinstance(value, str):
        return value
    return repr(_rounded(value) if isinstance(value, float) else value)


def _rounded(value: float) -> float:
    """Four digits are enough to tell settings apart, and can be read."""
    return float(f"{value:.4g}")
