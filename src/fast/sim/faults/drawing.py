"""Scenarios drawn at random from a seed: of all kinds that a strategy claims to stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from fast.core import Strategy
from fast.core.seeds import stream_seed
from fast.errors import UsageError
from fast.sim.faults.deeds import (
    Clause,
    Cut,
    Datagrams,
    Deed,
    Flip,
    Freezes,
    Late,
    Lies,
    Mishap,
    Mishaps,
    Moves,
    Noise,
    NotANumber,
    Notices,
    Resends,
    Scale,
)
from fast.sim.faults.parties import ALWAYS, EVERYWHERE, Group, Route, Span, Step, Time, When, only
from fast.sim.faults.scenario import Scenario

SIZES = (2, 4, 4, 3, 2)
"""How often a scenario has 0, 1, 2, 3, 4 clauses, roughly: some faults come in pairs."""
PERCENTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
TRIES = 20
"""For each clause: what can't be is drawn again."""


@dataclass(frozen=True)
class Stage:
    """What the draw knows about the run."""

    random: Random
    workers: int
    servers: int
    strategy: Strategy
    until_ns: int
    steps: int
    keepers: frozenset[int]
    """Two workers, if there are two, who stay whatever happens."""

    def time_ns(self, share: float = 1.0) -> int:
        """Up to this share of the run, with two digits: nobody needs more, and it reads well."""
        return max(1, _rounded(self.random.uniform(0, self.until_ns * share)))

    def when(self) -> When:
        if self.steps > 1 and self.random.random() < 0.4:
            return Step(self.random.randrange(1, self.steps))
        return Time(self.time_ns())

    def span(self) -> Span:
        """Never to the end: what is cut off for ever can't be told from what is dead."""
        return Span(Time(self.time_ns()), Time(self.time_ns(0.3)))

    def perhaps(self) -> Span:
        return ALWAYS if self.random.random() < 0.5 else self.span()

    def worker(self) -> int:
        return self.random.randrange(self.workers)

    def leaver(self) -> int | None:
        """Somebody who may go."""
        others = [worker for worker in range(self.workers) if worker not in self.keepers]
        return self.random.choice(others) if others else None

    def route(self) -> Route:
        if self.random.random() < 0.5 or self.workers < 2:
            return EVERYWHERE
        sender, receiver = self.random.sample(range(self.workers), 2)
        return Route(only(sender), only(receiver) if self.random.random() < 0.5 else None)

    def sides(self) -> tuple[Group, Group]:
        """Everybody, servers too, on one side or the other; or just one against another."""
        everybody = [*range(self.workers + self.servers)]
        self.random.shuffle(everybody)
        cut = self.random.randrange(1, len(everybody))
        if self.random.random() < 0.5:
            return self._group(everybody[:1]), self._group(everybody[1:2])
        return self._group(everybody[:cut]), self._group(everybody[cut:])

    def _group(self, ids: list[int]) -> Group:
        servers = tuple(each - self.workers for each in ids if each >= self.workers)
        return Group(tuple(each for each in ids if each < self.workers), servers)


def random_scenario(
    seed: int, *, workers: int, servers: int, strategy: Strategy, until_ns: int, steps: int
) -> Scenario:
    """What goes wrong in a run of about this time and these steps. Same arguments, same scenario."""
    random = Random(stream_seed(seed, "scenario"))
    keepers = frozenset(random.sample(range(workers), min(2, workers)))
    stage = Stage(random, workers, servers, strategy, until_ns, steps, keepers)
    kinds = [kind for kind, applies in KINDS.items() if applies(stage)]
    scenario = Scenario()
    for _ in range(random.choices(range(len(SIZES)), SIZES)[0]):
        scenario = _with_one_more(scenario, stage, kinds)
    return scenario


def _with_one_more(scenario: Scenario, stage: Stage, kinds: list[Kind]) -> Scenario:
    """One more fault, if one is found that goes with the others."""
    for _ in range(TRIES):
        new = [clause for clause in stage.random.choice(kinds)(stage) if clause not in scenario.clauses]
        larger = Scenario((*scenario.clauses, *new))
        if new and _can_be(larger, stage):
            return larger
    return scenario


