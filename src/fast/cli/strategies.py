"""`fast strategies`: all presets and their place in the taxonomy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fast.cli.display import write_json
from fast.strategies import Preset, catalogue

FIRST = MappingProxyType(
    {
        "allreduce": "Every step averages the gradients of all workers, so P workers train like one with P times the "
        "batch. Begin here: the others are compared with it.",
        "local_sgd": "Workers train alone and average their weights every tau steps. For networks that are slow "
        "compared with a step.",
        "diloco": "Like local_sgd with an outer optimizer, for hundreds of steps between two exchanges. For workers at "
        "different sites.",
        "ssp": "A server holds the weights, and a fast worker may be a few steps ahead of the slowest. For workers "
        "that are slow now and then.",
        "gossip": "Each worker sends its weights to a random other one now and then, and never waits. For workers that "
        "are slow or come and go.",
    }
)
"""The strategies to start with, and why."""
_COLUMNS = ("name", "system", "optimization", "scheduling", "exchange", "topology")
_PLAIN_WIDTH = 120
"""Where no terminal says how wide it is."""


def strategies_command(
    every: Annotated[bool, typer.Option("--all", help="List all of them, with their arguments.")] = False,
    json: Annotated[
        str | None, typer.Option("--json", help="Write the whole table to this file; - is standard output.")
    ] = None,
) -> None:
    """Show the strategies to start with; with --all the whole list.

    A strategy says what workers send, to which others, and when.
    """
    presets = list(catalogue().values())
    if json is not None:
        write_json(json, [preset.row() for preset in presets])
        return
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)
    if every:
        _print_all(console, presets)
    else:
        _print_first(console, len(presets))
    console.print("\nUse one: fast run --workers 4 --strategy local_sgd train.py")


def _print_first(console: Console, count: int) -> None:
    table = Table(title="Strategies to start with", box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, why in FIRST.items():
        table.add_row(name, why)
    console.print(table)
    console.print(f"\nAll {count} with their arguments: fast strategies --all")
    console.print("Which one for your machines and network: fast plan --help")


def _print_all(console: Console, presets: Sequence[Preset]) -> None:
    table = Table(title="Strategies", box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for preset in presets:
        row = preset.row()
        table.add_row(*(row[column] for column in _COLUMNS))
    console.print(table)
    console.print("\nArguments and their defaults:")
    for preset in presets:
        console.print(f"  {preset()!r}", markup=False)
    console.print("\nMomentum and Adam's moments, where every worker has weights of its own:")
    for preset in presets:
        if preset.place.optimization == "decentral":
            console.print(f"  {preset.name:18}{_moments_of(preset)}")


def _moments_of(preset: Preset) -> str:
    others = " or ".join(repr(policy) for policy in preset.moments if policy != "keep")
    return f"{preset.place.moments}, unless moments={others}" if others else preset.place.moments
