"""The report of a single run in a real browser: values can be read, and it fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import CHROMIUM, DRIVER, Browser
from made_run import book, make
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from fast.lab.report import write_run_report

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium and chromedriver")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    books = {f"worker {n}": book(f"worker {n}", 0, [3.0 + n, 1.0, 0.0001]) for n in range(2)}
    return write_run_report(make(tmp_path / "run", books)).parent


@pytest.mark.parametrize("width", [1440, 390])
def test_it_renders_quietly(width: int, folder: Path, driver: webdriver.Chrome) -> None:
    browser = Browser(driver)
    browser.open(folder, width)
    assert [link.text for link in browser.seen(".contents a")][:3] == ["Participants", "loss", "Throughput"]
    assert browser.console() == []
    assert all(url.startswith(("file://", "data:")) for url in browser.requests())
    assert browser.run("return document.documentElement.scrollWidth") <= width


def test_values_are_read_with_the_keyboard(folder: Path, driver: webdriver.Chrome) -> None:
    browser = Browser(driver)
    browser.open(folder)
    plot = browser.find("#value-1-step .plot")
    plot.send_keys(Keys.ARROW_RIGHT)
    assert browser.find(".tip").text == "1 step\nloss\n3.500 3.000 – 4.000"
    plot.send_keys(Keys.ARROW_LEFT, Keys.END, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.find("#spoken").get_attribute("textContent") == "3 step: loss 0.0001"
