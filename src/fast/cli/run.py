"""`fast run`: a script on many workers of this machine."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from fast.cli.display import RunDisplay, end_of
from fast.engine import Job, LocalEngine
from fast.errors import UsageError
from fast.loop.loading import strategy_from
from fast.runtime.journal import check_recordable
from fast.runtime.record import check_free

ENTRY, SERVER_ENTRY = "fast.loop.script:run_script", "fast.loop.serving:serve"


def run_command(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python script that calls fast.join.")],
    workers: Annotated[
        int, typer.Option("--workers", "-w", help="How many workers (servers not counted).")
    ] = 2,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", "-s", help="A name, a call or file.py:Name(...); overrides the script's."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order, dropout and random choices.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="torch threads per worker; default: cores divided by workers.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds without a sign of life until a peer is given up.")
    ] = 60.0,
    record: Annotated[
        str | None,
        typer.Option(help="Write down in this new folder what `fast replay` needs to repeat the run."),
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write how it ended to this file; - is stdout.")
    ] = None,
) -> int:
    """Run SCRIPT on several workers of this machine; what follows it goes to the script."""
    check_workers(workers)
    check_passed_on(context.args)
    if not Path(script).is_file():
        raise UsageError(f"there is no script {script}")
    if deadline <= 0:
        raise UsageError(f"--deadline {deadline:g}: a deadline is longer than 0 seconds")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: a worker needs at least 1 thread")
    if strategy is not None:
        chosen = strategy_from(strategy)
        chosen.check(workers)
        if record is not None:
            check_recordable(chosen)
    if record is not None:
        check_free(Path(record))
    job = Job(
        workers=workers,
        entry=ENTRY,
        server_entry=SERVER_ENTRY,
        arguments={"script": script, "arguments": context.args},
        strategy=strategy,
        seed=seed,
        deadline_s=deadline,
        threads=threads or threads_per_worker(workers),
        preload=["fast", "torch._dynamo"],  # which torch imports when the first optimizer is made
        folder=os.getcwd(),
        record=None if record is None else str(Path(record).resolve()),
    )
    with LocalEngine() as engine, RunDisplay(script, workers) as display:
        outcome = engine.run(job, display)
    code = end_of(outcome, json, display.summary())
    if record is not None:
        print(f"fast: recorded in {record}; to repeat it: fast replay {record}", file=sys.stderr)
    return code


_OPTIONS = ("--workers", "--strategy", "--seed", "--threads", "--deadline", "--record", "--json")


def check_passed_on(arguments: list[str]) -> None:
    """A misspelt option of ours must not end up as the script's. What follows `--` is never ours."""
    if "--" in sys.argv:
        return
    for argument in arguments:
        near = get_close_matches(argument.split("=")[0], _OPTIONS, n=1, cutoff=0.75)
        if argument.startswith("--") and near:
            raise UsageError(
                f"there is no option {argument}. Did you mean {near[0]}? If it is for the script, "
                f"write -- before it: fast run script.py -- {argument}"
            )


def check_workers(workers: int) -> None:
    if workers < 1:
        raise UsageError(f"--workers {workers}: a run needs at least 1 worker")


def threads_per_worker(workers: int) -> int:
    """So many that all workers together don't take more cores than there are."""
    return max(1, len(os.sched_getaffinity(0)) // workers if hasattr(os, "sched_getaffinity") else 1)
