"""How far the simulator is from the truth: the same trainings for real and simulated, cell by cell.

Before the cells of a model and a number of workers the machine is calibrated as `fast calibrate` does it, with the
model's size and the workers that the cells have; nothing is fitted to the cells. What a sleep takes longer than told is
added to the pace. A repetition of every cell comes after another; each real run is simulated with its own seed and with
the calibration that was made shortly before it. What is reported of a cell is the median of the errors of its
runs, not the error of two medians.

A machine whose hardware is shared with others is not the same from minute to minute, and that is not the simulator's
error. So cores with nothing to do are kept from halting (`truth/awake.py`; `--cores-may-halt` lets them), how fast
cores compute and how much slower they are after a sleep is looked at before and after every run, without any strategy
(`truth/weather.py`), and a run around which that changed much is made again. With `--weather` runs are
simulated with a model that is scaled by it.

With `--json FILE` what was measured is kept there, and a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import torch

import harness
from fast.engine import LocalEngine
from fast.lab import load_task, simulate_task
from fast.lab.calibration import QUICK, Effort, load_of_others
from fast.lab.surroundings import cores
from fast.loop.loading import strategy_from
from fast.sim import Cluster
from truth.awake import cores_awake
from truth.cells import Cell, Seen, Time, grid, time_of
from truth.grounds import Ground, grounds_on
from truth.keeping import Findings, keep, kept
from truth.scoring import row_of, show, summary_of
from truth.tasks import TASKS
from truth.weather import Barometer, Weather, barometer

QUIET_CORES = 0.2
"""So much may something else use of this machine when a real run begins."""


def simulated(cell: Cell, cluster: Cluster, seed: int) -> Time:
    run = simulate_task(
        load_task(TASKS[cell.model]),
        strategy_from(cell.strategy),
        workers=cell.workers,
        budget=cell.budget(),
        cluster=cluster,
        seed=seed,
    )
    return time_of(run)


def simulations(
    grounds: Mapping[str, Ground], found: Findings, *, in_weather: bool
) -> dict[Cell, list[Time]]:
    """Of every real run, several at a time: simulated time doesn't mind."""
    runs = [(cell, seed) for cell, each in found.times.items() for seed in range(len(each))]
    weathers = [each.weather if in_weather else Weather() for own in found.times.values() for each in own]
    clusters = [
        weather.over(grounds[cell.where].cluster(cell, seed))
        for (cell, seed), weather in zip(runs, weathers, strict=True)
    ]
    spawn, times = multiprocessing.get_context("spawn"), {cell: list[Time]() for cell in found.times}
    with ProcessPoolExecutor(cores(), spawn, torch.set_num_threads, (1,)) as pool:
        cells, seeds = zip(*runs, strict=True)
        for cell, model in zip(cells, pool.map(simulated, cells, clusters, seeds), strict=True):
            times[cell].append(model)
    return times


def measured(asked: argparse.Namespace, engine: LocalEngine) -> Findings:
    """Calibrations and real runs, on this machine."""
    effort, repetitions = (QUICK, 1) if asked.quick else (Effort(), 3)
    with nullcontext(False) if asked.cores_may_halt else cores_awake() as awake:
        harness.note(
            f"idle cores {'stay awake' if awake else 'halt'}; {load_of_others():.2f} cores are busy with something else"
        )
        found = kept(asked.json, grid(asked.quick), awake=awake)
        with barometer() as weather:
            for repetition in range(asked.repetitions or repetitions):
                measure(found, repetition, grounds_on(engine, found.models), effort, weather, asked.json)
    return found


def measure(
    found: Findings,
    repetition: int,
    grounds: Mapping[str, Ground],
    effort: Effort,
    weather: Barometer,
    file: Path | None,
) -> None:
    """All cells once: what disturbs the machine for a minute hits each of them in one repetition. What was found
    already isn't measured any more; the file is written after each ground."""
    for (where, _), group in itertools.groupby(found.times, key=lambda cell: (cell.where, cell.ground)):
        some, ground = list(group), grounds[where]
        if all(len(found.times[cell]) > repetition for cell in some):
            continue
        wait_for_quiet()
        weather.while_(functools.partial(ground.calibrate, some[0], effort), TASKS[some[0].model])
        for cell in some:
            wait_for_quiet()
            run, around = weather.around(functools.partial(ground.train, cell, repetition))
            last = time_of(run)
            found.times[cell].append(Seen(last, around))
            harness.note(
                f"repetition {repetition + 1}: {cell.group}, {cell.strategy}: {last.step_s * 1e3:.2f} ms, "
                f"{100 * last.share:.0f} % outside; computing x {around.computing:.2f}, cold x {around.cold:.2f}"
            )
        keep(file, found)


def wait_for_quiet() -> None:
    """Until hardly anything else runs here, for a minute at most."""
    for _ in range(60):
        if load_of_others(0.2) < QUIET_CORES:
            return
        time.sleep(1.0)
    harness.note("something else keeps running on this machine: times are too long")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="keep models, rows and summary there; what it has isn't done again",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small grid, each cell once; about two minutes"
    )
    parser.add_argument("--repetitions", type=int, help="real runs of each cell; 3 unless told")
    parser.add_argument("--check", action="store_true", help="end with 1 unless all that is demanded holds")
    parser.add_argument(
        "--again",
        metavar="FILE",
        type=Path,
        help="simulate the cells of such a file again, without real runs",
    )
    parser.add_argument(
        "--weather", action="store_true", help="simulate each run in the weather that was around it"
    )
    parser.add_argument(
        "--cores-may-halt",
        action="store_true",
        help="let idle cores halt, as they usually do: then it matters who else uses the hardware",
    )
    return parser.parse_args()


def main() -> None:
    asked = options()
    if asked.again is not None and not asked.again.exists():
        sys.exit(f"--again {asked.again}: there is no such file")
    with harness.engine() as engine:
        found = (
            measured(asked, engine) if asked.again is None else kept(asked.again, grid(asked.quick)).begun()
        )
        if not found.times:
            sys.exit(f"--again {asked.again}: nothing that it has was measured as it would be now")
        models = simulations(grounds_on(engine, found.models), found, in_weather=asked.weather)
    rows = [row_of(cell, each, models[cell]) for cell, each in found.times.items()]
    summary = summary_of(rows)
    show(rows, summary)
    keep(asked.json, found, rows, summary)
    sys.exit(1 if asked.check and not summary.holds else 0)


if __name__ == "__main__":
    main()
