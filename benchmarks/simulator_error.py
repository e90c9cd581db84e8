"""How far the simulator is from the truth: the same trainings for real and simulated, cell by cell.

Before the cells of a model and a number of workers the machine is calibrated as `fast calibrate` does it, with the
model's size and the workers that the cells have; nothing is fitted to the cells. What a sleep takes longer than told is
added to the pace. A repetition of every cell comes after another; each real run is simulated with its own seed and with
the calibration that was made shortly before it, in the weather that was around it: how fast cores compute, and how
much slower they are after a sleep, is looked at before and after every run, without any strategy, and compared with
what it was around the calibration (`truth/weather.py`; `--as-calibrated` leaves that out). What is reported of a cell
is the median of the errors of its runs, not the error of two medians.

With `--json FILE` what was measured is kept there, and a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import harness
from fast.core import Task
from fast.engine import LocalEngine
from fast.lab import Budget, Run, load_task, simulate_task, train_task
from fast.lab.calibration import QUICK, Effort, cluster_of, load_of_others, measure
from fast.lab.recording import COMPUTE
from fast.lab.surroundings import cores
from fast.loop.loading import strategy_from
from fast.sim import Cluster, Compute, parse_straggler
from fast.sim.cluster import read_cluster, to_toml
from truth.weather import Weather, barometer

STRATEGIES = (
    "allreduce", "local_sgd(tau=4)", "dpsgd", "sgp", "ssp(bound=0)", "ssp", "torus", "gossip(p=0.5)",
)  # fmt: skip
STRAGGLERS = (None, "4x")
WIDTHS = {"64-64-10": (64, 64, 10), "1.9 M": (784, 1024, 1024, 10)}
STEPS = {"64-64-10": {2: 1500, 4: 300, 8: 300}, "1.9 M": {2: 200, 4: 40, 8: 40}}
"""More where no pace makes them last: a run of half a second shows the machine's mood rather than the strategy."""
PACES_S = {
    "64-64-10": {2: None, 4: 0.003, 8: 0.006},
    "1.9 M": {2: None, 4: 0.040, 8: 0.100},
}
"""Where workers are more than cores: two to three times as long as the two cores take for all workers' computing, so
that workers share them nearly as if each had its own, and what is not computing still counts."""
WARM_UP = 0.2
"""Of a run's steps; they are not counted."""
MEDIAN_LIMIT, WORST_LIMIT, OUTSIDE_LIMIT = 0.10, 0.30, 0.25
OUTSIDE_SHARE = 0.4
QUIET_CORES = 0.2
"""So much may something else use of this machine when a real run begins."""


# The tasks: data is noise, because only time is looked at


class Noise(Task):
    """An MLP on random numbers."""

    name = "noise"
    target = 0.9
    batch_size = 32
    widths: tuple[int, ...]
    _samples = 2048

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(self._samples, self.widths[0], generator=generator)
        self._classes = torch.randint(10, (self._samples,), generator=generator)

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(self.widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def train(self) -> Sequence[int]:
        return range(self._samples)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices)
        return self._inputs[rows], self._classes[rows]

    def test(self) -> tuple[Tensor, Tensor]:
        return self.batch(range(self.batch_size))

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
        return float((model(batch[0]).argmax(1) == batch[1]).float().mean())


class Small(Noise):
    widths = WIDTHS["64-64-10"]


class Large(Noise):
    widths = WIDTHS["1.9 M"]


HERE = Path(__file__).resolve()
TASKS = {"64-64-10": f"{HERE}:Small", "1.9 M": f"{HERE}:Large"}


# Cells


@dataclass(frozen=True)
class Cell:
    """One training. `where` names the ground that it runs on."""

    model: str
    workers: int
    straggler: str | None
    strategy: str
    where: str = "this host"

    @property
    def group(self) -> str:
        slow = f", straggler {self.straggler}" if self.straggler else ""
        return f"{self.model}, {self.workers} workers{slow}, {self.where}"

    @property
    def ground(self) -> str:
        """What is calibrated together, shortly before it runs."""
        return f"{self.model}, {self.workers} workers"

    @property
    def pace_s(self) -> float | None:
        return PACES_S[self.model][self.workers]

    @property
    def steps(self) -> int:
        """Of each worker, if all are equally fast; a straggler makes them last longer."""
        return STEPS[self.model][self.workers] // (2 if self.straggler else 1)

    def budget(self) -> Budget:
        batch = load_task(TASKS[self.model]).batch_size
        samples = self.steps * self.workers * batch
        return Budget(samples, samples, self.workers * batch, ticks=1, whole_steps=True)


