"""`fast run`: a script on many workers of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from fast.cli.display import RunDisplay, end_of
from fast.cli.grouping import GroupsOption
from fast.cli.passing import passed_on
from fast.engine import Job, LocalEngine
from fast.errors import UsageError
from fast.loop.loading import strategy_from
from fast.loop.script import find_module
from fast.membership import parse_groups
from fast.runtime.journal import check_recordable
from fast.runtime.record import check_free

ENTRY, SERVER_ENTRY = "fast.loop.script:run_script", "fast.loop.serving:serve"


class RunCommand(TyperCommand):
    """Options end where the script begins, as with `python` and `torchrun`."""

    allow_interspersed_args = False

    def collect_usage_pieces(self, ctx: object) -> list[str]:
        return ["[OPTIONS]", "SCRIPT", "[ARGS]..."]


def run_command(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="Python script that calls fast.join; with -m, a module.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Everything after SCRIPT goes to it.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, as in `python -m`.")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", "-w", help="Number of workers; servers are not counted.")
    ] = 2,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="Name, call or file.py:Name(...) of a strategy; overrides the script's."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order, dropout and random choices.")] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="torch threads per worker. Default: number of cores / number of workers."),
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds without a sign of life after which a worker counts as lost.")
    ] = 60.0,
    groups: GroupsOption = None,
    record: Annotated[
        str | None,
        typer.Option(help="New folder for a record of the run; `fast replay` repeats it bit for bit."),
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the outcome to this file; - is standard output.")
    ] = None,
) -> int:
    """Run SCRIPT on several workers of this machine.

    Options of FAST stand before SCRIPT. Everything after SCRIPT goes to the script:

    fast run --workers 4 --strategy "local_sgd(tau=8)" train.py --lr 0.1
    """
    check_options(workers, threads, deadline)
    check_strategy(strategy, workers, recorded=record is not None)
    if record is not None:
        check_free(Path(record))
    job = Job(
        workers=workers,
        entry=ENTRY,
        server_entry=SERVER_ENTRY,
        arguments=target_of(script, arguments or [], module=module),
        strategy=strategy,
        seed=seed,
        deadline_s=deadline,
        threads=threads or threads_per_worker(workers),
        preload=["fast", "torch._dynamo"],  # which torch imports when the first optimizer is made
        folder=os.getcwd(),
        record=None if record is None else str(Path(record).resolve()),
        groups=() if groups is None else parse_groups(groups, workers),
    )
    for note in passed_on(context, f"-m {script}" if module else script, arguments or []):
        print(f"fast: {note}", file=sys.stderr)
    with LocalEngine() as engine, RunDisplay(script, workers) as display:
        outcome = engine.run(job, display)
    code = end_of(outcome, json, display.summary())
    if record is not None:
        print(f"fast: recorded in {record}; to repeat it: fast replay {record}", file=sys.stderr)
    return code


def target_of(script: str, arguments: list[str], *, module: bool) -> dict[str, str | list[str] | None]:
    """Arguments of `run_script`: the file, the module's name with -m, and what goes to the script."""
    if module:
        return {"script": find_module(script, os.getcwd()), "arguments": arguments, "module": script}
    if not Path(script).is_file():
        raise UsageError(f"there is no script {script}")
    return {"script": script, "arguments": arguments}


def check_options(workers: int, threads: int | None, deadline: float) -> None:
    check_workers(workers)
    if deadline <= 0:
        raise UsageError(f"--deadline {deadline:g}: a deadline is longer than 0 seconds")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: a worker needs at least 1 thread")


def check_strategy(strategy: str | None, workers: int, *, recorded: bool) -> None:
    """Raise UsageError for a strategy that can't run, or that can't be recorded if it should be."""
    if strategy is None:
        return
    chosen = strategy_from(strategy)
    chosen.check(workers)
    if recorded:
        check_recordable(chosen)


def check_workers(workers: int) -> None:
    if workers < 1:
        raise UsageError(f"--workers {workers}: a run needs at least 1 worker")


def threads_per_worker(workers: int) -> int:
    """Number of cores per worker, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // workers if hasattr(os, "sched_getaffinity") else 1)