def _can_be(scenario: Scenario, stage: Stage) -> bool:
    try:
        scenario.check(stage.strategy, stage.workers, stage.servers)
    except UsageError:
        return False
    return True


def _rounded(ns: float) -> int:
    """Two digits."""
    return int(float(f"{ns:.1e}"))


# The kinds

Kind = Callable[[Stage], list[Clause]]


def _leaving(stage: Stage) -> list[Clause]:
    worker = stage.leaver()
    deed = stage.random.choice((Deed.STOP, Deed.DIE))
    return [] if worker is None else [Moves(only(worker), deed, stage.when())]


def _returning(stage: Stage) -> list[Clause]:
    worker = stage.leaver()
    if worker is None:
        return []
    leaves, comes = sorted((stage.time_ns(), stage.time_ns()))
    notice = Notices(_rounded((comes - leaves) / 2))
    gone = Moves(only(worker), Deed.DIE, Time(leaves))
    return [notice, gone, Moves(only(worker), Deed.RETURN, Time(comes))]


def _joining(stage: Stage) -> list[Clause]:
    worker = stage.leaver()
    return [] if worker is None else [Moves(only(worker), Deed.JOIN, stage.when())]


def _freezing(stage: Stage) -> list[Clause]:
    return [Freezes(only(stage.worker()), stage.when(), stage.time_ns(0.3))]


def _freezing_server(stage: Stage) -> list[Clause]:
    server = stage.random.randrange(stage.servers)
    return [Freezes(Group(servers=(server,)), Time(stage.time_ns()), stage.time_ns(0.3))]


def _cutting(stage: Stage) -> list[Clause]:
    one, other = stage.sides()
    return [Cut(one, other, stage.random.random() < 0.5, stage.span())]


def _delaying(stage: Stage) -> list[Clause]:
    up_to = stage.random.random() < 0.5
    return [Late(stage.time_ns(0.1), up_to, stage.route(), stage.perhaps())]


def _losing_in_a_stream(stage: Stage) -> list[Clause]:
    resends = [Resends(stage.time_ns(0.1))] if stage.random.random() < 0.5 else []
    return [_mishaps(stage, Mishap.LOST), *resends]


def _as_datagrams(stage: Stage) -> list[Clause]:
    return [Datagrams(), _mishaps(stage, stage.random.choice(tuple(Mishap)))]


def _mishaps(stage: Stage, mishap: Mishap) -> Mishaps:
    return Mishaps(stage.random.choice(PERCENTS), mishap, stage.route(), stage.perhaps())


def _lying(stage: Stage) -> list[Clause]:
    lie = stage.random.choice((Flip(), Noise(0.5), Scale(10.0), NotANumber()))
    span = Span(stage.when(), Time(stage.time_ns(0.3))) if stage.random.random() < 0.5 else ALWAYS
    return [Lies(only(stage.worker()), lie, span)]


def _noticing(stage: Stage) -> list[Clause]:
    return [Notices(stage.time_ns(0.2))]


KINDS: Mapping[Kind, Callable[[Stage], bool]] = MappingProxyType(
    {
        _leaving: lambda stage: stage.workers > 2,
        _returning: lambda stage: stage.workers > 2 and stage.strategy.admits,
        _joining: lambda stage: stage.workers > 2 and stage.strategy.admits,
        _freezing: lambda stage: True,
        _freezing_server: lambda stage: stage.servers > 0,
        _cutting: lambda stage: stage.workers + stage.servers > 1,
        _delaying: lambda stage: True,
        _losing_in_a_stream: lambda stage: True,
        _as_datagrams: lambda stage: stage.strategy.survives_loss,
        _lying: lambda stage: stage.workers > 1,
        _noticing: lambda stage: stage.workers > 2,
    }
)
"""What may go wrong, and where it can. What workers send is no part of any promise about who waits for
whom and what is counted, so everybody has to stand lies."""