@dataclass(frozen=True)
class Time:
    """Of a step of one worker, in seconds: all of it, and what of it was not computing."""

    step_s: float
    outside_s: float

    @property
    def share(self) -> float:
        return self.outside_s / self.step_s


@dataclass(frozen=True)
class Seen:
    """A real run, and the weather around it."""

    time: Time
    weather: Weather


def time_of(run: Run) -> Time:
    """From the records of all workers, without the first steps."""
    parts = [_parts(report.excerpt) for report in run.workers]
    steps, total_ns, computing_ns = (sum(part[i] for part in parts) for i in range(3))
    return Time(total_ns / steps / 1e9, (total_ns - computing_ns) / steps / 1e9)


def _parts(excerpt: Any) -> tuple[int, int, int]:
    """Steps, their time, and that of computing, from the beginning of one step to that of the last."""
    starts = [place for place, piece in enumerate(excerpt.slices) if piece.kind == COMPUTE]
    skipped = round(len(starts) * WARM_UP)
    first, last = starts[skipped], starts[-1]
    counted = excerpt.slices[first:last]
    computing = sum(piece.duration_ns for piece in counted if piece.kind == COMPUTE)
    total = excerpt.slices[last].start_ns - excerpt.slices[first].start_ns
    return len(starts) - 1 - skipped, total, computing


Models = dict[str, list[dict[str, Any]]]
"""By ground the calibrations of all repetitions."""


class Ground(Protocol):
    """Where cells run for real, and the model of it: for now this host; links between hosts may follow."""

    name: str

    def calibrate(self, cell: Cell, effort: Effort) -> None:
        """For this cell's model and number of workers."""

    def train(self, cell: Cell, seed: int) -> Run: ...

    def cluster(self, cell: Cell, repetition: int) -> Cluster:
        """The model that a run is simulated with."""


class ThisHost:
    """Processes on this machine, over shared memory."""

    name = "this host"

    def __init__(self, engine: LocalEngine, known: Models) -> None:
        self._engine = engine
        self.found = known
        """By model and workers, of each repetition: the cluster file and by how much a sleep is longer than told."""

    def calibrate(self, cell: Cell, effort: Effort) -> None:
        measured = measure(
            TASKS[cell.model], workers=(cell.workers,), effort=effort, engine=self._engine, tell=harness.note
        )
        found = {
            "cluster": to_toml(cluster_of(measured)),
            "oversleeping_s": measured.oversleeping.median_s,
        }
        self.found.setdefault(cell.ground, []).append(found)
        harness.note(found["cluster"])

    def train(self, cell: Cell, seed: int) -> Run:
        return train_task(
            TASKS[cell.model],
            cell.strategy,
            workers=cell.workers,
            budget=cell.budget(),
            seed=seed,
            engine=self._engine,
            pace_s=cell.pace_s,
            straggler=cell.straggler,
        )

    def cluster(self, cell: Cell, repetition: int) -> Cluster:
        found = self.found[cell.ground][repetition]
        usual = read_cluster(found["cluster"])
        assert isinstance(usual.compute, Compute)
        straggler = None if cell.straggler is None else parse_straggler(cell.straggler)
        pace_s = None if cell.pace_s is None else cell.pace_s + found["oversleeping_s"]
        return replace(usual, compute=replace(usual.compute, straggler=straggler, pace_s=pace_s))


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
    grounds: Mapping[str, Ground], times: Mapping[Cell, Sequence[Seen]], *, as_calibrated: bool
) -> dict[Cell, list[Time]]:
    """Of every real run, several at a time: simulated time doesn't mind."""
    runs = [(cell, seed) for cell, each in times.items() for seed in range(len(each))]
    weathers = [Weather() if as_calibrated else each.weather for own in times.values() for each in own]
    clusters = [
        weather.over(grounds[cell.where].cluster(cell, seed))
        for (cell, seed), weather in zip(runs, weathers, strict=True)
    ]
    spawn, found = multiprocessing.get_context("spawn"), {cell: list[Time]() for cell in times}
    with ProcessPoolExecutor(cores(), spawn, torch.set_num_threads, (1,)) as pool:
        cells, seeds = zip(*runs, strict=True)
        for cell, model in zip(cells, pool.map(simulated, cells, clusters, seeds), strict=True):
            found[cell].append(model)
    return found


