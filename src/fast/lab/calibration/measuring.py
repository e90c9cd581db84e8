"""Measurements: jobs of real workers, and what their times say about this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fast.core import Task
from fast.engine import Job, LocalEngine
from fast.errors import FastError, UsageError
from fast.lab.budget import Budget
from fast.lab.calibration import trials
from fast.lab.calibration.fitting import Spread, after_the_last, against_median, block_means
from fast.lab.calibration.probing import Orders
from fast.lab.calibration.trials import Times
from fast.lab.measures import live_state, one_thread
from fast.lab.real import PRELOAD, train_task
from fast.lab.recording import WAIT, Excerpt
from fast.lab.surroundings import cores
from fast.lab.tasks import load_task
from fast.lab.training import warm_up

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
"""Bytes of the tensors that are sent, added and averaged, besides those of the task's own weights."""
_ECHOES, _BLOCKS = 300, 6
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured: every trial so many times, spread over the whole calibration."""

    repetitions: int = 6
    trial_s: float = 0.15

    def rounds(self, step_s: float) -> int:
        """Steps in a row of one trial."""
        return max(6, min(60, round(self.trial_s / step_s)))


QUICK = Effort(repetitions=2, trial_s=0.05)


@dataclass(frozen=True)
class Crowd:
    """What was measured with so many workers at once."""

    workers: int
    computing: Spread
    """By what each process really ran, so that waiting for a core is not in it; likewise the turn."""
    turn: Spread
    alone_s: float | None
    """Both together with as many of these workers as there are cores while the others sleep, in turn with all of them:
    on a machine that others use too, what was measured in another job a minute ago is no measure. None if they are no
    more than that."""
    waking: dict[float, Spread]
    """A whole step, turn and optimizer, by how long was slept before it: with more workers than cores
    others have used the core meanwhile."""
    means: dict[int, Spread]
    """By bytes."""
    to_all: Spread | None = None
    """One letter to all others."""
    run: Spread | None = None
    """How long a process runs until another one gets its core."""


@dataclass(frozen=True)
class Measurements:
    """Of one task on this machine."""

    task: str
    weights_bytes: int
    cores: int
    repetitions: int
    crowds: tuple[Crowd, ...]
    """Ascending; one of them has as many workers as there are cores, or two where there is one core."""
    computing: Spread
    """A step on all cores at once, by the clock; and with the other cores asleep."""
    alone: Spread
    variation: Spread
    """Of steps on one worker in a row: each against the median around it. What changes slowly, for all
    workers alike, lets nobody wait for anybody."""
    turn: Spread
    rested_turn: Spread
    """After a sleep."""
    oversleeping: Spread
    """By how much a sleep takes longer than told."""
    applying: Spread
    server_applying: Spread
    answering: Spread
    """From when a letter with the weights was sent to a server until its answer has come, while as many
    workers as there are cores compute or ask it too."""
    operations: dict[int, Spread]
    """`trials.PASSES`, by bytes; the others likewise."""
    sending: dict[int, Spread]
    reading: dict[int, Spread]
    merging: dict[int, Spread]
    trips: dict[int, Spread]
    ways: dict[int, Spread]
    """Half a round trip without what an end does itself."""

    @property
    def usual(self) -> Crowd:
        """As many workers as there are cores."""
        return next(crowd for crowd in self.crowds if crowd.workers == max(2, self.cores))


def measure(
    task: str,
    *,
    workers: Sequence[int] = (),
    effort: Effort | None = None,
    engine: LocalEngine | None = None,
    tell: Tell = lambda line: None,
) -> Measurements:
    """Measure this machine with real workers: always as many as it has cores, these numbers too, and one more than
    cores if none of them is above: that is how crowded it is with a server."""
    if engine is None:
        with LocalEngine() as own:
            return measure(task, workers=workers, effort=effort, engine=own, tell=tell)
    effort, problem, few = effort or Effort(), load_task(task), max(2, cores())
    if any(count < 2 for count in workers):
        raise UsageError(f"{min(workers)} workers can't exchange anything; calibrate with 2 or more")
    own_bytes = sum(value.numel() * value.element_size() for value in live_state(problem.model()).values())
    sizes = sorted({*SIZES, own_bytes})
    rounds, found = effort.rounds(_step_s(problem)), {}
    for count in sorted({few, max((few + 1, *workers)), *workers}):
        tell(f"{count} workers")
        orders = Orders(task, few, effort.repetitions, rounds, sizes)
        found[count] = _probed(engine, count, orders)
    tell("a server")
    answering = _answering(engine, task, problem, few)
    crowds = tuple(_crowd(results, sizes) for results in found.values())
    return _measurements(task, found[few], sizes, crowds, own_bytes, effort.repetitions, answering)


def _step_s(task: Task) -> float:
    """A first idea, to know how often is often enough."""
    with one_thread():
        warm_up(task)
        began = time.perf_counter()
        warm_up(task)
        return (time.perf_counter() - began) / 2


Results = list[dict[str, Times]]


def _probed(engine: LocalEngine, workers: int, orders: Orders) -> Results:
    job = Job(
        workers=workers,
        entry="fast.lab.calibration.probing:probe",
        server_entry="",
        arguments={"orders": msgspec.to_builtins(orders)},
        preload=[*PRELOAD, "fast.lab.calibration.probing"],
        folder=os.getcwd(),
    )
    outcome = engine.run(job)
    if outcome.failure is not None:
        raise FastError(f"{outcome.failure.who}: {outcome.failure.message}\n{outcome.failure.traceback}")
    return outcome.results


def _answering(engine: LocalEngine, task: str, problem: Task, workers: int) -> Spread:
    """How long the workers wait for a server that only answers."""
    echo = f"{Path(trials.__file__).resolve()}:Echo"
    samples = _ECHOES * workers * problem.batch_size
    budget = Budget(samples, 1 << 40, workers * problem.batch_size, ticks=1, whole_steps=True)
    run = train_task(task, echo, workers=workers, budget=budget, engine=engine)
    waits = [waits_of(report.excerpt) for report in run.workers if report.excerpt is not None]
    return Spread.of(mean for own in waits for mean in block_means(own[len(own) // 5 :], _BLOCKS))


def waits_of(excerpt: Excerpt) -> list[int]:
    """How long a participant waited, each time."""
    return [piece.duration_ns for piece in excerpt.slices if piece.kind == WAIT]


# What the workers brought back


def _spread(results: Results, trial: str, what: str) -> Spread:
    """Of the means of all repetitions of all workers that took part."""
    times = [each[trial][what] for each in results if trial in each and each[trial].get(what)]
    return Spread.of(mean for own in times for mean in block_means(own, _repetitions(results)))


def _repetitions(results: Results) -> int:
    """How often each trial was made."""
    return results[0]["repetitions"]["of each"][0]


def _variation(results: Results, repetitions: int) -> Spread:
    ratios = (
        ratio for each in results for ratio in against_median(each["together"]["computing, run"], repetitions)
    )
    return Spread.of(1e9 * ratio for ratio in ratios)


def _by_size(results: Results, trial: str, what: str, sizes: Sequence[int]) -> dict[int, Spread]:
    return {nbytes: _spread(results, trial.format(nbytes), what) for nbytes in sizes}


def _crowd(results: Results, sizes: Sequence[int]) -> Crowd:
    runs = [t for each in results for t in each.get("spinning", {}).get("run", ())]
    return Crowd(
        workers=len(results),
        computing=_spread(results, "together", "computing, run"),
        turn=_spread(results, "together", "turn, run"),
        alone_s=_alone_s(results),
        waking=_wakings(results),
        means={nbytes: _mean(results, f"means of {nbytes}") for nbytes in sizes},
        to_all=_spread(results, "fanning", "all") if len(results) > 2 else None,
        run=Spread.of(runs) if runs else None,
    )


def _alone_s(results: Results) -> float | None:
    if "few" not in results[0]:
        return None
    return sum(_spread(results, "few", what).median_s for what in ("computing, run", "turn, run"))


def _wakings(results: Results) -> dict[float, Spread]:
    return {nap_s: _spread(results, f"waking after {nap_s}", "step") for nap_s in trials.NAPS_S}


def _mean(results: Results, trial: str) -> Spread:
    came, left = ([each[trial][what] for each in results] for what in ("came", "left"))
    return Spread.of(block_means(after_the_last(came, left), _repetitions(results)))


def _measurements(
    task: str,
    results: Results,
    sizes: Sequence[int],
    crowds: tuple[Crowd, ...],
    own_bytes: int,
    repetitions: int,
    answering: Spread,
) -> Measurements:
    rests = [t - round(trials.REST_S * 1e9) for each in results for t in each["rested"]["rest"]]
    return Measurements(
        task=task,
        weights_bytes=own_bytes,
        cores=cores(),
        repetitions=repetitions,
        crowds=crowds,
        computing=_spread(results, f"exchanging {own_bytes}", "computing"),
        alone=_spread(results, "alone", "computing, run"),
        variation=_variation(results, repetitions),
        turn=_spread(results, f"exchanging {own_bytes}", "turn"),
        rested_turn=_spread(results, "rested", "turn, run"),
        oversleeping=Spread.of(rests),
        applying=_spread(results, f"exchanging {own_bytes}", "applying"),
        server_applying=_spread(results, "serving", "applying"),
        answering=answering,
        operations=_by_size(results, "operations of {}", "operations", sizes),
        sending=_by_size(results, "exchanging {}", "sending", sizes),
        reading=_by_size(results, "exchanging {}", "reading", sizes),
        merging=_by_size(results, "exchanging {}", "merging", sizes),
        trips=_by_size(results, "round trips of {}", "trip", sizes),
        ways=_by_size(results, "round trips of {}", "way", sizes),
    )


def load_of_others(seconds: float = 0.3, stat: Callable[[], str] | None = None) -> float:
    """How many cores are busy while we do nothing; 0 where the system doesn't say."""
    read = stat or (lambda: Path("/proc/stat").read_text())
    try:
        before = _busy_and_all(read())
        time.sleep(seconds)
        after = _busy_and_all(read())
    except OSError:
        return 0.0
    passed, every_core = after[1] - before[1], after[2]
    return (after[0] - before[0]) / passed * every_core if passed else 0.0


def _busy_and_all(stat: str) -> tuple[int, int, int]:
    """In the kernel's ticks, of which the words are user, nice, system, idle, waiting for disks, ...; and of how
    many cores: all that the machine has, also those that we may not use."""
    first, *others = stat.splitlines()
    ticks = [int(word) for word in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks), sum(line.startswith("cpu") for line in others)
