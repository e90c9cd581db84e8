"""`fast sweep`: many settings of each strategy in the simulator, and what they trade time for."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fast.cli.comparing import FolderOption, check_json, title_of
from fast.cli.display import write_json
from fast.cli.options import (
    Asked,
    ClusterOption,
    EpochsOption,
    GradientsOption,
    HostsOption,
    NameOption,
    NetworkOption,
    RacksOption,
    ScenarioOption,
    SecondsOption,
    SpeedsOption,
    SplitOption,
    SpreadOption,
    StepOption,
    StragglerOption,
    StrategiesOption,
    TargetOption,
    TaskArgument,
    TicksOption,
    WorkersOption,
)
from fast.cli.sweep_display import SweepDisplay, print_swept
from fast.errors import UsageError
from fast.lab.surroundings import versions
from fast.lab.sweep import Record, Sweep, Swept, jobs_of, run_sweep
from fast.lab.sweep.jobs import check_jobs
from fast.lab.sweep.picture import draw_trade_off
from fast.lab.sweep.record import PICTURE
from fast.lab.sweep.space import parse_rates
from fast.lab.tuning import RATES
from fast.sim.cluster.options import check_speeds


def sweep_command(
    task: TaskArgument = None,
    strategies: StrategiesOption = None,
    workers: WorkersOption = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of an argument to try: local_sgd.tau=2,8,32, or tau=2,8 for all strategies "
            "that have it. May be given "
            "several times. "
            "With --search, numbers between them are tried too.",
            show_default="the strategies' own",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="Learning rates to try, as factors of the task's own.",
            show_default=",".join(f"{rate:g}" for rate in sorted(RATES)),
        ),
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            help="Number of trials for each strategy, chosen by optuna, instead of the whole grid. Needs the extra "
            r"\[search]: pip install 'fast-training\[search]'."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Number of trials to run in parallel.", show_default="number of cores")
    ] = None,
    target: TargetOption = None,
    epochs: EpochsOption = None,
    seconds: SecondsOption = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of data order and random choices.", show_default="0")
    ] = None,
    split: SplitOption = None,
    network: NetworkOption = None,
    step: StepOption = None,
    straggler: StragglerOption = None,
    hosts: HostsOption = None,
    racks: RacksOption = None,
    speeds: SpeedsOption = None,
    spread: SpreadOption = None,
    cluster: ClusterOption = None,
    gradients: GradientsOption = None,
    scenario: ScenarioOption = None,
    ticks: TicksOption = None,
    name: NameOption = None,
    runs: FolderOption = None,
    resume: Annotated[str | None, typer.Option(help="Continue the interrupted sweep in this folder.")] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Also write sweep.json to this file; - is standard output.")
    ] = None,
) -> int:
    """Try many settings of each strategy on TASK in the simulator: arguments and learning rates.

    Every trial is a whole training, scored on validation data. The result is the best settings of each
    strategy, and those that no other setting beats in both time and bytes to the target. It is printed as a
    table and written to runs/NAME/sweep.json and runs/NAME/trade-off.svg. It doesn't depend on --jobs, nor on
    interruptions.
    """
    asked = Asked(
        task, strategies, workers, target, epochs, seconds, seed, split=split, ticks=ticks,
        network=network, step=step, straggler=straggler, cluster=cluster, hosts=hosts, racks=racks,
        speeds=speeds, spread=spread, gradients=gradients, scenario=scenario,
    )  # fmt: skip
    check_json(json)
    check_jobs(jobs)
    if resume is not None:
        others = {"knob": knob or None, "rates": rates, "search": search, "name": name, "runs": runs}
        record, sweep = _resumed(asked, resume, others)
    else:
        if search is not None and search < 1:
            raise UsageError(f"--search {search}: the number of trials for each strategy, at least 1")
        factors = RATES if rates is None else parse_rates(rates)
        plan = asked.plan(asked.simulated(), seeds=1, tune=0)
        if speeds is not None:
            check_speeds(speeds, plan.settings.workers)
        sweep = Sweep.of(plan, knobs=knob or (), rates=factors, search=search or 0)
        record = Record.create(_path(Path(runs or "runs"), name, sweep), sweep.wanted)
    with record:
        swept = _run(sweep, record, jobs)
        _write(swept, record)
        print_swept(swept, title_of(sweep.plan), to_stderr=json == "-")
        if json is not None:
            write_json(json, swept.to_json())
    return _exit_code(swept, asked)


def _resumed(asked: Asked, folder: str, others: Mapping[str, object]) -> tuple[Record, Sweep]:
    """What is gone on with is what it was."""
    asked.check_nothing_else("--resume")
    for option, value in others.items():
        if value is not None:
            raise UsageError(f"--resume goes on with the sweep in {folder} as it was; leave out --{option}")
    record = Record.resume(Path(folder))
    try:
        _say_what_changed(record.wanted.versions)
        return record, Sweep.again(record.wanted)
    except BaseException:
        record.close()
        raise


def _say_what_changed(before: Mapping[str, str]) -> None:
    """What other versions have tried may come out differently with these."""
    now = versions()
    changed = [
        f"{name} {old}, now {now.get(name, 'none')}" for name, old in before.items() if now.get(name) != old
    ]
    if changed:
        _say(f"trials before were made with {'; '.join(changed)}: the result mixes both")


def _path(runs: Path, name: str | None, sweep: Sweep) -> Path:
    if name is not None:
        if name != Path(name).name or name in ("", ".", ".."):
            raise UsageError(f"--name {name}: a name of a folder in {runs}, without slashes")
        return runs / name
    stem = Path(sweep.plan.settings.task.partition(":")[0]).stem
    first = runs / f"{stem}-sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (first.with_name(f"{first.name}-{number}") for number in range(2, 1000))
    return first if not first.exists() else next(path for path in numbered if not path.exists())


def _run(sweep: Sweep, record: Record, jobs: int | None) -> Swept:
    try:
        with SweepDisplay(sweep) as display, jobs_of(sweep, jobs) as hands:
            return run_sweep(sweep, hands, known=record.known, keep=record.add, tell=display.tell)
    except KeyboardInterrupt:
        _say(f"what was tried is in {record.path}; go on with: fast sweep --resume {record.path}")
        raise


def _write(swept: Swept, record: Record) -> None:
    record.write_result(swept.to_json())
    picture = draw_trade_off(swept)
    if picture is not None:
        record.write(PICTURE, picture)
        _say(f"picture: {record.path / PICTURE}")


def _exit_code(swept: Swept, asked: Asked) -> int:
    """1 if a trial failed, or if nobody could reach the target that was asked for: now, or before it was resumed."""
    plan = swept.sweep.plan
    target = plan.settings.target
    if not swept.reached:
        _say(f"no setting reached the target {target:g}")
    wanted = asked.target is not None or target != getattr(plan.task, "target", None)
    return int(bool(swept.failed) or (wanted and not swept.reached))


def _say(words: str) -> None:
    print(f"fast: {words}", file=sys.stderr)
