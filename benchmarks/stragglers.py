"""Who waits for stragglers: time to the target of synchronous, bounded, asynchronous and backed-up training.

MNIST on real processes with paced steps, so that workers that share few cores are like machines of their own.
Every contestant's rate comes from the grid of all comparisons, and its call from a short list where there are several,
tried in the simulator on validation images, the best ones with a second seed; then it trains for real with several
other seeds, judged on the test images. Beside each ratio of mean times to the target stands what the simulator predicts
for the same seeds, with a model of this machine that is calibrated at the start. With `--kept FILE` settings and real
runs are noted there as they come, and a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

import harness
from fast.core import Task
from fast.engine import LocalEngine
from fast.lab import Budget, Run, load_task, simulate_task, train_task
from fast.lab.calibration import QUICK, Effort, Measurements, cluster_of, measure
from fast.lab.judging import Goal, Judge
from fast.lab.surroundings import cores
from fast.lab.tuning import RATES
from fast.loop.loading import strategy_from
from fast.sim import Cluster, Compute, parse_straggler

TASK = "mnist-mlp"
EPOCHS, TICKS = 3.0, 90
PACE_S = 0.020
SYNCHRONOUS = "allreduce"
TUNING_SEEDS = (1000, 1001)
FINALISTS = 3
"""So many settings of each contestant are tried with the second seed too."""
NEAR = (0.0, 0.0025, 0.005)
"""A trial is judged by its mean time to the target and to scores so far below it: when one of them is reached first is
half chance, and a rate is to be chosen for what it does."""


@dataclass(frozen=True)
class Contestant:
    """One way to train, or several of which the tuning chooses one."""

    name: str
    calls: tuple[str, ...]
    workers: int
    needed: float | None = None
    """So many times as fast as synchronous training it should be."""


@dataclass(frozen=True)
class Situation:
    name: str
    straggler: str
    contestants: tuple[Contestant, ...]


BASE = Contestant("synchronous", (SYNCHRONOUS,), 4)
SITUATIONS = (
    Situation(
        "one of 4 workers is always four times slower",
        "4x",
        (
            BASE,
            Contestant("asynchronous", ("downpour", "dc_asgd"), 4, 2.5),
            Contestant("stale-synchronous", ("ssp(bound=10)",), 4),
        ),
    ),
    Situation(
        "every worker is five times slower in a random tenth of its steps",
        "5x@0.1",
        (
            BASE,
            Contestant(
                "stale-synchronous", ("ssp(bound=1)", "ssp(bound=3)", "ssp(bound=5)", "ssp(bound=10)"), 4, 1.3
            ),
            Contestant("4 and 1 backup", ("tensorflow(backups=1)",), 5, 1.15),
            Contestant("4 and 1 backup, cancelled", ("tensorflow(backups=1, cancel=True)",), 5),
        ),
    ),
)


@dataclass(frozen=True)
class Setting:
    """What the tuning has chosen."""

    call: str
    rate: float


class Kept:
    """What was chosen and measured, a line each in a file; without a file nothing is known."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        notes = [json.loads(line) for line in lines]
        self.settings = {
            (note["situation"], note["name"]): Setting(note["call"], note["rate"])
            for note in notes
            if "seed" not in note
        }
        self.times = {
            (note["situation"], note["name"], Setting(note["call"], note["rate"]), note["seed"]): note["at_s"]
            for note in notes
            if "seed" in note
        }

    def choose(self, situation: str, name: str, setting: Setting) -> None:
        self.settings[situation, name] = setting
        self._write({"situation": situation, "name": name, **asdict(setting)})

    def measure(self, situation: str, name: str, setting: Setting, seed: int, at_s: float | None) -> None:
        self.times[situation, name, setting, seed] = at_s
        self._write({"situation": situation, "name": name, **asdict(setting), "seed": seed, "at_s": at_s})

    def _write(self, note: dict[str, object]) -> None:
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(note) + "\n")


@dataclass(frozen=True)
class Row:
    """One contestant in one situation: mean times to the target, against synchronous training."""

    situation: str
    name: str
    setting: Setting
    measured_s: float | None
    simulated_s: float | None
    ratio: float | None
    predicted: float | None
    needed: float | None

    @property
    def holds(self) -> bool:
        return self.needed is None or (self.ratio is not None and self.ratio >= self.needed)


