"""`fast strategies`: all presets and their place in the taxonomy."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fast.cli.display import write_json
from fast.strategies import Preset, catalogue

_COLUMNS = ("name", "system", "optimization", "scheduling", "exchange", "topology")
_PLAIN_WIDTH = 120
"""Where no terminal says how wide it is."""


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
    table = Table(title="Strategies", box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for preset in presets:
        row = preset.row()
        table.add_row(*(row[column] for column in _COLUMNS))
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    console.print(table)
    console.print("\nArguments and their defaults:")
    for preset in presets:
        console.print(f"  {preset()!r}", highlight=False)
    console.print("\nMomentum and Adam's moments, where every worker has weights of its own:")
    for preset in presets:
        if preset.place.optimization == "decentral":
            console.print(f"  {preset.name:18}{_moments_of(preset)}", highlight=False)
    console.print("\nUse one: fast run --workers 4 --strategy torus train.py", highlight=False)


def _moments_of(preset: Preset) -> str:
    others = " or ".join(repr(policy) for policy in preset.moments if policy != "keep")
    return f"{preset.place.moments}, unless moments={others}" if others else preset.place.moments
