"""`fast strategies`: all presets and their place in the taxonomy."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fast.cli.display import write_json
from fast.strategies import catalogue

_COLUMNS = ("name", "system", "optimization", "scheduling", "exchange", "topology")


def strategies_command(
    json: Annotated[
        str | None, typer.Option("--json", help="Write the table to this file; - is stdout.")
    ] = None,
) -> None:
    """List all strategies: who talks to whom, when, and what is exchanged."""
    presets = list(catalogue().values())
    if json is not None:
        write_json(json, [preset.row() for preset in presets])
        return
    table = Table(*_COLUMNS, title="Strategies", box=None, header_style="bold", pad_edge=False)
    for preset in presets:
        row = preset.row()
        table.add_row(*(row[column] for column in _COLUMNS))
    console = Console()
    console.print(table)
    console.print("\nArguments and their defaults:")
    for preset in presets:
        console.print(f"  {preset()!r}", highlight=False)
    console.print("\nUse one: fast run train.py --workers 4 --strategy torus", highlight=False)
