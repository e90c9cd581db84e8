"""The report of a single run: read from its folder as it lies there, also half finished."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_run import book, make, opened, totals

from fast.cli import main
from fast.errors import UsageError
from fast.lab.report import write_run_report
from fast.lab.report.run_reading import RATE, RunReading
from fast.runtime.logbook import metrics_file


@pytest.fixture
def folder(tmp_path) -> Path:
    books = {
        "worker 0": book("worker 0", 5_000, [3.0, 1.0]),
        "worker 1": book("worker 1", 2_000_005_000, [5.0, 2.0]),
    }
    books["server 0"] = [opened("server 0", 5_000), totals(4.0, 0, {"1": 4}, compute_s=0.0)]
    return make(tmp_path / "run", books, duration_s=6.0, parameters=7, failure=None)


def test_what_is_read(folder):
    reading = RunReading.of(folder)
    assert [each.name for each in reading.participants] == ["worker 0", "worker 1", "server 0"]
    assert (reading.names, reading.strategy) == (["loss"], "torus(rule=mean)")
    curves = [run["curve"] for run in reading.entry(0, "loss").runs]
    assert curves == [
        {"step": [1.0, 2.0], "at_s": [0.5, 1.5], "loss": [3.0, 1.0]},
        {"step": [1.0, 2.0], "at_s": [2.5, 3.5], "loss": [5.0, 2.0]},
    ]
    assert [run["curve"][RATE] for run in reading.rate().runs] == [[100.0, 200.0]] * 2
    (whole,) = reading.whole().runs
    assert whole["staleness"] == {"0": 12, "2": 4, "1": 4}
    assert [each["compute_s"] for each in whole["participants"]] == [1.0, 1.0, 0.0]


def test_workers_come_in_the_order_of_their_numbers(tmp_path):
    names = [f"worker {number}" for number in (10, 9, 2)]
    reading = RunReading.of(make(tmp_path / "run", {name: book(name, 0, []) for name in names}))
    assert [each.name for each in reading.participants] == ["worker 2", "worker 9", "worker 10"]


def test_many_values_become_means_of_pieces(tmp_path):
    values = [float(number) for number in range(1000)]
    reading = RunReading.of(make(tmp_path / "run", {"worker 0": book("worker 0", 0, values)}))
    curve = reading.entry(0, "loss").runs[0]["curve"]
    assert len(curve["loss"]) == 200
    assert curve["loss"][0] == sum(range(5)) / 5 and curve["step"][-1] == sum(range(996, 1001)) / 5


def test_a_value_that_is_not_finite_stays_visible(tmp_path):
    reading = RunReading.of(make(tmp_path / "run", {"worker 0": book("worker 0", 0, [1.0, None])}))
    assert reading.entry(0, "loss").runs[0]["curve"]["loss"] == [1.0, None]
    page = write_run_report(tmp_path / "run")
    assert 'data-series="s0"' in page.read_text()


class Texts(HTMLParser):
    """What the page says, and the ids of its parts."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.said: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        """Ids of those that can be seen."""
        self.feed(page.read_text())

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.said.append(data.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.ids += [known["id"]] if known.get("id") else []
        self.links += [known["href"]] if tag == "a" and known.get("href") else []
        self.headings += [known["id"]] if tag == "h2" and known.get("id") and "class" not in known else []


def test_the_page(folder):
    page = write_run_report(folder)
    texts = Texts(page)
    assert texts.said[0] == "train: 2 workers"
    for said in (
        "The run ended well.",
        "torus(rule=mean)",
        "worker 1",
        "server 0",
        "Throughput",
        "Where time went",
    ):
        assert said in texts.said
    assert {"value-1-step", "value-1-time", "throughput", "participants"} <= set(texts.ids)
    assert len(texts.ids) == len(set(texts.ids))
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert {"value-1-step.svg", "value-1-time.svg", "throughput.svg"} <= drawn and len(drawn) == 5
    for path in (folder / "figures").iterdir():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "src=" not in page.read_text() and "https:" not in page.read_text()
    assert texts.links == [f"#{name}" for name in texts.headings]
    assert "value-1-head" in texts.headings


def test_names_that_a_script_gives_are_text_and_nothing_else(tmp_path):
    lines = book("worker 0", 0, [])
    lines.append({"kind": "values", "at_s": 1.0, "step": 1, "values": {"<script>$x_1$": 1.0}})
    page = write_run_report(make(tmp_path / "run", {"worker 0": lines}))
    assert "<script>$" not in page.read_text()
    assert "<script>$x_1$" in Texts(page).said


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, "The run goes on, or was killed: this is what its participants have written so far."),
        ({"failure": {"who": "worker 1", "message": "gone"}}, "The run failed. worker 1: gone"),
    ],
)
def test_a_run_that_has_not_ended_well(more, sentence, tmp_path):
    folder = make(tmp_path / "run", {"worker 0": book("worker 0", 0, [1.0])}, **more)
    with metrics_file(folder, "worker 0").open("a") as file:
        file.write('{"kind": "val')
    assert sentence in Texts(write_run_report(folder)).said


def test_a_run_without_any_step(tmp_path):
    page = write_run_report(make(tmp_path / "run", {"worker 0": [opened("worker 0", 0)]}))
    assert "No step was taken, so there is nothing to draw." in Texts(page).said


def test_the_command_knows_which_kind_of_folder_it_is(folder, tmp_path, monkeypatch, capsys):
    for given in (folder, folder / "run.json"):
        monkeypatch.setattr(sys, "argv", ["fast", "report", str(given)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0
        assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    (tmp_path / "run.json").write_text('{"kind": "fast record"}')
    monkeypatch.setattr(sys, "argv", ["fast", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "is not a run.json of a comparison" in capsys.readouterr().err
    with pytest.raises(UsageError, match="is not the folder of a run"):
        RunReading.of(tmp_path)
