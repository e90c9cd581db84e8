"""`fast simulate --sizes-only`: how fast strategies are on thousands of workers, without any weights."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from fast.cli.comparing import check_json, servers_in_words
from fast.cli.display import write_json
from fast.cli.options import Asked
from fast.core import Strategy
from fast.errors import UsageError
from fast.lab import Simulated, load_task
from fast.lab.plan import servers_of
from fast.lab.sizes import STEPS, Sizes, Sizing, simulate_sizes
from fast.loop.loading import strategies_from
from fast.sim.cluster.options import check_speeds
from fast.strategies.calls import short_call

DEFAULT_STRATEGIES = "allreduce,dpsgd,gossip"
_WORKERS = 1000
_WIDTH = 100
_QUIET_S = 10.0
_NEEDS_VALUES = ("target", "epochs", "seconds", "seeds", "tune", "split", "ticks", "gradients", "groups")
_HEADS = (
    "time per\nstep",
    "steps\nper s",
    "computing",
    "waiting",
    "exchange",
    "sent per\nstep",
    "staleness\nmedian/max",
    "took",
)


@dataclass(frozen=True)
class SizesAsked:
    """What is asked for beside the options of every simulation."""

    parameters: float | None = None
    steps: int | None = None


def check_sized(asked: Asked, others: Sequence[tuple[str, object]]) -> None:
    """Refuse options that mean something only where weights have values; `others` are those of the command
    that `asked` doesn't hold, None or False if they weren't given."""
    given = {each.name: getattr(asked, each.name) for each in fields(asked)}
    refused = [*((name, given[name]) for name in _NEEDS_VALUES), *others]
    for name, value in refused:
        if value is not None and value is not False:
            raise UsageError(
                f"with sizes only nothing is learned, so there is nothing for --{name} to say; leave it out "
                "(--steps says how far every worker goes)"
            )


def simulate_sizes_only(asked: Asked, sized: SizesAsked, world: Simulated, json: str | None) -> int:
    """Check everything, simulate each strategy, show them side by side, and return the exit code."""
    check_json(json)
    workers = _WORKERS if asked.workers is None else asked.workers
    steps = STEPS if sized.steps is None else sized.steps
    if workers < 1 or steps < 1:
        raise UsageError(f"{workers} workers with {steps} steps each: at least 1 of both is needed")
    if asked.speeds is not None:
        check_speeds(asked.speeds, workers)
    strategies = strategies_from(DEFAULT_STRATEGIES if asked.strategies is None else asked.strategies)
    sizes, seed = _sizes(asked.task, sized.parameters, strategies), asked.seed or 0
    model = world.model()
    for strategy in strategies:
        _check(strategy, sizes, world, workers)
    results = []
    for strategy in strategies:
        with Display(short_call(repr(strategy)), workers * steps) as display:
            results.append(
                simulate_sizes(
                    sizes, strategy, workers=workers, steps=steps, world=world, seed=seed, on_progress=display.tell
                )
            )  # fmt: skip
    who, *rest = model.in_words(workers, *servers_of(strategies, workers))
    words = [
        who,
        *servers_in_words(strategies, workers),
        *rest,
        *(str(clause) for clause in world.faults().clauses),
    ]
    _print(results, title_of(sizes, workers, steps, world), words, to_stderr=json == "-")
    if json is not None:
        write_json(json, to_json(sizes, results, workers, steps, seed, words))
    return 0


def _sizes(task: str | None, parameters: float | None, strategies: Sequence[Strategy]) -> Sizes:
    if task is not None and parameters is not None:
        raise UsageError(f"--parameters takes the place of a task; leave it out, or leave out {task}")
    if parameters is not None:
        return Sizes.of_parameters(parameters)
    if task is None:
        raise UsageError(
            "sizes of what? Give a task, such as `fast simulate digits --sizes-only`, or --parameters 25e6"
        )
    with_rows = any(strategy.uses_factors for strategy in strategies)
    return Sizes.of_task(task, load_task(task), with_rows=with_rows)


def _check(strategy: Strategy, sizes: Sizes, world: Simulated, workers: int) -> None:
    """Find what can't be before the first of them runs."""
    sizes.check(strategy, workers)
    world.faults().check(strategy, workers, strategy.servers(workers))
    strategy.check(workers)


# Results


def title_of(sizes: Sizes, workers: int, steps: int, world: Simulated) -> str:
    weights = decimal(sizes.layout.nbytes)
    what = (
        f"{sizes.name}, {weights}" if "parameters" in sizes.name else f"{sizes.name} ({weights} of weights)"
    )
    return f"{what}: {workers:,} simulated workers, sizes only, {steps} steps each, {world.short()}"


def to_json(
    sizes: Sizes, results: Sequence[Sizing], workers: int, steps: int, seed: int, words: Sequence[str]
) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "sizes",
        "model": {
            "name": sizes.name,
            "parameters": sizes.parameters,
            "weights_bytes": sizes.layout.nbytes,
            "samples": sizes.samples,
        },
        "workers": workers,
        "steps": steps,
        "seed": seed,
        "world": list(words),
        "results": [result.to_json() for result in results],
    }


def _print(results: Sequence[Sizing], title: str, words: Sequence[str], *, to_stderr: bool) -> None:
    file = sys.stderr if to_stderr else sys.stdout
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDTH)
    console.print(Text(title, style="bold"), soft_wrap=True)
    for line in words:
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    console.print(table_of(results))


def table_of(results: Sequence[Sizing]) -> Table:
    """One row per strategy, in at most 100 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("strategy", overflow="fold")
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for result in results:
        table.add_row(short_call(result.strategy), *_cells(result))
    return table


def _cells(result: Sizing) -> list[str]:
    tally, shares, rate = result.tally, result.shares, result.steps_per_s
    late = tally.largest_staleness
    return [
        _duration(result.step_s),
        "-" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}",
        *("-" if shares[name] is None else f"{shares[name]:.0%}" for name in ("computing", "waiting", "exchange")),
        decimal(round(result.step_bytes)),
        "-" if late is None else f"{tally.median_staleness}/{late}",
        f"{result.real_s:.1f} s",
    ]  # fmt: skip


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


class Display:
    """One live line on a terminal, a plain one now and then elsewhere; all of it on standard error."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._live = self._console.is_terminal
        self._began = self._spoke = time.monotonic()
        title = TextColumn("{task.description}", markup=False)
        columns = (title, BarColumn(20), TextColumn("{task.fields[words]}", markup=False))
        self._bars = Bar(
            *columns, TimeElapsedColumn(), console=self._console, transient=True, disable=not self._live
        )
        self._bar = self._bars.add_task(name, total=total, words="starting")

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def tell(self, steps: int, now_ns: int) -> None:
        now = time.monotonic()
        virtual_s, real_s = now_ns / 1e9, now - self._began
        words = f"{steps:,} of {self._total:,} steps, {virtual_s:.1f} s simulated in {real_s:.0f} s"
        self._bars.update(self._bar, completed=steps, words=words)
        if not self._live and now - self._spoke > _QUIET_S:
            self._spoke = now
            print(f"fast: {self._name}: {words}", file=sys.stderr)
