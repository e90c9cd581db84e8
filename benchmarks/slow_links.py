"""Who is fast over slow links: time to the target of synchronous training and of every decentral preset, simulated.

64 workers train `mnist-mlp`, 5 ms a step, over links of 10 Mbit/s: there an all-reduce takes more than 60 times as
long as the computing. Every contestant takes its rate from one grid, and its interval (or probability) from another;
trials run on validation images, longer and longer, and who can't be first any more is left out. Then each trains
with several seeds, judged on the test images. Beside the ratio to `allreduce` stands the one to `allreduce` with its
best codec, which is the other way out; and a second cell shows what is left of it all where an all-reduce takes only
twice as long as the computing.

Time to the target is virtual, so it is the same in every run. Where replicas differ, the time of one more all-reduce is
added: the model that is scored is their mean, and somebody must make it. With `--kept FILE` every training is noted
there as it ends, and a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import harness
from fast.collectives import cost
from fast.core import Me, Strategy, Task
from fast.core.world import Link
from fast.errors import FastError, UsageError
from fast.lab import Budget, load_task, simulate_task
from fast.lab.judging import Goal, Judge
from fast.loop.loading import strategy_from
from fast.parts.codecs import Codec
from fast.sim import Compute, parse_network
from fast.strategies.averaging import AllReduce
from fast.strategies.calls import arguments_of, short_call, with_argument
from fast.strategies.catalogue import Preset
from preset_scores import INTERVALS, decentral_presets

TASK, WORKERS, STEP_S = "mnist-mlp", 64, 0.005
TICKS = 4
"""So many in an epoch."""
TUNING_SEED = 1000
TIMED_STEPS = 3
NEEDED = 10.0
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The one grid of all contestants: factors on the task's own rate, which was chosen for batches of 128."""
STEPS = (8, 64)
PROBABILITIES = (0.02, 0.2)
"""What is tried for intervals and for probabilities."""
AFTER = 16
"""So many synchronous steps come first where a preset waits for the learning rate to fall, which it never does here."""
CODECS = ("int8", "one_bit_sgd", "ef_sign", "error_feedback(top_k(0.01))")


@dataclass(frozen=True)
class Rung:
    """Trials of one length, and how many settings of a contestant go on to the next one: as many of each call."""

    epochs: float
    kept: int


RUNGS = (Rung(1, 4), Rung(5, 2), Rung(32, 0))
QUICK_RUNGS = (Rung(2, 2), Rung(28, 0))


@dataclass(frozen=True)
class Contestant:
    """One way to train, or several of which the tuning chooses one."""

    name: str
    calls: tuple[str, ...]
    decentral: bool = True


@dataclass(frozen=True)
class Cell:
    name: str
    network: str
    needed: float | None = None
    """So many times as fast as synchronous training the fastest decentral preset must be."""


SLOW = Cell("10 Mbit/s", "10mbit,0.1ms", NEEDED)
MILD = Cell("330 Mbit/s", "330mbit,0.1ms")
COMPANY = 4
"""So many of the fastest decentral presets go on to the second cell."""
BASE = Contestant("allreduce", ("allreduce",), decentral=False)
PACKED = Contestant(
    "allreduce, packed", tuple(f"allreduce(codec={each})" for each in CODECS), decentral=False
)


@dataclass(frozen=True)
class Job:
    """One simulated training."""

    network: str
    call: str
    rate: float
    seed: int
    epochs: float
    tuning: bool
    task: str = TASK
    workers: int = WORKERS


@dataclass(frozen=True)
class Reached:
    """When the target was reached, after how much data, and what a worker had sent by then."""

    at_s: float
    epochs: float
    sent_bytes: float


@dataclass(frozen=True)
class Outcome:
    job: Job
    duration_s: float
    score: float | None
    reached: Reached | None = None
    error: str | None = None


# One training


@functools.cache
def _task(name: str) -> Task:
    return load_task(name)


@functools.cache
def _judge(name: str, tuning: bool) -> Judge:
    task = _task(name)
    return Judge(task, task.validation() if tuning else task.test())


