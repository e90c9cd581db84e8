"""`fast report`: make the report of a comparison anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fast.errors import UsageError
from fast.lab.report import write_report_again


def report_command(
    run: Annotated[str, typer.Argument(help="Folder of a comparison, or its run.json.")],
) -> None:
    """Write report.html, figures and tables from a run.json, also from that of an interrupted comparison."""
    given = Path(run)
    file = given / "run.json" if given.is_dir() else given
    try:
        report = write_report_again(file)
    except OSError as error:
        raise UsageError(f"the report can't be written to {file.parent}: {error.strerror}") from error
    print(report)
