"""`fast calibrate`: measure this machine, and write the cluster file that `fast simulate --cluster` reads."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from fast.cli.comparing import check_json
from fast.cli.display import write_json
from fast.engine import LocalEngine
from fast.errors import UsageError
from fast.lab.calibration import QUICK, Effort, Measurements, cluster_of, load_of_others, measure
from fast.lab.calibration.words import found_in_words, warnings
from fast.lab.surroundings import cores
from fast.lab.tasks import load_task
from fast.sim.cluster import to_toml

_TASK = "digits"
_MOST_WORKERS = 64


def calibrate_command(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tasks whose steps are measured; with several, one file each.", show_default=_TASK
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            "-w",
            help="Numbers of workers to measure with, separated by commas.",
            show_default="the number of cores, and twice that",
        ),
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="Cluster file to write.")] = "machine.toml",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repetitions: takes about half a minute.")
    ] = False,
    json: Annotated[
        str | None,
        typer.Option("--json", help="Also write all measurements to this file; - is standard output."),
    ] = None,
) -> int:
    """Measure this machine with real workers and write a model of it for `fast simulate --cluster`.

    Computing, messages, means over workers, the optimizer and a server are measured many times in turn, as in
    a training with one torch thread per worker. Run nothing else during calibration.
    """
    check_json(json)
    counts = _counts(workers)
    files = files_of(tasks or [_TASK], Path(out))
    busy, effort = load_of_others(), QUICK if quick else Effort()
    say = Console(stderr=json == "-", soft_wrap=True, highlight=False, markup=False).print
    told = []
    with LocalEngine() as engine:
        for task, path in files.items():
            say(f"{task}: measuring with {', '.join(map(str, counts))} workers on {cores()} cores")
            with _progress() as tell:
                found = measure(task, workers=counts, effort=effort, engine=engine, tell=tell)
            told.append(_written(found, path, busy, say))
    if json is not None:
        write_json(json, {"schema": 1, "kind": "calibration", "tasks": told})
    return 0


def _written(found: Measurements, path: Path, busy: float, say: Callable[[str], None]) -> dict[str, Any]:
    """The model, said in words and written to its file; and all of it as data."""
    cluster, warned = cluster_of(found), warnings(found, busy)
    for line in (
        *(f"  {line}" for line in found_in_words(found, cluster)),
        *(f"warning: {each}" for each in warned),
    ):
        say(line)
    path.write_text(to_toml(cluster), encoding="utf-8")
    say(f"written to {path}: fast simulate {found.task} --cluster {path}")
    measured = msgspec.to_builtins(found, str_keys=True)
    return {
        "task": found.task,
        "file": str(path),
        "cluster": tomllib.loads(to_toml(cluster)),
        "measured": measured,
        "busy_cores": busy,
        "warnings": warned,
    }


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being measured: one live line on a terminal, plain lines elsewhere."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda what: console.print(f"measuring: {what}")
        return
    with console.status("measuring") as status:
        yield lambda what: status.update(f"measuring: {what}")


def _counts(text: str | None) -> list[int]:
    if text is None:
        few = max(2, cores())
        return [few, 2 * few]
    try:
        counts = sorted({int(each) for each in text.split(",")})
    except ValueError:
        raise UsageError(f"--workers {text}: numbers of workers, such as 2,4,8") from None
    if counts[0] < 2 or counts[-1] > _MOST_WORKERS:
        raise UsageError(f"--workers {text}: each number is from 2 to {_MOST_WORKERS}")
    return counts


def files_of(tasks: list[str], out: Path) -> dict[str, Path]:
    """Which file is whose; that each can be read and written is found out before anything is measured."""
    for task in tasks:
        load_task(task)
    folder = out.parent
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--out {out}: it is to be a file in a folder that exists and can be written")
    files = {task: out if len(tasks) == 1 else out.with_stem(f"{out.stem}-{_plain(task)}") for task in tasks}
    for path in files.values():
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"{path} is there already and can't be written; name another file with --out")
    if len(set(files.values())) < len(tasks):
        raise UsageError(
            f"{', '.join(tasks)}: two of these would be written to one file; calibrate one after another, each with "
            "its own --out"
        )
    return files


def _plain(task: str) -> str:
    """As a part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in Path(task).name)
