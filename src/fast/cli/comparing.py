"""What `fast compare` and `fast simulate` share: the folder, the table, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fast.cli.display import write_json
from fast.cli.options import Asked, plan_again
from fast.cli.progress import CompareDisplay
from fast.cli.table import print_table
from fast.core import Strategy
from fast.errors import FastError, UsageError
from fast.lab import Comparison, Folder, Plan, Simulated, run_plan
from fast.lab.batching import in_words
from fast.lab.journal import RUN
from fast.lab.report import write_report, write_report_again
from fast.loop.run_folder import RUNS, candidates_for
from fast.strategies.calls import short_call

FolderOption = Annotated[
    str | None, typer.Option("--runs", help="Folder that holds the folders of results.", show_default=RUNS)
]
"""None unless it was given, so that it can be refused where there is no folder to write."""


def carry_out(
    asked: Asked,
    make_plan: Callable[[], Plan],
    *,
    name: str | None,
    runs: str | None,
    again: str | None,
    resume: str | None,
    json: str | None,
) -> int:
    """Check everything, run the comparison, show it, write it down, and return the exit code."""
    check_json(json)
    if again is not None and resume is not None:
        raise UsageError("--again starts a comparison anew and --resume goes on with one; give one of them")
    if resume is not None:
        for option, given in (("--name", name), ("--runs", runs)):
            if given is not None:
                raise UsageError(f"--resume goes on in {resume}; leave out {option}")
        plan, folder = plan_again(asked, resume, "--resume"), Folder.resume(Path(resume))
    else:
        plan = make_plan() if again is None else plan_again(asked, again, "--again")
        folder = Folder.create(_path(Path(RUNS if runs is None else runs), name, plan))
    with folder:
        comparison = _run(plan, folder)
        who, model = plan.facts.get("model", [])[:1], plan.facts.get("model", [])[1:]
        about = [
            *who,
            *servers_in_words(plan.strategies, plan.settings.workers),
            *model,
            *plan.facts.get("faults", ()),
            *in_words(plan.facts.get("gradients", {})),
        ]
        print_table(comparison, title_of(plan), about, to_stderr=json == "-")
        if json is not None:
            write_json(json, comparison.to_json())
        _write_report(comparison, folder.path, resumed=resume is not None)
    return _exit_code(comparison, asked)


def check_json(to: str | None) -> None:
    """Find out before the run whether its result can be written."""
    if to is None or to == "-":
        return
    path = Path(to)
    if path.is_dir():
        raise UsageError(f"--json {to}: that is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"--json {to}: there is no folder {path.parent}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--json {to}: can't write there: permission denied")


def _path(runs: Path, name: str | None, plan: Plan) -> Path:
    candidates = candidates_for(runs, name, Path(plan.settings.task.partition(":")[0]).stem)
    return next(path for path in candidates if name is not None or not path.exists())


def _run(plan: Plan, folder: Folder) -> Comparison:
    try:
        with CompareDisplay(plan.runs) as display:
            return run_plan(plan, display, folder)
    except KeyboardInterrupt:
        _say(f"what was measured is in {folder.path}; go on with: fast compare --resume {folder.path}")
        raise


def title_of(plan: Plan) -> str:
    """What was compared, in a line."""
    settings, world = plan.settings, plan.settings.world
    many = "s" * (settings.workers > 1)
    if isinstance(world, Simulated):
        words = f"{settings.workers} simulated worker{many}, {world.short()}"
    else:
        words = f"{settings.workers} worker{many} on this machine"
        if settings.pace_s is not None:
            words += f", pace {settings.pace_s * 1e3:g} ms"
    if settings.groups is not None:
        words += f", groups {settings.groups}"
    if settings.split != "iid":
        words += f", split {settings.split}"
    return f"{settings.task}: {words}, target {settings.target:g}"


def servers_in_words(strategies: Sequence[Strategy], workers: int) -> list[str]:
    """A line that says whose servers there are, where not all strategies have as many."""
    counts = {short_call(repr(strategy)): strategy.servers(workers) for strategy in strategies}
    if len(set(counts.values())) < 2:
        return []
    own = [f"{name} has {count}" for name, count in counts.items() if count]
    rest = ["the others have none"] if len(own) < len(counts) else []
    return [f"servers of each: {', '.join([*own, *rest])}"]


def _write_report(comparison: Comparison, folder: Path, *, resumed: bool) -> None:
    """The last thing: whatever happens here, run.json is complete. What was measured before it was resumed came from
    a file, which may be damaged."""
    try:
        report = write_report_again(folder / RUN) if resumed else write_report(comparison.to_json(), folder)
    except OSError as error:
        raise FastError(
            f"the report can't be written to {folder}: {error.strerror}. The results are in run.json; "
            f"make room and try again: fast report {folder}"
        ) from error
    _say(f"report: {report}")


def _exit_code(comparison: Comparison, asked: Asked) -> int:
    """1 if a strategy failed, or if nobody could reach the target that was asked for."""
    if comparison.failed:
        return 1
    if not comparison.reached:
        _say(f"no strategy reached the target {comparison.target:g}")
        return 1 if asked.target is not None else 0
    return 0


def _say(words: str) -> None:
    print(f"fast: {words}", file=sys.stderr)
