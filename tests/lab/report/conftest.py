"""Reports are written once for all tests that look at them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from made import SHAPES, run_json

from fast.lab.report import write_report


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the report on a comparison of this shape."""

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # each of several processes has a folder of its own in that of all

    @cache
    def folder(shape: str) -> Path:
        path = shared / f"report-{shape}"
        with open(f"{path}.lock", "a") as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            if not (path / "report.html").exists():  # the last thing that is written
                write_report(run_json(SHAPES[shape]()), path)
        return path

    return folder
