"""What a report leaves behind: tables with the right numbers, figures for paper, one page."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from xml.etree import ElementTree

import pytest
from made import SHAPES, SUMMARISED, TYPICAL, Made, Shape, run_json, thirty

from fast.lab.report import write_report
from fast.lab.verdict import verdict

Written = Callable[[str], Path]
SVG = "{http://www.w3.org/2000/svg}"
EXTERNAL = re.compile(r"""(?:src|href|url|action|@import)\s*[=(:]\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)
FEW = [name for name in SHAPES if name != "thirty"]


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


class Text(HTMLParser):
    """Cells of tables by row, and all the text outside of scripts, styles and figures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.said = ""
        self._inside: list[str] = []
        self.feed(html.replace("<wbr>", ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "input", "br", "path", "use"):
            self._inside.append(tag)
        if tag in ("dt", "dd", "div", "p", "li", "td", "th", "h2", "pre"):
            self.said += " "
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if {"script", "style", "svg"} & {*self._inside}:
            return
        self.said += data
        if {"td", "th"} & {*self._inside}:
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())


def words(html: str) -> str:
    return " ".join(Text(html).said.replace("\u202f", " ").split())


# Tables


def test_the_summary_has_the_statistics_of_the_results(written: Written) -> None:
    """Independently: from the rows of results.csv, and not from what the report was given."""
    folder = written("typical")
    results = table(folder, "results")
    assert len(table(folder, "summary")) == len(TYPICAL)
    for line in table(folder, "summary"):
        mine = [each for each in results if each["strategy"] == line["strategy"]]
        times = [float(each["time_to_target_s"]) for each in mine if each["time_to_target_s"]]
        assert int(line["reached"]) == len(times)
        assert float(line["time_to_target_s_mean"]) == pytest.approx(fmean(times))
        assert float(line["time_to_target_s_std"]) == pytest.approx(stdev(times) if len(times) > 1 else 0)
        assert float(line["final_score_max"]) == max(float(each["final_score"]) for each in mine)


def test_results_have_one_row_per_strategy_and_seed_with_errors(written: Written) -> None:
    data, rows = run_json(SHAPES["troubled"]()), table(written("troubled"), "results")
    assert len(rows) == 18
    expected = {(row["strategy"], str(row["seed"])): row for row in data["results"]}
    for row in rows:
        source = expected.pop((row["strategy"], row["seed"]))
        assert row["error"] == source.get("error", "")
        assert row["final_score"] == ("" if source.get("final_score") is None else str(source["final_score"]))
    assert not expected
    assert {row["diverged"] for row in rows} == {"true", "false", ""}


def test_curves_in_long_format(written: Written) -> None:
    data, rows = run_json(SHAPES["typical"]()), table(written("typical"), "curves")
    assert len(rows) == 6 * 3 * 50
    first = data["results"][0]["curve"]
    mine = [row for row in rows if row["strategy"] == "allreduce()" and row["seed"] == "0"]
    assert [int(row["tick"]) for row in mine] == list(range(50))
    for name in ("at_s", "epochs", "samples", "bytes", "score", "replica_worst"):
        assert [row[name] for row in mine] == ["" if each is None else str(each) for each in first[name]]


def test_staleness_and_time_and_tuning(written: Written) -> None:
    folder = written("typical")
    gossip = {row["staleness"]: int(row["updates"]) for row in table(folder, "staleness")
              if row["label"] == "gossip" and row["seed"] == "1"}  # fmt: skip
    assert gossip == {str(age): round(1000 * 0.6**age) + 1 for age in range(10)}
    spent = [row for row in table(folder, "time") if row["label"] == "ssp" and row["seed"] == "0"]
    assert [row["participant"] for row in spent] == [f"worker {n}" for n in range(4)] + ["server 0"]
    kinds = ("compute_s", "send_s", "wait_s", "merge_s", "idle_s")
    run = run_json(SHAPES["typical"]())["results"][2]
    assert sum(float(spent[0][kind]) for kind in kinds) == pytest.approx(run["duration_s"])
    trials = table(folder, "tuning")
    assert len(trials) == 6 * 8
    assert [row["rate"] for row in trials if row["chosen"] == "true"] == ["1.0"] * 6
    assert [row["score"] for row in trials if row["diverged"] == "true"] == [""] * 6


def test_a_comparison_that_failed_has_tables_without_numbers(written: Written) -> None:
    folder = written("all_failed")
    assert [row["time_to_target_s_mean"] for row in table(folder, "summary")] == ["", ""]
    assert table(folder, "curves") == []
    assert not (folder / "figures").exists()


# The page


def test_the_table_says_what_the_summary_says(written: Written) -> None:
    rows = {row[0].split()[0]: row for row in Text(page(written("typical"))).rows if len(row) == 12}
    summary = {each["label"]: each for each in run_json(SHAPES["typical"]())["summary"]}
    assert set(rows) == {"strategy", *summary}
    for label, stat in summary.items():
        time, score = stat["time_to_target_s"], stat["final_score"]
        spread = f" ± {time['std']:.2f}" if time["n"] > 1 else ""
        assert rows[label][1].replace("\u202f", " ") == f"{time['mean']:.2f} s{spread}"
        assert rows[label][2] == f"{stat['reached']} of 3"
        assert rows[label][3].replace("\u202f", " ") == f"{score['mean']:.3f} ± {score['std']:.3f}"


def test_the_fastest_is_on_top_and_the_failed_at_the_bottom(written: Written) -> None:
    labels = [row[0].split()[0] for row in Text(page(written("troubled"))).rows if len(row) == 12][1:]
    assert labels == ["allreduce", "easgd", "ssp", "gossip", "downpour", "<script>alert('x')</script>"]


def test_what_didnt_work_is_called_by_its_name(written: Written) -> None:
    rows = {row[0].split()[0]: row for row in Text(page(written("troubled"))).rows if len(row) == 12}
    assert (rows["gossip"][1], rows["gossip"][2]) == ("not reached", "0 of 3")
    assert rows["downpour"][3] == "diverged" and "3 of 3 diverged" in rows["downpour"][0]
    assert "1 of 3 failed" in rows["ssp"][0]
    assert rows["<script>alert('x')</script>"][1] == "failed"
    said = words(page(written("troubled")))
    assert "UsageError: needs 4 workers </script><b> at line 3" in said
    assert "seeds 0, 1, 2" in said and "PeerLost: worker 2 left" in said


def test_the_verdict_is_the_one_of_the_run_or_a_new_one(written: Written, tmp_path: Path) -> None:
    data = run_json(SHAPES["all_failed"]())
    assert verdict(data) in words(page(written("all_failed")))
    assert "Somebody's own words." in words(
        write_report({**data, "verdict": "Somebody's own words."}, tmp_path).read_text()
    )


def cautions(shape: Shape, tmp_path: Path) -> str:
    """The list of cautions of a small comparison of this kind."""
    html = write_report(run_json(shape), tmp_path).read_text(encoding="utf-8")
    found = re.search(r'<ul class="cautions">(.*?)</ul>', html, re.DOTALL)
    return words(found[1]) if found else ""


TWO = (Made("allreduce()", error="x"), Made("ssp()", error="x"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "2 cores for 4 workers, and no pace: times say little about real machines: use --pace."),
        ({"seeds": (0,)}, "One seed only: there is no spread"),
        ({"tune": 0}, "Fixed settings: rates were not tuned"),
        ({"at_edge": ("ssp()",)}, "Tuned at the edge of the grid: a better rate may lie beyond it for ssp."),
        ({"ended": False}, "didn't run to its end"),
        ({"pace_s": 0.02}, "Paced: every step takes at least 20.0 ms (--pace)"),
        ({"world_settings": {"kind": "real", "straggler": "4x"}}, "Straggler 4x: workers slept to be that much slower"),
        (
            {"world": "sim", "world_settings": {"kind": "sim", "network": "1gbit", "step": "20ms", "straggler": "4x"}},
            "Simulated: time is virtual and comes from models (network 1gbit, 20ms per step, straggler 4x).",
        ),
    ],
)  # fmt: skip
def test_cautions(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    shape = Shape(TWO, **change)
    assert said in cautions(shape, tmp_path)
    if change:
        assert said not in cautions(Shape(TWO, cores=8), tmp_path)


def test_a_pace_that_was_kept_is_a_note_and_one_that_wasnt_a_warning(tmp_path: Path) -> None:
    one = (Made("allreduce()"),)
    kept = Shape(one, workers=1, ticks=2, pace_s=0.02, pace_exceeded=0.013)
    missed = Shape(one, workers=1, ticks=2, pace_s=0.02, pace_exceeded=0.4)
    said = cautions(kept, tmp_path)
    assert "note: Paced" in said and "Up to 1.3 % of steps" in said
    said = cautions(missed, tmp_path)
    assert "warning: Paced" in said and "Up to 40 % of steps" in said


def test_how_to_repeat_it(written: Written) -> None:
    said = words(page(written("typical")))
    for part in ("fast compare --again run.json", "Some Processor 9", "16.0 GiB", "torch 2.13.0", "commit 0123abc",
                 "CC BY 4.0", "ab" * 32, "dpsgd(topology=ring())", "deadline_s 60"):  # fmt: skip
        assert part in said, part


# Safe, whole, and all in one


@pytest.mark.parametrize("shape", FEW)
def test_nothing_is_loaded_from_elsewhere(shape: str, written: Written) -> None:
    folder = written(shape)
    for path in [folder / "report.html", *folder.glob("figures/*.svg")]:
        assert not EXTERNAL.search(path.read_text(encoding="utf-8")), path
    assert "default-src 'none'" in page(folder)


def test_texts_of_others_are_no_markup(written: Written) -> None:
    """The label and the error of `troubled` try to break out of the text, of attributes and of the script."""
    html = page(written("troubled"))
    assert html.count("<script") == html.count("</script") == 2
    assert "<b>\n  at" not in html
    data = re.search(r'<script type="application/json" id="values">(.*?)</script>', html, re.DOTALL)
    assert data and "<script>alert('x')</script> & co" in json.loads(data[1])["labels"].values()


@pytest.mark.parametrize("shape", FEW)
def test_names_are_unique_and_those_that_are_used_exist(shape: str, written: Written) -> None:
    html = page(written(shape))
    names = re.findall(r'\bid="([^"]+)"', html)
    assert len(names) == len(set(names))
    used = re.findall(r'(?:href="|url\()#([^")]+)', html) + re.findall(r'aria-labelledby="([^"]+)"', html)
    assert set(used) <= set(names)


@pytest.mark.parametrize("shape", FEW)
def test_contents_name_every_section_in_order(shape: str, written: Written) -> None:
    html = page(written(shape))
    contents = re.search(r'<nav class="contents".*?</nav>', html, re.DOTALL)
    assert contents
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', contents[0])
    sections = re.findall(r'<section aria-labelledby="([^"]+)"', html)
    assert [name for name, _ in links] == [name for name in sections if name != "verdict-head"]
    assert all(f'<h2 id="{name}">{text}</h2>' in html for name, text in links)


@pytest.mark.parametrize("shape", FEW)
def test_figures_on_the_page_have_no_colours_of_their_own(shape: str, written: Written) -> None:
    """Else dark mode would not reach them."""
    figures = re.findall(r"<svg viewBox.*?</svg>", page(written(shape)), re.DOTALL)
    assert figures or shape == "all_failed"
    for figure in figures:
        assert not re.search(r"(?:fill|stroke): ?#", figure)
        assert "DejaVu" not in figure


@pytest.mark.parametrize("shape", FEW)
def test_figures_for_paper_are_whole(shape: str, written: Written) -> None:
    paths = sorted(written(shape).glob("figures/*.svg"))
    assert paths or shape == "all_failed"
    for path in paths:
        root = ElementTree.parse(path).getroot()
        assert root.tag == f"{SVG}svg" and root.get("width", "").endswith("pt")
        assert "var(" not in path.read_text(encoding="utf-8")
        assert not list(root.iter(f"{SVG}image")), "figures are drawn, not painted"


def paper_text(path: Path) -> str:
    return " ".join("".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{SVG}text"))


def test_figures_for_paper_have_their_legend_and_their_title_as_text(written: Written) -> None:
    figures = written("typical") / "figures"
    shown = paper_text(figures / "score-time.svg")
    assert all(made.name in shown for made in TYPICAL)
    assert "target 0.94" in shown and "time (s)" in shown
    assert "gossip" in paper_text(figures / "graph-06-gossip.svg")
    assert "age_4)" in paper_text(next((written("long_labels") / "figures").glob("staleness-05-*.svg")))


def test_signs_that_mean_something_elsewhere_stay_text(tmp_path: Path) -> None:
    """Dollars are no formula, an underscore hides nobody, and unknown letters are no warning."""
    labels = ["$x_1$ costs", "_private", "梯度 <&>", "100 %\\alpha"]
    made = tuple(Made(f"s{n}()", label) for n, label in enumerate(labels))
    folder = write_report(run_json(Shape(made, workers=2, seeds=(0,), ticks=3)), tmp_path).parent
    shown = paper_text(folder / "figures" / "score-time.svg")
    assert all(label in shown for label in labels)


def test_lines_of_very_different_length_and_of_none(tmp_path: Path) -> None:
    """Who sent nothing has no place on a logarithmic axis, and the page says so."""
    made = (Made("allreduce()"), Made("alone()", talk="nothing"), Made("rare()", talk="gossip"))
    data = run_json(Shape(made, workers=4, seeds=(0,), ticks=5))
    said = words(write_report(data, tmp_path).read_text(encoding="utf-8"))
    assert "Not on this logarithmic axis, because nothing was sent: alone." in said
    assert "Nobody talks to anybody." in said


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    data = run_json(Shape(TYPICAL[:2], workers=3, seeds=(0, 1), ticks=4))
    first, second = (write_report(data, tmp_path / name).parent for name in ("a", "b"))
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_numbers_that_are_missing_everywhere(tmp_path: Path) -> None:
    """A run whose optional parts are all null still has its page."""
    data = run_json(Shape(TYPICAL[:1], workers=2, seeds=(0,), ticks=2, tune=0))
    row = data["results"][0]
    for name in (
        "timeline",
        "graph",
        "participants",
        "staleness",
        "curve",
        "samples_per_s",
        "scaling_efficiency",
    ):
        row[name] = None
    data["summary"][0] |= dict.fromkeys(SUMMARISED)
    data |= {"facts": None, "machine": None, "versions": None, "commit": None, "timestamps": None}
    assert "No run has a score that could be drawn." in words(write_report(data, tmp_path).read_text())


def test_a_folder_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OSError):
        write_report(run_json(SHAPES["all_failed"]()), tmp_path / "taken")


def test_nothing_unfinished_is_left(written: Written) -> None:
    assert not [path for path in written("typical").rglob("*") if path.name.startswith(".")]


@pytest.mark.long
def test_thirty_strategies(tmp_path: Path) -> None:
    folder = write_report(run_json(thirty()), tmp_path).parent
    assert len(list(folder.glob("figures/graph-*.svg"))) == 30
    assert len([row for row in Text(page(folder)).rows if len(row) == 12]) == 31
    assert all(made.name in paper_text(folder / "figures" / "score-time.svg") for made in thirty().strategies)
