"""`fast report`: make the report of a comparison anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fast.errors import UsageError
from fast.lab import settings_of
from fast.lab.report import write_report


def report_command(
    run: Annotated[str, typer.Argument(help="The folder of a comparison, or its run.json.")],
) -> None:
    """Write report.html, figures and tables from a run.json; also of one that was interrupted."""
    given = Path(run)
    file = given / "run.json" if given.is_dir() else given
    settings_of(file)  # says what is wrong with a file that isn't one
    try:
        report = write_report(msgspec.json.decode(file.read_bytes()), file.parent)
    except OSError as error:
        raise UsageError(f"the report can't be written to {file.parent}: {error.strerror}") from error
    print(report)
