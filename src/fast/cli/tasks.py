"""`fast tasks`: what there is to train on."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fast.cli.display import write_json
from fast.lab.tasks.listing import Facts, built_in

_COLUMNS = ("name", "parameters", "weights", "samples", "batch", "epochs", "target", "data")
_WIDTH = 100
"""Of a table that goes into a file or a pipe."""


def tasks_command(
    json: Annotated[
        str | None, typer.Option("--json", help="Write the list to this file; - is standard output.")
    ] = None,
) -> None:
    """List the built-in tasks: sizes, the score to reach, and the data that each needs."""
    tasks = built_in()
    if json is not None:
        write_json(json, {"schema": 1, "tasks": [_as_json(task) for task in tasks]})
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_WIDTH)
    console.print(_table(tasks))
    for task in tasks:
        console.print(f"{task.name}: {task.about}", soft_wrap=True)
    console.print("\nCompare on one: fast compare digits --workers 4", soft_wrap=True)
    console.print("A task of your own: fast compare file.py --workers 4", soft_wrap=True)


def _table(tasks: list[Facts]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("name", "data") else "right", no_wrap=True)
    for task in tasks:
        numbers = (f"{task.parameters:,}", decimal(task.weights_bytes), f"{task.train_samples:,}")
        lengths = (str(task.batch_size), f"{task.epochs:g}", f"{task.target:g}")
        table.add_row(task.name, *numbers, *lengths, _data(task))
    return table


def _data(task: Facts) -> str:
    if task.missing:
        return f"run: fast data {task.missing[0]}"
    return ", ".join(task.data) + " (here)" if task.data else "none needed"


def _as_json(task: Facts) -> dict[str, Any]:
    return {
        "name": task.name,
        "about": task.about,
        "parameters": task.parameters,
        "weights_bytes": task.weights_bytes,
        "train_samples": task.train_samples,
        "batch_size": task.batch_size,
        "target": task.target,
        "epochs": task.epochs,
        "data": [{"name": name, "state": state.value} for name, state in task.data.items()],
    }
