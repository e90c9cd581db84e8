"""The option by which several commands are told the order of sums."""

from typing import Annotated

import typer

GroupsOption = Annotated[
    str | None,
    typer.Option(
        help="Add within these groups of workers first, as between hosts: 2x4, or 0-3,4-7; all: plainly by worker.",
        show_default="the workers of each host",
    ),
]
