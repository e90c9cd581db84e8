"""The region that a chart of scores shows first, names that wrap, and texts that leave each other room."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from made import SHAPES, run_json
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from fast.lab.report import pictures
from fast.lab.report.canvas import Drawn, drawing
from fast.lab.report.reading import Reading
from fast.lab.report.region import AFTER, NEAR, below, near_region, whole_region
from fast.lab.report.series import Band
from fast.lab.report.svg import both_svgs
from fast.lab.report.template import breakable, headings


def line(*score: float) -> Band:
    """A score at each of the moments 1, 2, 3, ..."""
    values = np.array(score)
    return Band(np.arange(1.0, len(score) + 1), values, values, values)


def test_the_region_ends_soon_after_the_last_has_reached_the_target() -> None:
    """At 2 and at 4; the plateau after that is long and says nothing."""
    early, late = line(0.5, 0.95, *[0.96] * 20), line(0.1, 0.5, 0.9, 0.94, *[0.95] * 18)
    assert near_region([early, late], 0.94).until == pytest.approx(4 * AFTER)
    assert whole_region([early, late], 0.94).until == 22


def test_the_region_is_as_long_as_the_runs_while_one_of_them_still_climbs() -> None:
    reached, climbing = line(0.95, *[0.96] * 9), line(*np.linspace(0.85, 0.93, 10))
    assert near_region([reached, climbing], 0.94).until == 10


def test_one_that_stays_far_below_doesnt_stretch_the_region_and_is_named() -> None:
    good, bad = line(0.5, 0.95, *[0.96] * 8), line(*[0.3] * 10)
    region = near_region([good, bad], 0.94)
    assert region.until == pytest.approx(2 * AFTER)
    assert region.low == pytest.approx(0.94 - 2 * max(0.96 - 0.94, NEAR))
    assert below(bad, region) and not below(good, region)


def test_without_any_at_the_target_the_region_is_around_the_best_plateau() -> None:
    best, other = line(0.2, 0.80, 0.82), line(0.1, 0.70, 0.78)
    region = near_region([best, other], 0.9)
    assert region.low == pytest.approx(0.82 - 2 * (0.9 - 0.82))
    assert (region.high, region.until) == (0.9, 3)
    assert not below(other, region)


def test_a_region_is_never_larger_than_the_whole() -> None:
    curves = [line(0.93, 0.95)]
    assert near_region(curves, 0.94).low == whole_region(curves, 0.94).low == 0.93


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gossip", ["gossip"]),
        ("ssp(bound=3)", ["ssp(", "bound=3)"]),
        ("dpsgd(topology=ring)", ["dpsgd(", "topology=", "ring)"]),
        ("a(b=c(0.5,d=1), e=2)", ["a(", "b=", "c(0.5,", "d=1), e=2)"]),
        ("<b>&", ["&lt;b&gt;&amp;"]),
    ],
)
def test_names_break_between_arguments(name: str, parts: list[str]) -> None:
    assert breakable(name) == "<wbr>".join(parts)


def test_headings_of_a_body() -> None:
    assert headings('<h2 id="a">One &amp; two</h2><h2 id="b" class="unseen">No</h2><h2>No</h2>') == [
        ("a", "One &amp; two")
    ]


def written_texts(figure: Figure) -> list[Text]:
    """Those that are seen. matplotlib also has the ticks next to an axis at hand, and doesn't draw them."""
    axes = [axis for plot in figure.axes for axis in (plot.xaxis, plot.yaxis)]
    unseen = {
        tick.label1
        for axis in axes
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text not in unseen]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def collisions(figure: Figure) -> list[tuple[str, str]]:
    FigureCanvasAgg(figure).draw()
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in written_texts(figure)]
    inside = [(text, box) for text, box in boxes if figure.bbox.overlaps(box)]
    return [
        (one, other) for (one, box), (other, its) in itertools.combinations(inside, 2) if box.overlaps(its)
    ]


def test_two_texts_in_one_place_collide() -> None:
    figure = Figure()
    figure.text(0.5, 0.5, "here"), figure.text(0.5, 0.5, "too"), figure.text(0.1, 0.1, "elsewhere")
    assert collisions(figure) == [("here", "too")]


@pytest.mark.parametrize("shape", [name for name in SHAPES if name not in ("thirty", "all_failed")])
def test_texts_on_paper_dont_collide(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: dict[str, Figure] = {}

    def kept(drawn: Drawn, name: str, alt: str) -> Any:
        figures[name] = drawn.figure
        return both_svgs(drawn, name, alt)

    monkeypatch.setattr(pictures, "both_svgs", kept)
    with drawing():
        pictures.draw_pictures(Reading(run_json(SHAPES[shape]())))
        found = {name: collisions(figure) for name, figure in figures.items()}
    assert len(found) > 3
    assert {name: each for name, each in found.items() if each} == {}