def measured(
    times: dict[Cell, list[Seen]],
    grounds: dict[str, Ground],
    repetitions: int,
    effort: Effort,
    keep: Callable[[], None],
) -> None:
    """All cells once, and then all of them again: what disturbs the machine for a minute hits each of them once. What
    is in `times` already isn't measured any more; `keep` is called after each ground."""
    with barometer() as weather:
        for repetition in range(repetitions):
            for (where, _), group in itertools.groupby(times, key=lambda cell: (cell.where, cell.ground)):
                some = list(group)
                if all(len(times[cell]) > repetition for cell in some):
                    continue
                wait_for_quiet()
                calibrate = functools.partial(grounds[where].calibrate, some[0], effort)
                weather.while_(calibrate, TASKS[some[0].model])
                for cell in some:
                    wait_for_quiet()
                    run, found = weather.around(functools.partial(grounds[where].train, cell, repetition))
                    last = time_of(run)
                    times[cell].append(Seen(last, found))
                    harness.note(
                        f"repetition {repetition + 1}: {cell.group}, {cell.strategy}: {last.step_s * 1e3:.2f} ms, "
                        f"{100 * last.share:.0f} % outside; computing x {found.computing:.2f}, cold x {found.cold:.2f}"
                    )
                keep()


def wait_for_quiet() -> None:
    """Until hardly anything else runs here, for a minute at most."""
    for _ in range(60):
        if load_of_others(0.2) < QUIET_CORES:
            return
        time.sleep(1.0)
    harness.note("something else keeps running on this machine: times are too long")


# What it says


@dataclass(frozen=True)
class Row:
    """One cell, both ways."""

    cell: Cell
    measured: Time
    simulated: Time
    low_s: float
    high_s: float
    """The fastest and the slowest of the real runs."""
    error: float
    outside_error: float
    """Medians over the runs, each against its own simulation."""


def row_of(cell: Cell, seen: Sequence[Seen], models: Sequence[Time]) -> Row:
    times = [each.time for each in seen]
    steps, pairs = [each.step_s for each in times], list(zip(times, models, strict=True))
    return Row(
        cell,
        middle(times),
        middle(models),
        min(steps),
        max(steps),
        error=statistics.median(off(model.step_s, real.step_s) for real, model in pairs),
        outside_error=statistics.median(off(model.outside_s, real.outside_s) for real, model in pairs),
    )


def off(model_s: float, real_s: float) -> float:
    """Nothing measured and nothing simulated is no error."""
    return model_s / real_s - 1 if real_s else math.inf if model_s else 0.0


def middle(times: Sequence[Time]) -> Time:
    return Time(
        statistics.median(each.step_s for each in times), statistics.median(each.outside_s for each in times)
    )


@dataclass(frozen=True)
class Summary:
    """The whole grid in a few numbers."""

    cells: int
    median_error: float
    worst_error: float
    outside_cells: float
    """The share of cells that spend 40 % or more of the measured step outside computation."""
    median_outside_error: float
    pairs: int
    """Strategies of one group whose measured times differ by more than the worst error that is allowed."""
    pairs_agree: int
    close_pairs: int
    """And by more than the median that is allowed."""
    close_pairs_agree: int

    @property
    def holds(self) -> bool:
        return (
            self.median_error <= MEDIAN_LIMIT
            and self.worst_error <= WORST_LIMIT
            and self.outside_cells >= 0.5
            and self.median_outside_error <= OUTSIDE_LIMIT
            and self.pairs == self.pairs_agree
        )


def summary_of(rows: Sequence[Row]) -> Summary:
    far, close = (list(_pairs(rows, apart)) for apart in (WORST_LIMIT, MEDIAN_LIMIT))
    return Summary(
        cells=len(rows),
        median_error=statistics.median(abs(row.error) for row in rows),
        worst_error=max(abs(row.error) for row in rows),
        outside_cells=statistics.fmean(row.measured.share >= OUTSIDE_SHARE for row in rows),
        median_outside_error=statistics.median(abs(row.outside_error) for row in rows),
        pairs=len(far),
        pairs_agree=sum(far),
        close_pairs=len(close),
        close_pairs_agree=sum(close),
    )


def _pairs(rows: Sequence[Row], apart: float) -> Iterator[bool]:
    """For each two strategies of a group that are so far apart: whether the simulator has the same one ahead."""
    for one, other in itertools.combinations(rows, 2):
        slow, fast = sorted((one, other), key=lambda row: -row.measured.step_s)
        if one.cell.group == other.cell.group and slow.measured.step_s > (1 + apart) * fast.measured.step_s:
            yield slow.simulated.step_s > fast.simulated.step_s


