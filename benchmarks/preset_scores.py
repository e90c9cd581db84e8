"""What every decentral preset scores beside synchronous training, with its documented defaults.

Four real processes train `mnist-mlp` over its whole budget. The learning rate of each preset comes from one grid,
climbed uphill from the task's own rate with a seed of its own, by the score on the validation images; then several
seeds are trained with it and judged on the 10,000 test images. A preset holds if the mean of its seeds is at most one
point below that of `allreduce`. Defaults are not tuned, with two exceptions that the table names: an interval longer
than a tenth of the run is cut to that, and what waits for the learning rate to fall, which it never does here, begins
in the middle of the run.

Rows are printed as they come. With `--json FILE` they are kept there too, and those that it already has are not
measured again, so that a run that was ended goes on where it was. All of it takes half an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import harness
from fast.engine import LocalEngine
from fast.errors import FastError
from fast.lab import Budget, Run, load_task, train_task
from fast.lab.judging import Judge
from fast.lab.tuning import RATES
from fast.strategies.calls import arguments_of, short_call, with_argument
from fast.strategies.catalogue import Preset, catalogue

TASK, WORKERS = "mnist-mlp", 4
SYNCHRONOUS = "allreduce"
TOLERANCE = 0.01
TUNING_SEED = 1000
SHARE = 10
"""An interval is at most one in so many of a run's steps."""
INTERVALS = ("tau", "interval", "up", "down")
"""What presets call the steps between two exchanges."""


def decentral_presets() -> list[Preset]:
    """All that the catalogue has, in its order."""
    return [preset for preset in catalogue().values() if preset.place.optimization == "decentral"]


