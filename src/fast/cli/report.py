"""`fast report`: make the report of a comparison anew, or that of a single run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fast.errors import UsageError
from fast.lab.report import run_data, write_report_again, write_run_report


def report_command(
    run: Annotated[str, typer.Argument(help="Folder of a run or of a comparison, or its run.json.")],
) -> None:
    """Write report.html and its figures, also for a run that goes on or was interrupted."""
    given = Path(run)
    file = given / "run.json" if given.is_dir() else given
    try:
        report = write_report_again(file) if run_data(file) is None else write_run_report(file.parent)
    except OSError as error:
        raise UsageError(f"the report can't be written to {file.parent}: {error.strerror}") from error
    print(report)