@dataclass(frozen=True)
class Job:
    """One simulated training, and whether test or validation images judge it."""

    setting: Setting
    workers: int
    cluster: Cluster
    seed: int
    test: bool


def simulated_s(job: Job) -> float | None:
    """When it reaches the target; in the tuning (not judged on test images), scores near it in the mean. Runs in a
    process of its own: simulated time doesn't mind."""
    task = load_task(TASK)
    goal = Goal(Judge(task, task.test() if job.test else task.validation()), task.target)
    run = simulate_task(
        task,
        strategy_from(job.setting.call),
        workers=job.workers,
        budget=_budget(task, job.workers),
        cluster=job.cluster,
        seed=job.seed,
        rate=job.setting.rate,
        enough=goal,
    )
    return _mean(_near_s(run, goal, task.target - below) for below in (NEAR[:1] if job.test else NEAR))


class Track:
    """This machine, its model, and the task."""

    def __init__(self, engine: LocalEngine, found: Measurements) -> None:
        self._engine, self._task = engine, load_task(TASK)
        self._machine, self._oversleeping_s = cluster_of(found), found.oversleeping.median_s
        self._test = Judge(self._task, self._task.test())
        self._simulated: dict[tuple[object, ...], float | None] = {}

    def tune(self, situation: Situation, rates: Sequence[float]) -> dict[Contestant, Setting]:
        """The setting of each that reaches the target first in the simulator, on the validation images."""
        tried = {
            each: [Setting(call, rate) for call in each.calls for rate in rates]
            for each in situation.contestants
        }
        for number in range(len(TUNING_SEEDS)):
            times = self._trials(situation, tried, TUNING_SEEDS[: number + 1])
            tried = {each: sorted(tried[each], key=times[each].__getitem__)[:FINALISTS] for each in tried}
        return {each: settings[0] for each, settings in tried.items()}

    def _trials(
        self, situation: Situation, tried: dict[Contestant, list[Setting]], seeds: Sequence[int]
    ) -> dict[Contestant, dict[Setting, float]]:
        """How long each setting takes to the target, in the mean over the seeds; for ever if one of them doesn't."""
        asked = [(setting, each.workers, seed) for each in tried for setting in tried[each] for seed in seeds]
        times = self._simulate(situation, asked, test=False)
        return {
            each: {
                setting: _mean(times[setting, each.workers, seed] for seed in seeds) or math.inf
                for setting in settings
            }
            for each, settings in tried.items()
        }

    def predict(
        self, situation: Situation, settings: dict[Contestant, Setting], seeds: Sequence[int]
    ) -> dict[Contestant, float | None]:
        """Each one's mean time to the target in the simulator, on the test images."""
        asked = [(setting, each.workers, seed) for each, setting in settings.items() for seed in seeds]
        times = self._simulate(situation, asked, test=True)
        return {
            each: _mean(times[setting, each.workers, seed] for seed in seeds)
            for each, setting in settings.items()
        }

    def measured_s(self, setting: Setting, workers: int, straggler: str, seed: int) -> float | None:
        run = train_task(
            TASK, setting.call, workers=workers, budget=_budget(self._task, workers), seed=seed,
            engine=self._engine, rate=setting.rate, pace_s=PACE_S, straggler=straggler,
        )  # fmt: skip
        reached = Goal(self._test, self._task.target).look(run.ticks)
        return None if reached is None else reached.at_s

    def _simulate(
        self, situation: Situation, asked: Sequence[tuple[Setting, int, int]], *, test: bool
    ) -> dict[tuple[Setting, int, int], float | None]:
        """Settings with their workers and seeds, several at a time; the pool is gone before anything is measured."""
        cluster = self._cluster(situation.straggler)
        keys = {one: (situation, test, *one) for one in asked}
        new = [one for one in asked if keys[one] not in self._simulated]
        jobs = [Job(setting, workers, cluster, seed, test) for setting, workers, seed in new]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores(), spawn, torch.set_num_threads, (1,)) as pool:
            found = pool.map(simulated_s, jobs)
            self._simulated.update(zip([keys[one] for one in new], found, strict=True))
        return {one: self._simulated[key] for one, key in keys.items()}

    def _cluster(self, straggler: str) -> Cluster:
        compute = self._machine.compute
        assert isinstance(compute, Compute)
        paced = replace(compute, straggler=parse_straggler(straggler), pace_s=PACE_S + self._oversleeping_s)
        return replace(self._machine, compute=paced)


