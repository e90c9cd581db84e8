"""The picture of a sweep: every mark and label where it belongs, and none on top of another."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_plans import OWN

from fast.lab import Plan, Simulated
from fast.lab.report.look import GROUND
from fast.lab.sweep import Point, Sweep, Swept
from fast.lab.sweep.labels import Box, Label, placed
from fast.lab.sweep.picture import Scale, draw_trade_off
from fast.loop.loading import strategy_from

BOUNDS = Box(0, 0, 500, 300)
labels = st.builds(Label, st.floats(0, 500), st.floats(0, 300), st.floats(10, 150), st.floats(5, 12))


def covers(one: Box, other: Box) -> bool:
    """By the part that both have."""
    across = min(one.right, other.right) - max(one.left, other.left)
    up = min(one.top, other.top) - max(one.bottom, other.bottom)
    return across > 0 and up > 0


@given(st.lists(labels, max_size=14))
def test_no_label_covers_another_or_a_mark(wanted: list[Label]) -> None:
    marks = [Box(label.x, label.y, label.x, label.y).grown(3) for label in wanted]
    found = placed(wanted, marks, BOUNDS)
    boxes = [box for box in found if box is not None]
    assert len(found) == len(wanted)
    for number, box in enumerate(boxes):
        assert 0 <= box.left <= box.right <= 500 and 0 <= box.bottom <= box.top <= 300
        assert not any(covers(box, other) for other in [*boxes[:number], *marks])
    for label, box in zip(wanted, found, strict=True):
        if box is not None:
            assert box.right - box.left == pytest.approx(label.width)
            assert box.top - box.bottom == pytest.approx(label.height)


def test_a_label_alone_stands_to_the_right_of_its_mark() -> None:
    (box,) = placed([Label(100, 100, 60, 10)], [], BOUNDS)
    assert box == Box(105, 95, 165, 105)
    (box,) = placed([Label(480, 100, 60, 10)], [], BOUNDS)
    assert box is not None and box.right <= 500, "and elsewhere where the picture ends"


@given(st.floats(1e-6, 1e12), st.floats(1, 1e9), st.booleans())
def test_every_axis_has_some_ticks_and_not_many(low: float, factor: float, zero: bool) -> None:
    scale = Scale.of([low, low * factor, *([0.0] if zero else [])])
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 18 and ticks == sorted(set(ticks))
    assert all(scale.low <= tick <= scale.high for tick in ticks)
    assert scale.low < scale.at(low) <= scale.at(low * factor) < scale.high
    assert not zero or scale.low < scale.at(0.0) == ticks[0] < low


def swept(costs: dict[str, list[tuple[float, int] | None]]) -> Swept:
    """Of each strategy so many settings, which differ in their rates."""
    plan = Plan.of(OWN, ",".join(costs), 2, epochs=1, world=Simulated())
    tried = {
        strategy_from(name).call: [
            Point(strategy_from(name).call, 1.0 + number, 0.9, *(cost or (None, None)))
            for number, cost in enumerate(each)
        ]
        for name, each in costs.items()
    }
    return Swept(Sweep.of(plan, rates=[1.0]), tried)


def texts(svg: str) -> list[str]:
    return [
        "".join(each.itertext()) for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")
    ]


COSTS: dict[str, list[tuple[float, int] | None]] = {
    "allreduce": [(1.0, 9_000_000), (2.0, 8_000_000)],
    "local_sgd": [(4.0, 2_000_000), (4.5, 9_500_000), None],
    "gossip": [(5.0, 90_000_000), (6.0, 95_000_000)],
    "dpsgd": [None],
}


def test_the_picture_names_what_is_unbeaten_and_the_fastest_of_each() -> None:
    svg = draw_trade_off(swept(COSTS))
    assert svg is not None
    said = texts(svg)
    for label in ("allreduce", "allreduce, rate x 2", "local_sgd", "gossip"):
        assert label in said
    assert "gossip, rate x 2" not in said and "local_sgd, rate x 2" not in said, "others beat these"
    assert "dpsgd (never at the target)" in said
    assert "time to target (s)" in said and "sent until then (MB)" in said
    assert svg == draw_trade_off(swept(COSTS)), "the same bytes again"


def test_marks_are_where_time_and_bytes_say() -> None:
    """On logarithmic axes: four times as far for sixteen times as much as for twice; higher for more bytes."""
    svg = draw_trade_off(swept({"allreduce": [(1.0, 64_000), (2.0, 16_000), (16.0, 1_000)]}))
    assert svg is not None
    edged = re.findall(rf'<use x="([\d.]+)" y="([\d.]+)" style="[^"]*stroke: {GROUND.light}', svg)
    first, second, third = sorted((float(x), float(y)) for x, y in edged)
    assert (third[0] - first[0]) / (second[0] - first[0]) == pytest.approx(4, rel=1e-3)
    assert (third[1] - first[1]) / (second[1] - first[1]) == pytest.approx(3, rel=1e-3)
    assert first[1] < second[1] < third[1], "y counts from above"
    assert draw_trade_off(swept({"allreduce": [(1.0, 64_000), (2.0, 16_000), (16.0, 1_001)]})) != svg


def test_nothing_is_drawn_where_nobody_reached_the_target() -> None:
    assert draw_trade_off(swept({"allreduce": [None, None]})) is None


def test_who_sends_nothing_is_at_the_foot() -> None:
    svg = draw_trade_off(swept({"allreduce": [(1.0, 0)], "gossip": [(2.0, 0)]}))
    assert svg is not None and "0" in texts(svg)
