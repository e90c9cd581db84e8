"""`fast run`: a script on many workers of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fast.cli.across import PORT, Across, run_here
from fast.cli.display import RunDisplay, end_of
from fast.cli.grouping import GroupsOption
from fast.cli.passing import passed_on, was_given
from fast.cli.stopping import Stopping
from fast.engine import Failure, Job, LocalEngine
from fast.errors import UsageError
from fast.loop.launching import SERVER_ENTRY, check_options, threads_per_worker
from fast.loop.loading import strategy_from
from fast.loop.run_folder import RUNS, open_log, say
from fast.loop.script import find_module
from fast.membership import parse_groups
from fast.runtime.journal import check_recordable
from fast.runtime.record import CANT_RECORD, check_free

PRELOAD = ("fast.loop", "fast.strategies.presets", "torch._dynamo")
"""Imported once, before the workers are forked; torch imports its compiler when the first optimizer is made."""
MOST_SEED = 2**63 - 1
ENTRY = "fast.loop.script:run_script"


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
    name: Annotated[
        str | None,
        typer.Option(help="Name of the folder for the run's log.", show_default="script and time"),
    ] = None,
    runs: Annotated[str, typer.Option("--runs", help="Where the folders of runs are.")] = RUNS,
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="Keep a log in RUNS/NAME, which `fast report` draws.")
    ] = True,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the outcome to this file; - is standard output.")
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(help="Several hosts, this one first: a,b or, with numbers of workers, a:2,b:4."),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of this host where the others come.", show_default=f"first host:{PORT}"),
    ] = None,
    secret: Annotated[
        str | None, typer.Option(help="File with the secret that all hosts share; see `fast secret`.")
    ] = None,
    plain_tcp: Annotated[
        bool, typer.Option("--plain-tcp", help="Between hosts, no secret and no encryption.")
    ] = False,
    ssh: Annotated[bool, typer.Option("--ssh", help="Start the other hosts over ssh.")] = False,
) -> int:
    """Run SCRIPT on several workers of this machine, or of several hosts.

    Options of FAST stand before SCRIPT. Everything after SCRIPT goes to the script:

    fast run --workers 4 --strategy "local_sgd(tau=8)" train.py --lr 0.1
    """
    across = Across(hosts, coordinator, secret, plain_tcp, ssh)
    counts = across.counts(workers if was_given(context, "workers") else None)
    workers = sum(counts) or workers
    check_options(workers, threads, deadline, lambda option, value: f"--{option} {value}")
    check_seed(seed)
    check_strategy(strategy, workers, recorded=record is not None)
    if record is not None:
        check_free(Path(record))
    target = target_of(script, arguments or [], module=module)
    job = job_of(target, workers, counts[0] if counts else workers, threads)
    job.strategy, job.seed, job.deadline_s = strategy, seed, deadline
    job.record = None if record is None else str(Path(record).resolve())
    job.groups = () if groups is None else parse_groups(groups, workers)
    for note in passed_on(context, f"-m {script}" if module else script, arguments or []):
        say(note)
    with across.met(job, threads, record):
        run_log = open_log(log, job, runs, name, script if module else Path(script).stem)
        with (
            LocalEngine() as engine,
            RunDisplay(script, len(job.here)) as display,
            Stopping(engine) as stopping,
            run_log,
        ):
            outcome = run_here(engine, job, stopping.before(display))
            run_log.finish(outcome.failure)
    code = end_of(outcome, json, display.summary())
    for line in run_log.summary():
        say(line)
    if record is not None:
        tell_record(record, outcome.failure)
    return stopping.code or code


def tell_record(record: str, failure: Failure | None) -> None:
    """Where the record is, and whether it is whole: a failed run has a record too, unless that is what failed."""
    if failure is not None and CANT_RECORD in failure.message:
        say(f"the record in {record} isn't complete; make room and record again")
    else:
        say(f"recorded in {record}; to repeat it: fast replay {record}")


def job_of(target: dict[str, str | list[str] | None], workers: int, here: int, threads: int | None) -> Job:
    """A run of a script in this folder; `here` is the number of workers on this host."""
    return Job(
        workers=workers,
        entry=ENTRY,
        server_entry=SERVER_ENTRY,
        arguments=target,
        threads=threads or threads_per_worker(here),
        preload=[*PRELOAD],
        folder=os.getcwd(),
    )


def target_of(script: str, arguments: list[str], *, module: bool) -> dict[str, str | list[str] | None]:
    """Arguments of `run_script`: the file, the module's name with -m, and what goes to the script."""
    if module:
        return {"script": find_module(script, os.getcwd()), "arguments": arguments, "module": script}
    if not Path(script).is_file():
        raise UsageError(f"there is no script {script}")
    return {"script": script, "arguments": arguments}


def check_seed(seed: int | None) -> None:
    if seed is not None and abs(seed) > MOST_SEED:
        raise UsageError(f"--seed {seed}: a seed has at most 63 bits")


def check_strategy(strategy: str | None, workers: int, *, recorded: bool) -> None:
    """Raise UsageError for a strategy that can't run, or that can't be recorded if it should be."""
    if strategy is None:
        return
    chosen = strategy_from(strategy)
    chosen.check(workers)
    if recorded:
        check_recordable(chosen)
