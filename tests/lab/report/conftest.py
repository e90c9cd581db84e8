"""Reports are written once for all tests that look at them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from made import SHAPES, run_json

from fast.lab.report import write_report


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the report on a comparison of this shape."""

    @cache
    def folder(shape: str) -> Path:
        return write_report(run_json(SHAPES[shape]()), tmp_path_factory.mktemp(shape)).parent

    return folder
