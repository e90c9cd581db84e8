"""Fuzzing: one strategy over many seeds, each with workers, machines and faults of its own.

Everything about a case follows from its seed. The first that breaks a promise is shrunk to the
smallest one that breaks it in the same way. How a case is built and trained is the caller's business:
a `Trial` does it, and lets `Checkers` watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from random import Random

from fast.core import Strategy
from fast.core.seeds import stream_seed
from fast.errors import UsageError, Violation
from fast.sim.checkers import Checkers, Seen
from fast.sim.cluster import Cluster, cluster_of
from fast.sim.cluster.units import parse_seconds
from fast.sim.faults import Scenario, random_scenario, shrink, simpler
from fast.sim.faults.deeds import Clause, Deed, Late, Lies, Moves
from fast.sim.faults.parties import Route, Step, only

WORKERS = range(2, 9)
STEPS = range(5, 41)
LONGEST_NS = 100_000_000_000
"""Faults are drawn as if no run took longer: who is silent for a minute may be given up."""
TRIES = 400
"""So many runs may be spent on making a finding smaller."""
_NETWORKS = ("1gbit", "10gbit", "wan", "wifi", "1mbit,1ms", "300kbit,10ms", "10mbit,50us", "unlimited,0s")
_STEPS = ("20ms", "20ms", "5ms", "1ms", "100ms")
_STRAGGLERS = (None, None, "4x", "10x@0.1", "20x@0.3/5")
_SPREADS = (0.0, 0.0, 0.1, 0.5, 1.5)
_SPEEDS = (1.0, 1.0, 0.5, 2.0, 0.1)
_HOSTS = ("1", "1", "1", "2", "3", "all")
_RACKS = (None, None, None, "1,1mbit,5ms", "2,100mbit,100us")


@dataclass(frozen=True)
class Machines:
    """A cluster in the words of the command line, so that a case can be typed again."""

    network: str = "1gbit"
    step: str = "20ms"
    straggler: str | None = None
    speeds: str | None = None
    spread: float = 0.0
    hosts: str = "1"
    racks: str | None = None

    def cluster(self) -> Cluster:
        return cluster_of(
            None,
            network=self.network,
            step=self.step,
            straggler=self.straggler,
            speeds=self.speeds,
            spread=self.spread,
            hosts=self.hosts,
            racks=self.racks,
        )


PLAIN = Machines()


@dataclass(frozen=True)
class Case:
    """One run, as drawn from its seed or made simpler."""

    seed: int
    workers: int
    steps: int
    """Of each worker, if nothing goes wrong."""
    machines: Machines = PLAIN
    scenario: Scenario = field(default_factory=Scenario)


Trial = Callable[[Case, Checkers], None]
"""Builds the case, attaches the checkers and trains. What it raises is a finding."""


@dataclass(frozen=True)
class Finding:
    """The first case that failed: as small as it could be made, what it raises, and how it was drawn."""

    case: Case
    error: Exception
    drawn: Case
    tries: int


@dataclass(frozen=True)
class Outcome:
    """What came of it: how many seeds were tried, what was seen in them, and the finding if there is one."""

    seeds: int
    seen: Seen
    faults: int
    promises: tuple[str, ...]
    finding: Finding | None = None


def fuzz(
    strategy: Strategy,
    trial: Trial,
    seeds: Iterable[int],
    *,
    tell: Callable[[int, Seen], None] = lambda seeds, seen: None,
    tries: int = TRIES,
) -> Outcome:
    """Try seed after seed until one fails. `tell` hears how many are done, and what was seen so far."""
    seen, faults, number = Seen(), 0, 0
    promises = checkers_for(strategy, Scenario()).promises
    for number, seed in enumerate(seeds, 1):
        case = draw_case(seed, strategy)
        checkers = checkers_for(strategy, case.scenario)
        error = attempt(case, trial, checkers)
        seen.add(checkers.seen)
        faults += len(case.scenario.clauses)
        if error is not None:
            found = shrunk(case, error, strategy, trial, tries)
            return Outcome(number, seen, faults, promises, found)
        tell(number, seen)
    return Outcome(number, seen, faults, promises)


def checkers_for(strategy: Strategy, scenario: Scenario) -> Checkers:
    """What must hold under these faults: where somebody lies, weights may become anything."""
    return Checkers(strategy, finite=not scenario.of(Lies))


def attempt(case: Case, trial: Trial, checkers: Checkers) -> Exception | None:
    """Run one case; what it raised, if anything."""
    try:
        trial(case, checkers)
    except Exception as error:  # whatever it is, it is what was looked for
        return error
    return None


# Drawing


def draw_case(seed: int, strategy: Strategy) -> Case:
    """The case of this seed."""
    random = Random(stream_seed(seed, "fuzz"))
    workers = random.choice(_possible(strategy))
    steps = random.choice(STEPS)
    machines = _draw_machines(random, workers)
    if strategy.one_host:
        machines = replace(machines, hosts="all")
    scenario = random_scenario(
        seed,
        workers=workers,
        servers=strategy.servers(workers),
        strategy=strategy,
        until_ns=_duration_ns(machines, steps),
        steps=steps,
    )
    case = Case(seed, workers, steps, machines, scenario)
    for more in (_departures(random, case), _slow_links(random, case)):
        larger = replace(case, scenario=Scenario((*case.scenario.clauses, *more)))
        case = larger if _can_be(larger, strategy) else case
    return case


def _possible(strategy: Strategy) -> list[int]:
    """The numbers of workers on which it can run at all."""
    found = [workers for workers in WORKERS if _fits(strategy, workers)]
    if not found:
        raise UsageError(
            f"{strategy!r} runs on none of {WORKERS[0]} to {WORKERS[-1]} workers, which is what fuzzing tries"
        )
    return found


def _fits(strategy: Strategy, workers: int) -> bool:
    try:
        strategy.check(workers)
    except UsageError:
        return False
    return True


def _draw_machines(random: Random, workers: int) -> Machines:
    unequal = random.random() < 0.5
    speeds = ",".join(f"{random.choice(_SPEEDS):g}" for _ in range(workers)) if unequal else None
    return Machines(
        network=random.choice(_NETWORKS),
        step=random.choice(_STEPS),
        straggler=random.choice(_STRAGGLERS),
        speeds=speeds,
        spread=random.choice(_SPREADS),
        hosts=random.choice(_HOSTS),
        racks=random.choice(_RACKS),
    )


def _duration_ns(machines: Machines, steps: int) -> int:
    """About how long the run takes: faults should come while it lasts."""
    cluster = replace(machines, spread=0.0).cluster()
    slowest = max(cluster.compute.duration_ns(worker, len(WORKERS), 0, 0) for worker in range(len(WORKERS)))
    return min(LONGEST_NS, steps * (slowest + 2 * cluster.network.latency_ns))


def _departures(random: Random, case: Case) -> list[Clause]:
    """In every other case somebody leaves or dies at a step: most mistakes are about that."""
    if random.random() < 0.5 or case.workers < 3:
        return []
    deed = random.choice((Deed.STOP, Deed.DIE))
    return [Moves(only(random.randrange(case.workers)), deed, Step(random.randrange(1, case.steps)))]


def _slow_links(random: Random, case: Case) -> list[Clause]:
    """Up to three links that are slower than the others, by as much as several steps."""
    step_ns = round(parse_seconds(case.machines.step) * 1e9)
    slow: list[Clause] = []
    for _ in range(random.choice((0, 0, 1, 3))):
        sender, receiver = random.sample(range(case.workers), 2)
        by_ns = max(1, int(float(f"{random.uniform(0, 4 * step_ns):.1e}")))
        slow.append(Late(by_ns, route=Route(only(sender), only(receiver))))
    return slow


# Shrinking


def shrunk(case: Case, error: Exception, strategy: Strategy, trial: Trial, tries: int = TRIES) -> Finding:
    """The smallest case that fails in the same way."""
    last, spent = error, 0

    def fails(candidate: Case) -> bool:
        nonlocal last, spent
        if not _can_be(candidate, strategy):
            return False
        spent += 1
        found = attempt(candidate, trial, checkers_for(strategy, candidate.scenario))
        if found is None or not _alike(found, error):
            return False
        last = found
        return True

    smallest = shrink(case, simpler_cases, fails, tries=tries)
    return Finding(smallest, last, case, spent)


def _can_be(case: Case, strategy: Strategy) -> bool:
    if not _fits(strategy, case.workers):
        return False
    try:
        case.scenario.check(strategy, case.workers, strategy.servers(case.workers))
    except UsageError:
        return False
    return True


def _alike(one: Exception, other: Exception) -> bool:
    """Whether they say the same thing about perhaps different workers."""
    if isinstance(one, Violation) and isinstance(other, Violation):
        return one.promise == other.promise
    return type(one) is type(other)


def simpler_cases(case: Case) -> Iterator[Case]:
    """Candidates, the greatest jumps first: plain machines, fewer faults, fewer workers, fewer steps."""
    yield from (replace(case, machines=each) for each in _simpler_machines(case.machines))
    yield from (replace(case, scenario=each) for each in simpler(case.scenario))
    yield from (replace(case, workers=each) for each in _fewer(case.workers, WORKERS[0]))
    yield from (replace(case, steps=each) for each in _fewer(case.steps, 1))


def _simpler_machines(machines: Machines) -> Iterator[Machines]:
    if machines != PLAIN:
        yield PLAIN
    for name in (each.name for each in fields(machines)):
        usual = getattr(PLAIN, name)
        if getattr(machines, name) != usual:
            yield replace(machines, **{name: usual})


def _fewer(count: int, least: int) -> Iterator[int]:
    """The least, about half, and one less."""
    yield from sorted({each for each in (least, count // 2, count - 1) if least <= each < count})
