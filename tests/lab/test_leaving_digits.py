"""What it does to the score on a real task when two of eight workers leave early: the table of a page."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def _script(name: str) -> Any:
    """Benchmarks find one another because Python looks for modules beside a script."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


leaving = _script("leaving")
SEEDS = range(4)


@cache
def mean_of(strategy: str) -> Any:
    return leaving.mean_of([leaving.measured(strategy, seed) for seed in SEEDS])


def on_the_page(strategy: str) -> list[float]:
    page = (ROOT / "docs" / "measurements" / "leaving.md").read_text(encoding="utf-8")
    section = page[page.index("benchmarks/leaving.py") :]
    row = re.search(rf"^\| {re.escape(strategy)} \| (.*) \|$", section, re.MULTILINE)
    assert row is not None, f"no row for {strategy}"
    return [float(cell) for cell in row[1].split(" | ")]


@pytest.mark.parametrize("strategy", ["dpsgd", "gosgd(p=0.1)"])
def test_leaving_is_survived_with_a_loss_that_is_bounded(strategy: str) -> None:
    """One seed. Data of two workers in eight are gone: ten points would be a class that nobody knows any more."""
    left = leaving.train(strategy, 0, leave=True)
    steps = [report.steps for report in left.workers]
    assert steps[6:] == [leaving.LEAVE_AT] * 2 and min(steps[:6]) >= leaving.STEPS
    found = leaving.measured(strategy, 0)
    assert found.nobody_left > 0.9
    assert found.nobody_left - 0.1 < found.two_left < found.nobody_left
    assert found.two_left > found.never_there


@pytest.mark.long
@pytest.mark.parametrize("strategy", leaving.STRATEGIES)
def test_in_the_mean_it_costs_something_and_less_than_never_having_been_there(strategy: str) -> None:
    found = mean_of(strategy)
    assert found.never_there < found.two_left < found.nobody_left
    assert found.nobody_left - found.two_left < 0.08


@pytest.mark.long
@pytest.mark.parametrize("strategy", leaving.STRATEGIES)
def test_the_page_says_what_was_measured(strategy: str) -> None:
    """Up to the last bits of products, which differ from machine to machine."""
    assert [100 * score for score in mean_of(strategy)] == pytest.approx(on_the_page(strategy), abs=1.0)
