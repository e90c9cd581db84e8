"""Write a report: the page, its figures and its tables, each file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fast.errors import UsageError
from fast.lab.journal import DAMAGED, METRICS
from fast.lab.report.reading import Reading
from fast.lab.report.run_reading import RunReading
from fast.lab.report.tables import tables
from fast.lab.settings import settings_of


def write_report(data: Mapping[str, Any], folder: Path) -> Path:
    """From the dictionary of `run.json`: report.html, figures/*.svg and tables/*.csv.

    Returns where the page is. The page comes last, so where there is one, the rest is there too. A
    folder that can't be written to raises OSError: what to do about it, the caller knows.
    """
    from fast.lab.report.canvas import drawing
    from fast.lab.report.page import render_page
    from fast.lab.report.pictures import draw_pictures

    reading = Reading(data)
    with drawing():
        pictures = draw_pictures(reading)
    page = folder / "report.html"
    contents = {f"tables/{name}": text for name, text in tables(reading).items()}
    contents |= {f"figures/{picture.name}.svg": picture.paper for picture in pictures.every()}
    contents["report.html"] = render_page(reading, pictures)
    for name, text in contents.items():
        write_whole(folder / name, text)
    return page


def write_report_again(file: Path) -> Path:
    """The same from a run.json, which may be damaged: then one sentence says so."""
    from jinja2 import TemplateError

    settings_of(file)  # says what is wrong with a file that isn't one
    try:
        return write_report(msgspec.json.decode(file.read_bytes()), file.parent)
    except (*DAMAGED, TemplateError) as error:
        raise UsageError(
            f"{file} is damaged: no report can be made of it ({type(error).__name__}: {error}). If {METRICS} is still "
            f"beside it, write it anew: fast compare --resume {file.parent}"
        ) from error


def write_run_report(folder: Path) -> Path:
    """From the folder of one run: report.html and figures/*.svg. Otherwise as `write_report`."""
    from fast.lab.report.canvas import drawing
    from fast.lab.report.run_page import draw_run, render_run

    reading = RunReading.of(folder)
    with drawing():
        pictures = draw_run(reading)
    for picture in pictures.every():
        write_whole(folder / "figures" / f"{picture.name}.svg", picture.paper)
    page = folder / "report.html"
    write_whole(page, render_run(reading, pictures))
    return page


def write_whole(path: Path, text: str) -> None:
    """Readers see the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
