"""What a setting was worth, and which settings no other beats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from fast.lab.judging import Question, judge_trial
from fast.lab.measures import Run
from fast.lab.tuning import Setting
from fast.strategies.calls import short_call


class Point(msgspec.Struct, frozen=True):
    """One training. Times are virtual; bytes are those that everybody sent, servers included."""

    strategy: str
    rate: float
    """A factor on the task's own learning rate."""
    score: float | None = None
    """At the end of the budget; None if the weights stopped being numbers."""
    time_to_target_s: float | None = None
    bytes_to_target: int | None = None
    samples_to_target: int | None = None
    duration_s: float | None = None
    bytes_sent: int | None = None
    """Until the end of the budget, like the duration."""
    error: str | None = None

    @property
    def setting(self) -> Setting:
        return Setting(self.strategy, self.rate)

    @property
    def label(self) -> str:
        return label_of(self.setting)

    @property
    def cost(self) -> tuple[float, float] | None:
        """Time and bytes to the target; None if it wasn't reached."""
        if self.time_to_target_s is None or self.bytes_to_target is None:
            return None
        return self.time_to_target_s, self.bytes_to_target

    @property
    def worth(self) -> tuple[float, ...]:
        """Larger is better: reaching the target soon, then with few bytes; else a high score at the end."""
        if self.cost is not None:
            return (2.0, -self.cost[0], -self.cost[1])
        return (0.0,) if self.score is None else (1.0, self.score)


def label_of(setting: Setting) -> str:
    """What differs from what the strategy and the task would do by themselves.

    >>> label_of(Setting("local_sgd(tau=4, moments='keep')", 0.5)), label_of(Setting("gossip(p=0.5)"))
    ('local_sgd(tau=4), rate x 0.5', 'gossip(p=0.5)')
    """
    call = short_call(setting.call)
    return call if setting.rate == 1 else f"{call}, rate x {setting.rate:g}"


def judged(question: Question, setting: Setting, run: Run) -> Point:
    """What a run tells about its setting."""
    trial = judge_trial(question, setting, run)
    reached = (trial.time_to_target_s, trial.samples_to_target)
    return Point(
        strategy=setting.call,
        rate=setting.rate,
        score=trial.score,
        time_to_target_s=trial.time_to_target_s,
        bytes_to_target=next(
            (tick.nbytes for tick in run.ticks if (tick.at_s, tick.samples) == reached), None
        ),
        samples_to_target=trial.samples_to_target,
        duration_s=run.duration_ns / 1e9,
        bytes_sent=sum(report.bytes_sent for report in run.participants),
    )


def best(points: Sequence[Point]) -> Point:
    """The one that reaches the target first; of equal ones the first."""
    return max(points, key=lambda point: point.worth)


def front(points: Iterable[Point]) -> list[Point]:
    """Those that no other beats: none is as good in both time and bytes to the target and better in one.

    The fastest comes first, and each that follows is slower and has sent less. Equals don't beat each other.
    """
    kept: list[Point] = []
    least: float = math.inf
    last: tuple[float, float] | None = None
    for cost, point in sorted(
        ((point.cost, point) for point in points if point.cost is not None), key=lambda each: each[0]
    ):
        if cost[1] < least or cost == last:
            kept.append(point)
            least, last = cost[1], cost
    return kept
