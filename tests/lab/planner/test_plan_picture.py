"""Pictures of the planner: bars that are as long as they say, maps that show what the advisor says."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from fast.lab import Simulated
from fast.lab.planner.advice import Ranked
from fast.lab.planner.closed_forms import PATTERNS, Exchange
from fast.lab.planner.picture import LONGEST, advice_figure, advice_picture, said_of, shown_s
from fast.lab.planner.prediction import Prediction
from fast.lab.planner.situation import Situation
from fast.lab.planner.techniques import TECHNIQUES
from fast.lab.report.canvas import drawing
from fast.lab.report.look import TIME
from fast.lab.sizes import Sizes
from fast.loop.loading import strategy_from

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMPUTE, WAIT = TIME["compute"].light, TIME["wait"].light


def script(name: str) -> ModuleType:
    spec = util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maps = script("make_maps")


def ranked(call: str, step_s: float, computing: float, samples: float = 1.0, time: float = 1.0) -> Ranked:
    strategy = strategy_from(call)
    technique = TECHNIQUES["DP+central+sync" if call == "allreduce" else "DP+decentral+sync"]
    prediction = Prediction(step_s, 1.0, 0.0, 2.0, computing, None, 1, 4, 24)
    return Ranked(call.partition("(")[0], call, strategy, technique, prediction, samples, time)


def advice(*found: Ranked) -> Any:
    situation = Situation.of(Sizes.of_parameters(25e6), 4, Simulated(network="1gbit", step="0.2s"))
    return SimpleNamespace(situation=situation, ranked=found)


THREE = (
    ranked("local_sgd(tau=8)", 0.25, 0.8, 1.2, 0.3),
    ranked("sgp", 0.4, 0.5, 1.5, 0.6),
    ranked("allreduce", 1.0, 0.2),
)


# Bars


def bars(*found: Ranked) -> list[tuple[float, float, float, str]]:
    """Lane, begin, length and colour of every box."""
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    with drawing():
        plot = advice_figure(advice(*found)).figure.axes[0]
    boxes = [each for each in plot.get_children() if isinstance(each, Rectangle) and each is not plot.patch]
    return [
        (each.get_y() + each.get_height() / 2, each.get_x(), each.get_width(), to_hex(each.get_facecolor()))
        for each in boxes
    ]


def test_a_bar_is_as_long_as_a_step_and_says_how_much_computes() -> None:
    found = bars(*THREE)
    expected = [(0, 0.25, 0.8), (1, 0.4, 0.5), (2, 1.0, 0.2)]
    assert len(found) == 6
    for lane, step_s, computing in expected:
        compute, wait = [each for each in found if each[0] == pytest.approx(lane)]
        assert compute[1:] == (0.0, pytest.approx(step_s * computing), COMPUTE)
        assert wait[1:] == (
            pytest.approx(step_s * computing), pytest.approx(step_s * (1 - computing)), WAIT,
        )  # fmt: skip


def test_a_very_long_bar_is_broken_off() -> None:
    long = ranked("bigdl", 50.0, 0.001)
    assert shown_s([THREE[0], long]) == LONGEST * 0.25
    assert shown_s(THREE) == 1.0
    assert sum(width for lane, _, width, _ in bars(THREE[0], long) if lane > 0.5) == pytest.approx(
        LONGEST * 0.25
    )
    assert said_of(long).startswith("50\u202fs, "), "the words tell its whole length"


def test_the_words_have_the_numbers_that_decide() -> None:
    assert said_of(THREE[0]) == "250\u202fms, 1.2 x the samples: 0.30 x the time"


def test_the_picture_of_an_advice() -> None:
    text = advice_picture(advice(*THREE))
    assert text == advice_picture(advice(*THREE)), "the same bytes every time"
    root = ElementTree.fromstring(text)
    shown = [each.text or "" for each in root.iter() if each.tag.endswith("text")]
    order = [shown.index(call) for call in ("local_sgd(tau=8)", "sgp", "allreduce")]
    assert order == sorted(order)
    for said in (*map(said_of, THREE), "computes", "waits and exchanges"):
        assert said in shown
    assert any("25,000,000 parameters, 4 workers" in each for each in shown)


def test_an_advice_without_candidates_has_a_picture_too() -> None:
    assert ElementTree.fromstring(advice_picture(advice())).tag.endswith("svg")


# Delays


def test_the_delays_are_up_to_date() -> None:
    assert (DOCS / "pictures" / "delays.svg").read_text(encoding="utf-8") == maps.draw_delays(), (
        "run: python docs/make_maps.py delays"
    )


def test_curves_go_through_the_closed_forms() -> None:
    """ResNet-50 over 1 Gbit/s on 16 workers, a ring: 1592.6 ms."""
    exchange = Exchange.of(102.4e6, 125e6)
    assert exchange.seconds("ring", 16) == pytest.approx(1.5926, rel=1e-4)
    panel = "\n".join(maps.delay_panel(maps.MODELS[1], maps.LINKS[0], (0.0, 0.0), labelled=False, last=False))
    number = list(PATTERNS).index("ring")
    points = re.search(rf'class="curve p{number}" points="([^"]+)"', panel)
    assert points is not None
    x, y = map(float, points[1].split()[14].split(","))
    assert x == pytest.approx(maps.PANEL_WIDTH * 3 / 5, abs=0.06), "16 is the 4th of 2, 4, 8, 16, 32, 64"
    assert y == pytest.approx(maps.delay_y(0.0, 1.5926), abs=0.06)
    assert maps.delay_y(0.0, 10**0.5) == pytest.approx(maps.PANEL_HEIGHT / 2), "from 10 ms to 1000 s"


# Maps


@pytest.mark.parametrize("name", list(maps.MAPS))
def test_a_map_shows_what_was_chosen(name: str) -> None:
    map_ = maps.MAPS[name]
    rows, columns = len(map_.down.values), len(map_.across.values)
    assert len(map_.down.names) == rows and len(map_.across.names) == columns
    one = maps.Choice("DP+central+sync", "allreduce")
    other = maps.Choice("DP+decentral+sync", "local_sgd(tau=16)")
    found = [[other if column == 1 else one for column in range(columns)] for _ in range(rows)]
    root = ElementTree.fromstring(maps.draw_map(map_, found))
    titles = [each[0].text for each in root.iter() if each.tag.endswith("rect") and len(each)]
    assert titles == [each.call for row in found for each in row]
    shown = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert TECHNIQUES["DP+decentral+sync"].words in shown
    assert TECHNIQUES["DP+central+async"].words not in shown, "only what there is needs a legend"


@pytest.mark.parametrize(
    ("name", "row", "column"),
    [("stragglers", 5, 0), pytest.param("network", 2, 0, marks=pytest.mark.long)],
)
def test_the_advisor_still_says_what_a_map_shows(name: str, row: int, column: int) -> None:
    """One cell; all of them would take minutes."""
    file = DOCS / "pictures" / maps.MAPS[name].file
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    titles = [each[0].text for each in root.iter() if each.tag.endswith("rect") and len(each)]
    columns = len(maps.MAPS[name].across.values)
    assert titles[row * columns + column] == maps.choice((maps.MAPS[name], row, column)).call, (
        f"run: python docs/make_maps.py {name}"
    )


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("network", "a model (132.9 million parameters) on 8 workers, 0.5 s of computing a step"),
        ("stragglers", "a model (132.9 million parameters) on infiniband, 0.5 s of computing a step"),
    ],
)
def test_a_map_can_be_drawn_of_any_model(name: str, title: str) -> None:
    asked = Namespace(parameters=132.9e6, step="0.5s", workers=8, network="infiniband")
    map_ = maps.asked_for(maps.MAPS[name], asked)
    assert map_.title == title
    situation = map_.situation(map_.subject, map_.across.values[0], map_.down.values[0])
    assert situation.model_bytes == 4 * 132.9e6
    assert situation.workers == (8 if name == "network" else 4)
    nothing = Namespace(parameters=None, step=None, workers=None, network=None)
    assert maps.asked_for(maps.MAPS[name], nothing) == maps.MAPS[name]