def default_call(preset: Preset, steps: int) -> str:
    """With the documented defaults, as far as they make sense in a run of so many steps."""
    call, longest = preset().call, max(1, steps // SHARE)
    for name, value in arguments_of(call).items():
        if name in INTERVALS and value.isdecimal() and int(value) > longest:
            call = with_argument(call, name, longest)
        if name == "after" and value == "None":
            call = with_argument(call, name, steps // 2)
    return call


def climb(rates: Sequence[float], worth: Callable[[float], float], start: float = 1.0) -> float:
    """The rate from which none of its neighbours on the grid is better, uphill from `start`."""
    grid, known = sorted(rates), dict[float, float]()

    def of(place: int) -> float:
        if grid[place] not in known:
            known[grid[place]] = worth(grid[place])
        return known[grid[place]]

    place = grid.index(start)
    while True:
        near = [place, *(each for each in (place - 1, place + 1) if 0 <= each < len(grid))]
        best = max(near, key=of)
        if best == place:
            return grid[place]
        place = best


@dataclass(frozen=True)
class Terms:
    """What all rows of a table have in common."""

    epochs: float
    seeds: int
    rates: tuple[float, ...]
    task: str = TASK
    workers: int = WORKERS


@dataclass(frozen=True)
class Row:
    """One preset. `scores` are on the test images, one for each seed; None for a model that is no number."""

    name: str
    call: str
    changed: bool
    """Whether its defaults were made for longer runs, and something of the call was adapted to this one."""
    rate: float
    scores: tuple[float | None, ...]
    replica_distance: float
    took_s: float
    error: str | None = None

    @property
    def mean(self) -> float | None:
        known = [score for score in self.scores if score is not None]
        return statistics.fmean(known) if known and len(known) == len(self.scores) else None

    def holds(self, base: Row) -> bool:
        """Within a point of synchronous training."""
        return self.mean is not None and base.mean is not None and self.mean >= base.mean - TOLERANCE


class Track:
    """This machine and the task."""

    def __init__(self, engine: LocalEngine, terms: Terms) -> None:
        self._engine, self._terms, self._task = engine, terms, load_task(terms.task)
        self._budget = Budget.of(self._task, terms.workers, terms.epochs, ticks=1)
        self._validation = Judge(self._task, self._task.validation())
        self._test = Judge(self._task, self._task.test())

    def row(self, preset: Preset) -> Row:
        """Tuned, then trained with every seed."""
        began, call = time.monotonic(), default_call(preset, self._budget.steps)
        changed, rate, runs = call != preset().call, math.nan, list[Run]()
        error = None
        try:
            rate = climb(self._terms.rates, lambda each: self._validated(call, each))
            runs = [self._train(call, rate, seed) for seed in range(self._terms.seeds)]
        except FastError as failure:
            error = f"{type(failure).__name__}: {failure}"
        return Row(
            preset.name,
            call,
            changed,
            rate,
            tuple(self._test(run.final) for run in runs),
            max((run.consensus_distance for run in runs), default=math.nan),
            time.monotonic() - began,
            error,
        )

    def _validated(self, call: str, rate: float) -> float:
        score = self._validation(self._train(call, rate, TUNING_SEED).final)
        harness.note(f"  {short_call(call)}, rate x {rate:g}: {score} on the validation images")
        return -math.inf if score is None else score

    def _train(self, call: str, rate: float, seed: int) -> Run:
        terms = self._terms
        return train_task(
            terms.task, call, workers=terms.workers, budget=self._budget, seed=seed,
            engine=self._engine, rate=rate,
        )  # fmt: skip


# Rows that are kept


def kept(file: Path | None, terms: Terms) -> dict[str, Row]:
    """The rows that a file has, by their presets. Rows of other terms can't stand in one table with new ones."""
    if file is None or not file.exists():
        return {}
    data = json.loads(file.read_text())
    if data["terms"] != json.loads(json.dumps(asdict(terms))):
        sys.exit(f"{file} was measured with {data['terms']}, and this is {asdict(terms)}: name another file")
    return {row["name"]: _row(row) for row in data["rows"]}


def _row(data: dict[str, object]) -> Row:
    nan = {name: math.nan for name in ("rate", "replica_distance") if data[name] is None}
    return Row(**{**data, **nan, "scores": tuple(data["scores"])})  # type: ignore[arg-type]


def keep(file: Path | None, terms: Terms, rows: Sequence[Row]) -> None:
    if file is not None:
        plain = [
            {
                key: None if isinstance(value, float) and math.isnan(value) else value
                for key, value in asdict(row).items()
            }
            for row in rows
        ]
        file.write_text(
            json.dumps({"schema": 1, "terms": asdict(terms), "rows": plain}, indent=1, allow_nan=False) + "\n"
        )


# The table


def line(row: Row, base: Row) -> str:
    if row.mean is None or base.mean is None:
        return f"{row.name:18} no score: {row.error or 'its weights are no numbers'}"
    seeds = " ".join("-" if score is None else f"{score:.4f}" for score in row.scores)
    points = 100 * (row.mean - base.mean)
    said = "" if row is base else f"{points:+6.2f}  {'holds' if row.holds(base) else 'MISSED'}"
    changed = ", for this length of run" if row.changed else ""
    return f"{row.name:18} {row.mean:.4f}  ({seeds})  {said:14} rate x {row.rate:<6g} {short_call(row.call)}{changed}"


def measured(track: Track, presets: Sequence[Preset], known: dict[str, Row]) -> Iterator[Row]:
    """In the order of the presets, those that are known as they are."""
    for preset in presets:
        harness.note(f"{preset.name} {'is known' if preset.name in known else '...'}")
        yield known.get(preset.name) or track.row(preset)


def chosen(only: str | None) -> list[Preset]:
    """Synchronous training, and the decentral presets that were asked for: all, unless told otherwise."""
    presets = decentral_presets()
    if only:
        names = {preset.name for preset in presets}
        unknown = sorted(set(only.split(",")) - names)
        if unknown:
            sys.exit(
                f"{', '.join(unknown)}: no decentral preset is called so; there are {', '.join(sorted(names))}"
            )
        presets = [preset for preset in presets if preset.name in only.split(",")]
    return [catalogue()[SYNCHRONOUS], *presets]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--json", metavar="FILE", help="keep the rows there; those that it has aren't measured again"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a look: one seed, the task's own rate, 2 epochs"
    )
    parser.add_argument("--check", action="store_true", help="end with 1 unless every preset holds")
    parser.add_argument(
        "--only", metavar="NAMES", help="these presets, separated by commas, beside allreduce"
    )
    return parser.parse_args()


def main() -> None:
    asked = options()
    file = Path(asked.json) if asked.json else None
    terms = Terms(2.0, 1, (1.0,)) if asked.quick else Terms(float(load_task(TASK).epochs), 3, RATES)
    presets, known = chosen(asked.only), kept(file, terms)
    rows: list[Row] = []
    with harness.engine() as engine:
        for row in measured(Track(engine, terms), presets, known):
            rows.append(row)
            known[row.name] = row
            keep(file, terms, list(known.values()))
            print(line(row, rows[0]), flush=True)
    missed = [row.name for row in rows if not row.holds(rows[0])]
    print(f"\nNOT within a point: {', '.join(missed)}" if missed else "\nall are within a point of allreduce")
    sys.exit(1 if asked.check and missed else 0)


if __name__ == "__main__":
    main()