def _budget(task: Task, workers: int) -> Budget:
    return Budget.of(task, workers, EPOCHS, ticks=TICKS)


def _near_s(run: Run, goal: Goal, score: float) -> float | None:
    """When a run up to its goal had such a score for the first time."""
    ticks = zip(run.ticks, goal.scores, strict=True)
    return next((tick.at_s for tick, own in ticks if own is not None and own >= score), None)


def _mean(times: Iterator[float | None]) -> float | None:
    """None if one of them never got there."""
    found = list(times)
    known = [each for each in found if each is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


def settings_of(
    track: Track, situation: Situation, rates: Sequence[float], kept: Kept
) -> dict[Contestant, Setting]:
    """As they were chosen, all of them together, or as they are now."""
    names = {each: (situation.name, each.name) for each in situation.contestants}
    if all(name in kept.settings for name in names.values()):
        return {each: kept.settings[name] for each, name in names.items()}
    settings = track.tune(situation, rates)
    for each, setting in settings.items():
        kept.choose(*names[each], setting)
        harness.note(
            f"{situation.name}: {each.name} takes {setting.call} with {setting.rate:g} times the rate"
        )
    return settings


def rows_of(
    track: Track, situation: Situation, seeds: Sequence[int], rates: Sequence[float], kept: Kept
) -> list[Row]:
    """All contestants of one situation: seed after seed, so that each meets the same weather."""
    settings = settings_of(track, situation, rates, kept)
    times: dict[Contestant, list[float | None]] = {each: [] for each in settings}
    for seed in seeds:
        for each, setting in settings.items():
            known = (situation.name, each.name, setting, seed)
            if known not in kept.times:
                kept.measure(*known, track.measured_s(setting, each.workers, situation.straggler, seed))
            times[each].append(kept.times[known])
            harness.note(f"seed {seed}, {each.name}: {times[each][-1]} s")
    measured = {each: _mean(iter(found)) for each, found in times.items()}
    simulated = track.predict(situation, settings, seeds)
    return [
        Row(
            situation.name, each.name, setting, measured[each], simulated[each],
            _ratio(measured[BASE], measured[each]), _ratio(simulated[BASE], simulated[each]), each.needed,
        )
        for each, setting in settings.items()
    ]  # fmt: skip


def _ratio(base: float | None, own: float | None) -> float | None:
    return None if base is None or own is None else base / own


def show(rows: Sequence[Row]) -> None:
    situation = ""
    for row in rows:
        if row.situation != situation:
            situation = row.situation
            print(
                f"\n{situation}\n{'':28} {'to target':>10} {'times as fast':>14} {'predicted':>10} {'needed':>7}"
            )
        print(
            f"{row.name:28} {_text(row.measured_s, 1):>8} s {_text(row.ratio, 2):>14} {_text(row.predicted, 2):>10} "
            f"{_text(row.needed, 2):>7}  {row.setting.call}, rate x {row.setting.rate:g}"
        )
    missed = [row for row in rows if not row.holds]
    print(
        "\nall that is demanded holds"
        if not missed
        else f"\nNOT reached: {', '.join(r.name for r in missed)}"
    )


def _text(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows there as well")
    parser.add_argument(
        "--quick", action="store_true", help="one seed, the task's own rate; about ten minutes"
    )
    parser.add_argument("--check", action="store_true", help="end with 1 unless all that is demanded holds")
    parser.add_argument(
        "--kept",
        metavar="FILE",
        type=Path,
        help="note settings and real runs there; those it has aren't made again",
    )
    return parser.parse_args()


def main() -> None:
    asked = options()
    seeds = range(1 if asked.quick else 3)
    rates = RATES[:1] if asked.quick else RATES
    with harness.engine() as engine:
        found = measure(
            TASK, workers=(4, 5), effort=QUICK if asked.quick else Effort(), engine=engine, tell=harness.note
        )
        track = Track(engine, found)
        kept = Kept(asked.kept)
        rows = [row for situation in SITUATIONS for row in rows_of(track, situation, seeds, rates, kept)]
    show(rows)
    if asked.json:
        data = [{**asdict(row), "holds": row.holds} for row in rows]
        Path(asked.json).write_text(json.dumps(data, indent=1) + "\n")
    sys.exit(1 if asked.check and not all(row.holds for row in rows) else 0)


if __name__ == "__main__":
    main()
