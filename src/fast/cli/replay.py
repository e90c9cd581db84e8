"""`fast replay`: a recorded run once more, to the same bits, at any worker and step by step."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fast.cli.display import write_json
from fast.cli.run import ENTRY
from fast.cli.stepping import ReplayDisplay, Shoulder, watching_losses
from fast.engine.local import environment_of_workers
from fast.engine.replay import Replayed, changed_script, changed_surroundings, replay
from fast.errors import UsageError
from fast.loop.launching import SERVER_ENTRY
from fast.runtime.record import Recorded, load_record


def replay_command(
    record: Annotated[str, typer.Argument(help="Folder that `fast run --record` wrote.")],
    worker: Annotated[
        int, typer.Option("--worker", "-w", help="Worker that --step and --until are about.")
    ] = 0,
    step: Annotated[
        bool, typer.Option("--step", help="Show each step of that worker; on a terminal, wait for Enter.")
    ] = False,
    until: Annotated[int | None, typer.Option(help="Stop after this number of steps of that worker.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide what the script prints.")] = False,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the outcome to this file; - is standard output.")
    ] = None,
) -> int:
    """Repeat a run that was recorded with `fast run --record`: in this process, bit for bit."""
    if until is not None and until < 1:
        raise UsageError(f"--until {until}: it stops after at least 1 step")
    recorded = load_record(Path(record))
    if not 0 <= worker < recorded.header.workers:
        raise UsageError(f"--worker {worker}: the record has workers 0 to {recorded.header.workers - 1}")
    _check_entries(recorded)
    recorded = _with_script(recorded)
    _start_alike(recorded)
    display = ReplayDisplay(quiet=quiet)
    _tell_beginning(recorded, display)
    shoulder = Shoulder(worker, display, each=step, until=until)
    try:
        with watching_losses(shoulder):
            replayed = replay(recorded, watch=shoulder, listen=display)
    except BrokenPipeError:  # whoever read the steps has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    code, words = _how_it_ended(recorded, replayed, shoulder)
    if replayed.failure is not None and replayed.failure.traceback:
        print(replayed.failure.traceback, end="", file=sys.stderr)
    display.say(words)
    if json is not None:
        write_json(json, _as_data(recorded, replayed))
    return code


def _check_entries(recorded: Recorded) -> None:
    """A record may come from anybody, so it names no function of its own choice."""
    header = recorded.header
    for entry, ours in ((header.entry, ENTRY), (header.server_entry, SERVER_ENTRY)):
        if entry != ours:
            raise UsageError(
                f"{recorded.folder} wants to run {entry!r}; a record of `fast run` runs {ours!r}"
            )


def _with_script(recorded: Recorded) -> Recorded:
    """The record, with the folder in which its script is found: that of the run, else this one."""
    header = recorded.header
    if header.script is None or (Path(header.folder) / header.script).is_file():
        return recorded
    if not Path(header.script).is_file():
        raise UsageError(
            f"the script {header.script} of this record is not there any more, neither in {header.folder}, where it "
            "was run, nor here. Put it back, or go to the folder where it is now."
        )
    moved = msgspec.structs.replace(header, folder=os.getcwd())
    return Recorded(recorded.folder, moved, recorded.parts)


def _start_alike(recorded: Recorded) -> None:
    """Start this command anew where the order of sets would be another one than in the recorded run."""
    wanted = recorded.parts[0].opened.hash_seed
    if wanted is not None and os.environ.get("PYTHONHASHSEED") != wanted:
        command = [sys.executable, "-m", "fast", *sys.argv[1:]]
        os.execve(sys.executable, command, environment_of_workers(wanted))


def _tell_beginning(recorded: Recorded, display: ReplayDisplay) -> None:
    header = recorded.header
    words = f"replaying {recorded.folder}: {header.script or header.entry}, {header.workers} workers"
    display.say(words.removesuffix("s") if header.workers == 1 else words)
    for changed in changed_surroundings(recorded):
        display.say(f"{changed}; the bits may differ")
    if changed_script(recorded):
        display.say(f"{header.script} was changed after the run was recorded; the replay may diverge")


def _how_it_ended(recorded: Recorded, replayed: Replayed, shoulder: Shoulder) -> tuple[int, str]:
    """The exit code and one sentence."""
    damaged = next((id for id, part in sorted(recorded.parts.items()) if part.damaged), None)
    if replayed.differs:
        return 2, f"replayed, but {replayed.differs}"
    if replayed.stopped:
        return (
            0,
            f"stopped after step {replayed.steps[shoulder.worker]} of worker {shoulder.worker}, as asked",
        )
    if replayed.failure is not None:
        steps = _steps(recorded, replayed)
        return 1, f"{replayed.failure.who} failed as it did then: {replayed.failure.message} ({steps})"
    if damaged is not None:
        part, name = recorded.parts[damaged], recorded.name_of(damaged)
        return (
            2,
            f"the file of {name} is damaged: {part.damaged}. Replayed up to there: {_steps(recorded, replayed)}",
        )
    if replayed.unfinished:
        return (
            0,
            f"the run ended early, and so does its record. Replayed up to there: {_steps(recorded, replayed)}",
        )
    return 0, f"replayed to the end, the same bits as recorded: {_steps(recorded, replayed)}"


def _steps(recorded: Recorded, replayed: Replayed) -> str:
    done = [f"{recorded.name_of(id)} {steps}" for id, steps in sorted(replayed.steps.items())]
    return f"steps of {', '.join(done)}"


def _as_data(recorded: Recorded, replayed: Replayed) -> dict[str, Any]:
    failure = replayed.failure
    return {
        "schema": 1,
        "record": str(recorded.folder),
        "workers": recorded.header.workers,
        "steps": [replayed.steps.get(worker, 0) for worker in range(recorded.header.workers)],
        "complete": not replayed.unfinished,
        "equal": not replayed.differs,
        "failure": None if failure is None else {"who": failure.who, "message": failure.message},
    }