def show(rows: Sequence[Row], summary: Summary) -> None:
    for group, members in itertools.groupby(rows, key=lambda row: row.cell.group):
        print(
            f"\n{group}\n{'':16} {'measured':>10} {'(from .. to)':>17} {'simulated':>10} {'error':>7}", end=""
        )
        print(f" {'outside':>9} {'simulated':>10} {'error':>7}")
        for row in members:
            real, model = row.measured, row.simulated
            print(
                f"{row.cell.strategy:16} {real.step_s * 1e3:7.3f} ms {row.low_s * 1e3:8.3f} ..{row.high_s * 1e3:7.3f} "
                f"{model.step_s * 1e3:7.3f} ms {100 * row.error:+6.1f}% {real.outside_s * 1e3:6.3f} ms "
                f"{model.outside_s * 1e3:7.3f} ms {100 * row.outside_error:+6.1f}%"
            )
    print(
        f"\n{summary.cells} cells: error {100 * summary.median_error:.1f} % in the median, "
        f"{100 * summary.worst_error:.1f} % at worst\n"
        f"outside computation: {100 * summary.outside_cells:.0f} % of cells spend 40 % or more there; the error "
        f"of that part is {100 * summary.median_outside_error:.1f} % in the median\n"
        f"order: {summary.pairs_agree} of {summary.pairs} pairs that differ by more than {100 * WORST_LIMIT:.0f} % are "
        f"ordered alike, {summary.close_pairs_agree} of {summary.close_pairs} by more than {100 * MEDIAN_LIMIT:.0f} %\n"
        f"{'all that is demanded holds' if summary.holds else 'NOT all that is demanded holds'}"
    )


def grid(quick: bool) -> list[Cell]:
    models = ("64-64-10",) if quick else tuple(WIDTHS)
    workers = (2, 4) if quick else (2, 4, 8)
    strategies = ("allreduce", "dpsgd", "ssp") if quick else STRATEGIES
    cells = itertools.product(models, workers, STRAGGLERS, strategies)
    return [Cell(*cell) for cell in cells]


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
        "--as-calibrated", action="store_true", help="simulate without a look at the weather around the runs"
    )
    return parser.parse_args()


# What is kept


def kept(file: Path | None, cells: Sequence[Cell]) -> tuple[dict[Cell, list[Seen]], Models]:
    """What a file has of these cells, ground by ground: repetitions that are whole, measured as they would be now."""
    data = json.loads(file.read_text()) if file is not None and file.exists() else {"models": {}, "rows": []}
    found = {Cell(**row["cell"]): row for row in data["rows"]}
    times: dict[Cell, list[Seen]] = {}
    models: Models = {}
    for ground, group in itertools.groupby(cells, key=lambda cell: cell.ground):
        own = {cell: found.get(cell, {"times": []}) for cell in group}
        same = all(
            row.get("pace_s") == cell.pace_s and row.get("steps") == cell.steps for cell, row in own.items()
        )
        whole = min(len(row["times"]) for row in own.values()) if same else 0
        times |= {cell: [_seen(each) for each in row["times"][:whole]] for cell, row in own.items()}
        models[ground] = data["models"].get(ground, [])[:whole]
    return times, models


def _seen(data: dict[str, Any]) -> Seen:
    return Seen(Time(**data["time"]), Weather(**data["weather"]))


def keep(
    file: Path | None,
    times: Mapping[Cell, Sequence[Seen]],
    models: Models,
    rows: Sequence[Row] = (),
    summary: Summary | None = None,
) -> None:
    if file is None:
        return
    said = {row.cell: asdict(row) for row in rows}
    data = {
        "schema": 1,
        "models": models,
        "rows": [
            {
                "cell": asdict(cell),
                "pace_s": cell.pace_s,
                "steps": cell.steps,
                "times": [asdict(each) for each in own],
                **said.get(cell, {}),
            }
            for cell, own in times.items()
        ],
        "summary": summary and asdict(summary),
    }
    file.write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    asked = options()
    if asked.again is not None and not asked.again.exists():
        sys.exit(f"--again {asked.again}: there is no such file")
    times, models = kept(asked.again or asked.json, grid(asked.quick))
    with harness.engine() as engine:
        host = ThisHost(engine, models)
        grounds: dict[str, Ground] = {host.name: host}
        if asked.again is None:
            harness.note(f"{load_of_others():.2f} cores are busy with something else")
            effort, repetitions = (QUICK, 1) if asked.quick else (Effort(), 3)
            measured(
                times,
                grounds,
                asked.repetitions or repetitions,
                effort,
                keep=lambda: keep(asked.json, times, host.found),
            )
    times = {cell: own for cell, own in times.items() if own}
    if not times:
        sys.exit(f"--again {asked.again}: nothing that it has was measured as it would be now")
    simulated_times = simulations(grounds, times, as_calibrated=asked.as_calibrated)
    rows = [row_of(cell, each, simulated_times[cell]) for cell, each in times.items()]
    summary = summary_of(rows)
    show(rows, summary)
    keep(asked.json, times, host.found, rows, summary)
    sys.exit(1 if asked.check and not summary.holds else 0)


if __name__ == "__main__":
    main()
