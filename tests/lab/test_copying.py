"""Copies of the weights along the way: what they hold, and what happens when the disk is full."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch

from fast.errors import FastError, UsageError
from fast.lab import Budget
from fast.lab.copying import Copies, Flat, SavedCopies, Ticker, save
from fast.lab.measures import Report
from fast.lab.notebook import Notebook
from fast.lab.real import check_room
from fast.lab.training import Pace
from fast.trace import Computed, Meter, Sent, Stepped, Turned, Waited
from fast.view import Layout


def test_a_copy_for_every_tick_that_has_passed_with_what_was_seen_and_sent_by_then(tmp_path: Path) -> None:
    """Four ticks of 10 samples; the second look finds that two have passed at once."""
    live = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}
    (tmp_path / "metrics").touch()
    report, notebook = Report("worker 0"), Notebook("worker 0")
    ticker = Ticker(str(tmp_path / "metrics"), "this run", "worker 0")
    copies = Copies(lambda: live, Budget(40, 40, 8, ticks=4), report, notebook, ticker)
    assert not copies.take(9, 5, 1) and report.tick_ns == []
    live["w"].add_(1)
    notebook.collect(Sent(0, 1, (1,), "x", 100, 1))
    assert not copies.take(21, 11, 2)
    live["w"].add_(1)
    notebook.collect(Sent(0, 2, (1,), "x", 100, 2))
    assert copies.take(40, 20, 3)
    report.take(notebook)
    assert report.tick_samples == [11, 11, 20, 20] and report.tick_bytes == [100, 100, 200, 200]
    news = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert [each["tick"] for each in news] == [0, 1, 2, 3]
    assert news[2] == {
        "kind": "tick", "run": "this run", "who": "worker 0", "tick": 2, "elapsed_s": news[2]["elapsed_s"],
        "steps": 3, "samples": 20,
    }  # fmt: skip
    assert copies.nbytes == 4 * (2 * 4 + 8)
    save(copies.rows, tmp_path / "copies")
    saved = SavedCopies(tmp_path / "copies")
    assert [saved.at(tick)["w"].tolist() for tick in range(4)] == [[2, 3], [2, 3], [3, 4], [3, 4]]
    assert saved.at(0)["n"] == 7


def test_a_flat_tensor_is_copied_at_once_and_saved_by_its_parameters(tmp_path: Path) -> None:
    """Each of them is padded to 64 bytes; what isn't in the flat tensor is copied beside it."""
    layout = Layout.of([("a", (2, 3)), ("b", (5,))], torch.float32)
    flat = torch.arange(32.0)
    live = {segment.name: segment.of(flat) for segment in layout.segments} | {"n": torch.tensor(7)}
    copies = Copies(
        lambda: live, Budget(20, 20, 8, ticks=2), Report("x"), Notebook("x"), None, Flat(flat, layout)
    )
    expected = []
    for seen in (10, 20):
        flat.add_(100)
        live["n"].add_(1)
        copies.take(seen, seen, 1)
        expected.append({name: value.clone() for name, value in live.items()})
    save(copies.rows, tmp_path / "copies")
    saved = SavedCopies(tmp_path / "copies")
    for tick, state in enumerate(expected):
        assert saved.at(tick).keys() == state.keys()
        assert all(torch.equal(value, state[name]) for name, value in saved.at(tick).items())


def test_a_buffer_that_the_model_replaces_is_copied_as_it_is_now() -> None:
    live = {"n": torch.tensor(1)}
    copies = Copies(lambda: live, Budget(20, 20, 8, ticks=2), Report("x"), Notebook("x"))
    for seen in (10, 20):
        live["n"] = live["n"] + 1
        copies.take(seen, seen, 1)
    assert copies.rows["n"].tolist() == [2, 3]


def test_what_is_left_of_the_ticks_can_be_taken_at_the_end() -> None:
    report, live = Report("server 0"), {"w": torch.zeros(1)}
    copies = Copies(lambda: live, Budget(20, 20, 8, ticks=4), report, Notebook("x"))
    copies.take(10, 0, 1)
    live["w"].fill_(7)
    copies.finish(2)
    assert copies.rows["w"].flatten().tolist() == [0, 0, 7, 7] and len(report.tick_ns) == 4


def test_a_notebook_knows_the_same_as_a_meter_that_was_told_at_once() -> None:
    notebook, meter = Notebook("worker 0"), Meter()
    records = [
        Computed(0, 10, 2), Sent(0, 12, (1, 2), "x", 64, 1, 2), Waited(0, 15, (1,), "x", 3), Stepped(0, 18, 1, 32),
        Turned(0, 20, 10), Computed(0, 30, 20), Turned(0, 31, 30),
    ]  # fmt: skip
    for number, record in enumerate(records):
        meter(record)
        notebook.collect(record)
        if number in (2, 5):
            notebook.work_out()
    notebook.work_out()
    assert notebook.meter == meter and meter.merged_ns == 10 - 2 - 3 + 1
    assert len(notebook.recorder.excerpt().slices) > 3


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
