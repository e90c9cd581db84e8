"""Copies of the weights along the way: what they hold, and what happens when the disk is full."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from fast.errors import FastError, UsageError
from fast.lab import Budget
from fast.lab.copying import Copies, SavedCopies, save
from fast.lab.measures import Report
from fast.lab.real import check_room
from fast.lab.training import Pace
from fast.trace import Meter, Sent


def test_a_copy_for_every_tick_that_has_passed_with_what_was_seen_and_sent_by_then(tmp_path: Path) -> None:
    """Four ticks of 10 samples; the second look finds that two have passed at once."""
    live = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}
    report, meter, news = Report("worker 0"), Meter(), list[dict[str, Any]]()
    copies = Copies(live, Budget(40, 40, 8, ticks=4), report, meter, news.append)
    assert not copies.take(9, 5, 1) and report.tick_ns == []
    live["w"].add_(1)
    meter(Sent(0, 1, (1,), "x", 100, 1))
    assert not copies.take(21, 11, 2)
    live["w"].add_(1)
    meter(Sent(0, 2, (1,), "x", 100, 2))
    assert copies.take(40, 20, 3)
    assert report.tick_samples == [11, 11, 20, 20] and report.tick_bytes == [100, 100, 200, 200]
    assert [each["tick"] for each in news] == [0, 1, 2, 3] and news[2]["steps"] == 3
    assert copies.nbytes == 4 * (2 * 4 + 8)
    save(copies.rows, tmp_path / "copies")
    saved = SavedCopies(tmp_path / "copies")
    assert [saved.at(tick)["w"].tolist() for tick in range(4)] == [[2, 3], [2, 3], [3, 4], [3, 4]]
    assert saved.at(0)["n"] == 7


def test_a_disk_without_room_is_said_in_words(tmp_path: Path) -> None:
    """No file of this process may grow beyond 1 MB for a moment."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(FastError, match=r"copies of the weights \(4 MB\) can't be written.*TMPDIR"):
            save({"w": torch.zeros(1_000_000)}, tmp_path / "copies")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_room_is_asked_for_before_anything_starts() -> None:
    check_room(1)
    with pytest.raises(UsageError, match=r"need 1000000000 MB.*TMPDIR.*--ticks"):
        check_room(10**15)


def test_without_a_pace_nothing_is_counted() -> None:
    pace = Pace(None)
    pace.begin()
    pace.keep()
    assert pace.exceeded == 0


def test_a_step_that_took_longer_than_its_pace_is_counted() -> None:
    pace = Pace(1e-9)
    pace.begin()
    pace.keep()
    assert pace.exceeded == 1
