"""Reports are written once for all tests that look at them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from browsing import CHROMIUM, DRIVER
from made import SHAPES, run_json
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

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


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()
