"""`fast worker`: this host's part of a run that `fast run --hosts` has begun on another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fast.cli.display import RunDisplay, end_of
from fast.cli.hosts import choose_meeting, come, part_of, run_part
from fast.cli.run import job_of, target_of
from fast.cli.stopping import Stopping
from fast.engine import Job, LocalEngine
from fast.engine.attached.asking import Ask, Door, ask
from fast.engine.attached.meeting import release
from fast.engine.attached.plan import Plan
from fast.errors import FastError, UsageError
from fast.loop.script import find_module
from fast.runtime.record import script_digest


def worker_command(
    coordinator: Annotated[
        str, typer.Option(help="HOST:PORT of `fast run --hosts`, which prints this command.")
    ],
    host_number: Annotated[int, typer.Option(min=1, help="Which of its hosts this is, from 1 on.")],
    secret: Annotated[
        str | None,
        typer.Option(help="File with the job's secret, mode 0600; - reads it from standard input."),
    ] = None,
    plain_tcp: Annotated[bool, typer.Option("--plain-tcp", help="No secret and no encryption.")] = False,
    deadline: Annotated[
        float, typer.Option(help="Seconds to wait for the coordinator and the other hosts.")
    ] = 60.0,
) -> int:
    """Run this host's workers of a run that `fast run --hosts` has begun on another host.

    That command prints this one. Everything else (script, arguments, strategy, seed) comes from there.
    """
    meeting = choose_meeting(coordinator, secret, plain=plain_tcp, deadline_s=deadline)
    plan = come(meeting, host_number)
    try:
        job = part_of(_job(plan, host_number), plan, meeting, host_number)
    except FastError as error:
        name = plan.hosts[host_number]
        told = Ask(release(), "end", host_number, "", f"{name}: {error}".encode())
        ask(Door(meeting.coordinator, meeting.secret, host_number), told, deadline)
        raise
    with (
        LocalEngine() as engine,
        RunDisplay(plan.script, len(job.here)) as display,
        Stopping(engine) as stopping,
    ):
        outcome = run_part(engine, job, stopping.before(display))
    return stopping.code or end_of(outcome, None, display.summary())


def _job(plan: Plan, host: int) -> Job:
    os.chdir(_folder(plan))
    target = target_of(plan.script, plan.arguments, module=plan.module)
    script = target["script"]
    assert isinstance(script, str)
    if script_digest(Path(script)) != plan.digest:
        raise UsageError(
            f"{Path(script).resolve()} differs from that of {plan.hosts[0]}. Copy the same script to every host."
        )
    job = job_of(target, plan.workers, plan.counts[host], plan.threads)
    job.strategy, job.seed, job.deadline_s = plan.strategy, plan.seed, plan.deadline_s
    job.record = None if plan.record is None else str(Path(plan.record).resolve())
    return job


def _folder(plan: Plan) -> Path:
    """Where the script is: in the folder where this command was typed, or where `fast run` was."""
    for folder in (Path.cwd(), Path(plan.folder)):
        if plan.module:
            try:
                find_module(plan.script, str(folder))
            except UsageError:
                continue
            return folder
        if (folder / plan.script).is_file():
            return folder
    raise UsageError(
        f"there is no {plan.script}, neither in {Path.cwd()} nor in {plan.folder}. Copy the script to the same place "
        "on every host, or type `fast worker` in its folder."
    )
