"""A sweep under way, and what came of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fast.lab.surroundings import versions
from fast.lab.sweep.jobs import Jobs
from fast.lab.sweep.points import Point, best, front
from fast.lab.sweep.searching import Batches, searched
from fast.lab.sweep.space import name_of
from fast.lab.sweep.trying import judged_on
from fast.lab.sweep.wanted import Sweep
from fast.lab.tuning import Setting
from fast.strategies.calls import short_call

Keep = Callable[[Point], None]
Tell = Callable[[int, Point | None], None]
"""How many trials are done, and the one that has just ended; none at the beginning."""
_OF_THE_MACHINE = ("cores", "oversubscribed")
"""Facts of a plan on which nothing here depends."""


@dataclass(frozen=True)
class Swept:
    """All trials of a sweep, in an order that depends on nothing but what was asked."""

    sweep: Sweep
    tried: Mapping[str, Sequence[Point]]
    """By the strategy that was asked for. Two strategies may have come to the same setting."""

    @property
    def points(self) -> list[Point]:
        """Each setting once."""
        return list(dict.fromkeys(point for points in self.tried.values() for point in points))

    @property
    def front(self) -> list[Point]:
        """What no setting of any strategy beats in both time and bytes to the target, the fastest first."""
        return front(self.points)

    @property
    def failed(self) -> list[Point]:
        return [point for point in self.points if point.error is not None]

    @property
    def reached(self) -> bool:
        return any(point.cost is not None for point in self.points)

    @property
    def labels(self) -> dict[str, str]:
        """A short name for each strategy: without its arguments, unless it is there twice."""
        names = [name_of(asked) for asked in self.tried]
        return {
            asked: name_of(asked) if names.count(name_of(asked)) == 1 else short_call(asked)
            for asked in self.tried
        }

    def to_json(self) -> dict[str, Any]:
        """Nothing of the machine and no time of day: the same sweep gives the same bytes."""
        plan, overall = self.sweep.plan, self.front
        facts = {key: value for key, value in plan.facts.items() if key not in _OF_THE_MACHINE}
        return {
            "schema": 1,
            "kind": "sweep",
            "task": plan.settings.task,
            "workers": plan.settings.workers,
            "target": plan.settings.target,
            "judged_on": judged_on(plan.task),
            "settings": msgspec.to_builtins(plan.settings),
            "facts": {**facts, "seed": self.sweep.seed},
            "versions": versions(),
            "search": self.sweep.search,
            "spaces": msgspec.to_builtins(list(self.sweep.spaces)),
            "strategies": [self._strategy(asked, points, overall) for asked, points in self.tried.items()],
            "front": [_entry(point) for point in overall],
        }

    def _strategy(self, asked: str, points: Sequence[Point], overall: Sequence[Point]) -> dict[str, Any]:
        own, winner = front(points), best(points) if points else None
        return {
            "asked": asked,
            "label": self.labels[asked],
            "best": None if winner is None else _entry(winner),
            "reached": sum(point.cost is not None for point in points),
            "failed": sum(point.error is not None for point in points),
            "trials": [
                {**_entry(point), "on_own_front": point in own, "on_front": point in overall}
                for point in points
            ],
        }


def _entry(point: Point) -> dict[str, Any]:
    return {"label": point.label, **msgspec.to_builtins(point)}


def run_sweep(
    sweep: Sweep,
    jobs: Jobs,
    *,
    known: Mapping[Setting, Point] | None = None,
    keep: Keep = lambda point: None,
    tell: Tell = lambda done, point: None,
) -> Swept:
    """Try all that a sweep asks for but what is `known`. `keep` gets every trial as soon as it has ended."""
    return _Sweeping(sweep, jobs, keep, tell, dict(known or {})).run()


def _batches(sweep: Sweep, number: int) -> Batches:
    if sweep.search:
        yield from searched(sweep.plan, sweep.spaces[number], sweep.search)
    else:
        yield list(sweep.grids[number])


@dataclass
class _Strategy:
    """What one strategy has tried, and tries next."""

    asked: str
    batches: Batches
    batch: list[Setting] | None = None
    tried: dict[Setting, None] = field(default_factory=dict)

    def begin(self) -> list[Setting]:
        return self._take(next(self.batches))

    def go_on(self, points: list[Point]) -> list[Setting]:
        try:
            return self._take(self.batches.send(points))
        except StopIteration:
            self.batch = None
            return []

    def _take(self, batch: list[Setting]) -> list[Setting]:
        self.batch = batch
        self.tried |= dict.fromkeys(batch)
        return batch


@dataclass
class _Sweeping:
    sweep: Sweep
    jobs: Jobs
    keep: Keep
    tell: Tell
    known: dict[Setting, Point]
    waiting: deque[Setting] = field(default_factory=deque)
    asked_for: set[Setting] = field(default_factory=set)
    done: int = 0

    def run(self) -> Swept:
        strategies = [
            _Strategy(space.asked, _batches(self.sweep, number))
            for number, space in enumerate(self.sweep.spaces)
        ]
        for each in strategies:
            self._queue(each.begin())
            self._advance(each)
        self.tell(self.done, None)
        while any(each.batch is not None for each in strategies):
            while self.waiting and self.jobs.free:
                self.jobs.start(self.waiting.popleft())
            for point in self.jobs.wait():
                self._take(point)
            for each in strategies:
                self._advance(each)
        tried = {each.asked: [self.known[setting] for setting in each.tried] for each in strategies}
        return Swept(self.sweep, tried)

    def _take(self, point: Point) -> None:
        self.keep(point)
        self.known[point.setting] = point
        self.done += 1
        self.tell(self.done, point)

    def _advance(self, strategy: _Strategy) -> None:
        """As long as all of its last settings are known."""
        while strategy.batch is not None and all(setting in self.known for setting in strategy.batch):
            self._queue(strategy.go_on([self.known[setting] for setting in strategy.batch]))

    def _queue(self, settings: Sequence[Setting]) -> None:
        """Each once, whoever asks for it."""
        new = [setting for setting in dict.fromkeys(settings) if setting not in self.asked_for]
        self.asked_for.update(new)
        self.done += sum(setting in self.known for setting in new)
        self.waiting += [setting for setting in new if setting not in self.known]