def mean_s(job: Job) -> float:
    """How long everybody's mean takes over these links: what it costs to make one model of all replicas."""
    network = parse_network(job.network)
    nbytes = sum(each.numel() * each.element_size() for each in _task(job.task).model().parameters())
    return cost.direct(job.workers, nbytes, Link(network.latency_s, network.rate_bytes_per_s))


@final
class PackedMean(Strategy):
    """The steps of `allreduce` with a codec, w <- optimizer(w, mean_i C(g_i)), with the mean made at once.

    Over letters, 64 workers would exchange 8,000 of them in each step, of which every one must be simulated. So
    that is done for a few steps only, which tell the time, and the training is done with this. What owners of slices
    encode a second time on the way back is left as it is here, which can only favour it.
    """

    synchronous = True
    replicas_agree = True

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    async def step(self, me: Me) -> None:
        packed = me.scratch("packed")
        me.send((), me.gradient, tag="gradient", codec=self.codec, into=packed)
        me.apply(await me.mean(packed, weight=me.samples, read_only=True))


@functools.cache
def step_of(call: str, network: str, name: str, workers: int) -> tuple[float, float]:
    """Seconds of a step in lock-step, and the bytes that a worker sends in it."""
    task = _task(name)
    samples = TIMED_STEPS * workers * task.batch_size
    run = simulate_task(
        task, strategy_from(call), workers=workers, network=parse_network(network),
        compute=Compute(step_s=STEP_S), budget=Budget(samples, samples, workers * task.batch_size, ticks=1),
    )  # fmt: skip
    sent = sum(report.bytes_sent for report in run.workers) / workers
    return run.duration_ns / 1e9 / TIMED_STEPS, sent / TIMED_STEPS


def trained(job: Job) -> Outcome:
    """What becomes of a job, which is over when it has reached the target."""
    task, judge, strategy = _task(job.task), _judge(job.task, job.tuning), strategy_from(job.call)
    budget = Budget.of(task, job.workers, job.epochs, ticks=max(1, round(job.epochs * TICKS)))
    packed = strategy.codec if isinstance(strategy, AllReduce) else None
    goal = Goal(judge, task.target)
    try:
        run = simulate_task(
            task, strategy if packed is None else PackedMean(packed), workers=job.workers, budget=budget,
            network=parse_network(job.network), compute=Compute(step_s=STEP_S), seed=job.seed, rate=job.rate,
            gradients="auto", enough=goal,
        )  # fmt: skip
    except FastError as failure:
        return Outcome(job, math.inf, None, error=f"{type(failure).__name__}: {failure}")
    slower, fewer = (1.0, 1.0) if packed is None else _against_plain(job)
    duration_s = run.duration_ns / 1e9 * slower
    tick = goal.reached
    if tick is None:
        return Outcome(job, duration_s, judge(run.final))
    at_s = tick.at_s * slower + (mean_s(job) if tick.distance > 0 else 0.0)
    sent = tick.nbytes / job.workers * fewer
    return Outcome(job, duration_s, goal.score, Reached(at_s, tick.samples / budget.epoch_samples, sent))


def _against_plain(job: Job) -> tuple[float, float]:
    """How many times as long a step takes, and how many times as much it sends, as with `allreduce` alone."""
    own = step_of(job.call, job.network, job.task, job.workers)
    plain = step_of(BASE.calls[0], job.network, job.task, job.workers)
    return own[0] / plain[0], own[1] / plain[1]


Train = Callable[[Iterable[Job]], Iterator[Outcome]]


@contextmanager
def trainer(processes: int) -> Iterator[Train]:
    """Jobs are independent and seeded, so that it makes no difference who does which."""
    if processes == 1:
        yield lambda jobs: map(trained, jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda jobs: pool.map(trained, jobs)


def remembering(train: Train, file: Path) -> Train:
    """What the file has isn't trained again; what is new is added to it, a line each."""
    lines = file.read_text().splitlines() if file.exists() else []
    known = {each.job: each for each in map(_outcome, map(json.loads, lines))}

    def outcomes(jobs: Iterable[Job]) -> Iterator[Outcome]:
        asked = list(jobs)
        new = iter(train(list(dict.fromkeys(job for job in asked if job not in known))))
        with file.open("a") as kept:
            for job in asked:
                if job not in known:
                    known[job] = next(new)
                    kept.write(json.dumps(asdict(known[job])) + "\n")
                    kept.flush()
                yield known[job]

    return outcomes


def _outcome(data: dict[str, Any]) -> Outcome:
    reached = data["reached"] and Reached(**data["reached"])
    return Outcome(**{**data, "job": Job(**data["job"]), "reached": reached})


# Tuning


def calls_of(preset: Preset) -> tuple[str, ...]:
    """With every value of the grid, the same for all intervals that it has; what has none is taken as it is."""
    call, arguments = preset().call, arguments_of(preset().call)
    if arguments.get("after") == "None":
        call = with_argument(call, "after", AFTER)
    names = [name for name in arguments if name in INTERVALS]
    tried: Sequence[object] = STEPS if names else PROBABILITIES
    names = names or [name for name in arguments if name == "p"]
    calls = [_with_all(call, names, value) for value in tried] if names else [call]
    return tuple(dict.fromkeys(each for each in map(_built, calls) if each)) or (call,)


def _with_all(call: str, names: Sequence[str], value: object) -> str:
    for name in names:
        call = with_argument(call, name, value)
    return call


def _built(call: str) -> str | None:
    """As the strategy itself writes it; None for what it refuses."""
    try:
        return strategy_from(call).call
    except UsageError:
        return None


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Who reached the target first."""
    there = [each for each in outcomes if each.reached is not None]
    return min(there, key=_at_s, default=None)


def _at_s(outcome: Outcome) -> float:
    return math.inf if outcome.reached is None else outcome.reached.at_s


def survivors(outcomes: Sequence[Outcome], best_s: float, kept: int) -> list[Outcome]:
    """Of those that have not reached the target, and may yet be earlier than `best_s`: the best rates of each
    call. A call's rates all take the same time for a step, so that scores after as many samples compare them."""
    by_call: dict[str, list[Outcome]] = {}
    for each in outcomes:
        if each.reached is None and each.score is not None and each.duration_s < best_s:
            by_call.setdefault(each.job.call, []).append(each)
    each_call = max(1, kept // max(1, len(by_call))) if kept else 0
    return [
        each
        for rates in by_call.values()
        for each in sorted(rates, key=lambda outcome: -(outcome.score or 0.0))[:each_call]
    ]


@dataclass(frozen=True)
class Try:
    """A setting, and what is known of it from a shorter trial."""

    name: str
    call: str
    rate: float
    seen: float = 0.0
    """Epochs of that trial; then the seconds of one."""
    epoch_s: float = 0.0

    def epochs(self, longest: float, best_s: float) -> float | None:
        """How long to try it: until it can't be earlier than `best_s`. None if that is no longer than before."""
        epochs = min(longest, best_s / self.epoch_s) if self.epoch_s else longest
        return epochs if epochs > self.seen else None


def waves(tries: Sequence[Try]) -> list[list[Try]]:
    """In the first one the fastest call of each contestant, in the next the second, and so on: the slower ones
    needn't be tried for longer than it took those before them. Calls of which nothing is known are equally fast."""
    found: list[list[Try]] = []
    places: dict[str, list[float]] = {}
    for each in sorted(tries, key=lambda one: one.epoch_s):
        speeds = places.setdefault(each.name, [])
        if each.epoch_s not in speeds:
            speeds.append(each.epoch_s)
        if len(speeds) > len(found):
            found.append([])
        found[speeds.index(each.epoch_s)].append(each)
    return found


def tuned(
    contestants: Sequence[Contestant], cell: Cell, rates: Sequence[float], rungs: Sequence[Rung], train: Train
) -> dict[str, Outcome | None]:
    """By contestant the trial that reached the target first, if any did."""
    tries = [Try(each.name, call, rate) for each in contestants for call in each.calls for rate in rates]
    found: dict[str, list[Outcome]] = {each.name: [] for each in contestants}
    for rung in rungs:
        latest: dict[str, list[Outcome]] = {each.name: [] for each in contestants}
        for wave in waves(tries):
            jobs = {
                each: Job(cell.network, each.call, each.rate, TUNING_SEED, epochs, tuning=True)
                for each in wave
                if (epochs := each.epochs(rung.epochs, _best_s(found[each.name])))
            }
            harness.note(f"{cell.name}: {len(jobs)} trials of up to {rung.epochs:g} epochs")
            for each, outcome in zip(jobs, train(jobs.values()), strict=True):
                latest[each.name].append(outcome)
                found[each.name].append(outcome)
        tries = [
            Try(name, left.job.call, left.job.rate, left.job.epochs, left.duration_s / left.job.epochs)
            for name, some in latest.items()
            for left in survivors(some, _best_s(found[name]), rung.kept)
        ]
    for name, some in found.items():
        for error in {each.error for each in some if each.error}:
            harness.note(f"{name}: {error}")
    return {name: best_of(some) for name, some in found.items()}


def _best_s(outcomes: Sequence[Outcome]) -> float:
    best = best_of(outcomes)
    return math.inf if best is None else _at_s(best)


# Rows


@dataclass(frozen=True)
class Row:
    """One contestant in one cell: means over the seeds, None if one of them never got there."""

    cell: str
    name: str
    decentral: bool
    call: str | None = None
    rate: float | None = None
    at_s: float | None = None
    epochs: float | None = None
    sent_bytes: float | None = None
    ratio: float | None = None
    """So many times as fast as `allreduce`; the other one is against `allreduce` with its best codec, over the seeds
    with which that one got there."""
    ratio_packed: float | None = None
    seeds_s: tuple[float | None, ...] = ()
    """To the target, seed by seed; None for one that never got there."""


def row_of(cell: Cell, contestant: Contestant, setting: Outcome | None, runs: Sequence[Outcome]) -> Row:
    row = Row(cell.name, contestant.name, contestant.decentral)
    if setting is None:
        return row
    seeds_s = tuple(None if each.reached is None else each.reached.at_s for each in runs)
    row = replace(row, call=setting.job.call, rate=setting.job.rate, seeds_s=seeds_s)
    reached = [each.reached for each in runs if each.reached is not None]
    if len(reached) < len(runs):
        return row
    return replace(
        row,
        at_s=statistics.fmean(each.at_s for each in reached),
        epochs=statistics.fmean(each.epochs for each in reached),
        sent_bytes=statistics.fmean(each.sent_bytes for each in reached),
    )


def rows_of(
    cell: Cell,
    contestants: Sequence[Contestant],
    seeds: int,
    tuning: Mapping[str, Outcome | None],
    train: Train,
) -> list[Row]:
    """Each with its setting and every seed, somewhat longer than its best trial took."""
    jobs: list[tuple[str, Job]] = []
    for each in contestants:
        trial = tuning[each.name]
        if trial is not None and trial.reached is not None:
            epochs = math.ceil(1.25 * trial.reached.epochs + 1)
            jobs += [
                (each.name, Job(cell.network, trial.job.call, trial.job.rate, seed, epochs, tuning=False))
                for seed in range(seeds)
            ]
    runs: dict[str, list[Outcome]] = {each.name: [] for each in contestants}
    for (name, _), outcome in zip(jobs, train(job for _, job in jobs), strict=True):
        runs[name].append(outcome)
    return compared([row_of(cell, each, tuning[each.name], runs[each.name]) for each in contestants])


def compared(rows: Sequence[Row]) -> list[Row]:
    """With both ratios, the fastest first."""
    named = {row.name: row for row in rows}
    base, packed = (named.get(each.name, Row("", each.name, False)) for each in (BASE, PACKED))
    ratios = [
        replace(row, ratio=_ratio(base.at_s, row.at_s), ratio_packed=_ratio(*_both(packed, row)))
        for row in rows
    ]
    return sorted(ratios, key=lambda row: math.inf if row.at_s is None else row.at_s)


def _both(one: Row, other: Row) -> tuple[float | None, float | None]:
    """Their times: means over all seeds, or over those with which the first one got there, if the other always did."""
    if one.at_s is not None or other.at_s is None:
        return one.at_s, other.at_s
    pairs = [
        (a, b) for a, b in zip(one.seeds_s, other.seeds_s, strict=False) if a is not None and b is not None
    ]
    if not pairs:
        return None, None
    return statistics.fmean(a for a, _ in pairs), statistics.fmean(b for _, b in pairs)


def _ratio(base_s: float | None, own_s: float | None) -> float | None:
    return None if base_s is None or own_s is None else base_s / own_s


def holds(cell: Cell, rows: Sequence[Row]) -> bool:
    """Whether the fastest decentral preset is as fast as it must be."""
    ratios = [row.ratio for row in rows if row.cell == cell.name and row.decentral and row.ratio is not None]
    return cell.needed is None or max(ratios, default=0.0) >= cell.needed


# The table


def show(cell: Cell, rows: Sequence[Row]) -> None:
    longer = mean_s(Job(cell.network, "", 1.0, 0, 1.0, tuning=True)) / STEP_S
    print(
        f"\n{cell.name}, 0.1 ms: an all-reduce takes {longer:.1f} times as long as a step's computing\n"
        f"{'':20} {'to target':>11} {'epochs':>7} {'sent':>9}   times as fast as\n"
        f"{'':20} {'':>11} {'':>7} {'':>9} {'allreduce':>10} {'packed':>7}"
    )
    for row in rows:
        print(_line(row), flush=True)


def _line(row: Row) -> str:
    if row.at_s is None or row.epochs is None or row.sent_bytes is None:
        tried = "" if row.call is None else f" with every seed: {_setting(row)}"
        return f"{row.name:20} not reached{tried}"
    return (
        f"{row.name:20} {row.at_s:9.2f} s {row.epochs:7.1f} {row.sent_bytes / 1e6:6.2f} MB {_text(row.ratio):>10} "
        f"{_text(row.ratio_packed):>7}  {_setting(row)}"
    )


def _setting(row: Row) -> str:
    edge = " (the edge of the grid)" if row.rate in (min(RATES), max(RATES)) else ""
    return f"{short_call(row.call or '')}, rate x {row.rate:g}{edge}"


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def contestants(only: str | None) -> list[Contestant]:
    """Both kinds of synchronous training, and the decentral presets that were asked for."""
    presets = [each for each in decentral_presets() if not only or each.name in only.split(",")]
    if not presets:
        sys.exit(f"--only {only}: no decentral preset is called so")
    return [BASE, PACKED, *(Contestant(each.name, calls_of(each)) for each in presets)]


def fastest(rows: Sequence[Row], everybody: Sequence[Contestant]) -> list[Contestant]:
    """Synchronous training and those who go on to the second cell."""
    first = [row.name for row in rows if row.decentral and row.at_s is not None][:COMPANY]
    return [each for each in everybody if not each.decentral or each.name in first]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows there as well")
    parser.add_argument(
        "--quick", action="store_true", help="a look: one seed, three rates, two decentral presets"
    )
    parser.add_argument("--check", action="store_true", help="end with 1 unless what is demanded holds")
    parser.add_argument(
        "--kept", metavar="FILE", type=Path, help="note every training there; those it has aren't done again"
    )
    parser.add_argument("--only", metavar="NAMES", help="these decentral presets, separated by commas")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="so many train at the same time"
    )
    return parser.parse_args()


def main() -> None:
    asked = options()
    everybody = contestants(asked.only or ("local_sgd,gossip" if asked.quick else None))
    rates, rungs, seeds = ((1.0, 2.0, 4.0), QUICK_RUNGS, 1) if asked.quick else (RATES, RUNGS, 3)
    rows: list[Row] = []
    with trainer(asked.processes) as train:
        train = remembering(train, asked.kept) if asked.kept else train
        for cell in (SLOW, MILD):
            here = everybody if cell is SLOW else fastest(rows, everybody)
            own = rows_of(cell, here, seeds, tuned(here, cell, rates, rungs, train), train)
            show(cell, own)
            rows += own
    well = all(holds(cell, rows) for cell in (SLOW, MILD))
    print(
        f"\nthe fastest decentral preset {'is' if well else 'is NOT'} {NEEDED:g} times as fast over {SLOW.name}"
    )
    if asked.json:
        Path(asked.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    sys.exit(1 if asked.check and not well else 0)


if __name__ == "__main__":
    main()
