"""What lies behind the figures: numbers as text, curves of several seeds as one, colours, places."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fast.lab.report.activity import chosen, horizon, shares_by_participant, shares_of_workers
from fast.lab.report.circle import places
from fast.lab.report.curves import foot
from fast.lab.report.look import GROUND, STRATEGIES, look
from fast.lab.report.matrix import shades, traffic
from fast.lab.report.multiples import bins, histogram, shares
from fast.lab.report.reading import Reading
from fast.lab.report.series import band, envelope
from fast.lab.report.traffic import Graph
from fast.lab.report.words import BYTES, COUNT, MEMORY, PLAIN, SCORE, SECONDS, SHARE, Measure, plural

# Numbers as text


@pytest.mark.parametrize(
    ("measure", "value", "text"),
    [
        (SECONDS, 0.0, "0 s"),
        (SECONDS, 0.0123, "12.3 ms"),
        (SECONDS, 3.0, "3 s"),
        (SECONDS, 12.345, "12.3 s"),
        (SECONDS, 900, "15.0 min"),
        (BYTES, 999, "999 B"),
        (BYTES, 1_234_567, "1.23 MB"),
        (MEMORY, 183 * 2**20, "183 MiB"),
        (COUNT, 64, "64"),
        (COUNT, 0.5, "0.500"),
        (COUNT, 15_600, "15.6 k"),
        (SHARE, 0.314, "31 %"),
        (SCORE, 0.94, "0.940"),
        (PLAIN, 0.0000123, "1.2e-05"),
        (PLAIN, 0.0123, "0.0123"),
        (PLAIN, None, "–"),
    ],
)
def test_three_digits_and_a_unit(measure: Measure, value: float | None, text: str) -> None:
    assert measure.write(value).replace("\u202f", " ") == text


def test_the_spread_has_the_unit_and_the_decimals_of_its_mean() -> None:
    stat = {"mean": 1.5e6, "std": 2.04e4, "min": 1e6, "max": 2e6, "n": 3}
    assert [text.replace("\u202f", " ") for text in BYTES.spread(stat)] == ["1.50 MB", "± 0.02"]
    assert BYTES.extent(stat).replace("\u202f", " ") == "1.00 MB to 2.00 MB over 3 seeds"
    assert BYTES.spread({**stat, "n": 1})[1] == ""
    assert BYTES.spread(None) == ("–", "")


def test_plurals() -> None:
    assert [plural(n, "strategy") for n in (1, 2)] == ["1 strategy", "2 strategies"]
    assert plural(0, "seed") == "0 seeds"


# Curves of several seeds


def run(at_s: list[float], score: list[float | None], **more: Any) -> dict[str, Any]:
    return {"curve": {"at_s": at_s, "score": score, **more}}


def test_seeds_are_read_at_common_places() -> None:
    """By hand: the second seed's line is 0.2 + 0.2 (t - 1) and stays at 0.6 after its end at 3."""
    found = band([run([1, 2, 4], [0.0, 0.5, 0.9]), run([1, 3], [0.2, 0.6])], "at_s")
    assert found.x.tolist() == [1, 2, 3, 4]
    assert found.mean == pytest.approx([0.1, 0.45, 0.65, 0.75])
    assert found.low == pytest.approx([0.0, 0.4, 0.6, 0.6])
    assert found.high == pytest.approx([0.2, 0.5, 0.7, 0.9])


def test_the_line_begins_where_all_seeds_have_begun() -> None:
    assert band([run([1, 2, 3], [0, 0, 0]), run([2, 3], [0, 0])], "at_s").x.tolist() == [2, 3]


def test_a_lost_model_counts_no_longer_and_is_marked() -> None:
    found = band([run([1, 2, 3], [0.5, None, None]), run([1, 2, 3], [0.1, 0.2, 0.3])], "at_s")
    assert found.mean == pytest.approx([0.3, 0.2, 0.3])
    assert found.lost == [(1.0, 0.5)]


def test_a_run_that_never_had_a_score_has_no_line() -> None:
    assert not band([run([1, 2], [None, None])], "at_s")
    assert not band([], "at_s")


def test_a_single_tick_is_a_point() -> None:
    found = band([run([2], [0.5]), run([2], [0.7])], "at_s")
    assert (found.x.tolist(), found.low.tolist(), found.high.tolist()) == ([2], [0.5], [0.7])
    assert found.mean == pytest.approx([0.6])


def test_many_ticks_are_thinned_out() -> None:
    ticks = list(range(1000))
    found = band([run([float(t) for t in ticks], [t / 1000 for t in ticks])], "at_s")
    assert len(found.x) == 200
    assert found.mean == pytest.approx(found.x / 1000)


def test_replicas_are_drawn_over_gaps_but_not_beyond_a_loss() -> None:
    scores: list[float | None] = [0.5, 0.6, 0.7, None]
    single = run([1, 2, 3, 4], scores, worst=[0.1, None, 0.3, None], best=[0.2, None, 0.5, None])
    found = envelope([single], "at_s", "worst", "best")
    assert (found.x.tolist(), found.low.tolist(), found.high.tolist()) == ([1, 3], [0.1, 0.3], [0.2, 0.5])


def test_the_spread_of_seeds_is_not_one_of_replicas() -> None:
    seeds = [run([1.0], [level], worst=[level], best=[level]) for level in (0.2, 0.6)]
    found = envelope(seeds, "at_s", "worst", "best")
    assert found.low == pytest.approx([0.4]) and found.high == pytest.approx([0.4])


@pytest.mark.parametrize(
    ("values", "floor", "name"),
    [
        ([0.02, 0.5], 0.01, "0.01"),
        ([0.02, 0.0, 0.5], 0.001, "0"),
        ([1e-9, 0.5], 1e-7, "≤ 1e-07"),
        ([0.0, 1e-9, 0.5], 1e-7, "≤ 1e-07"),
    ],
)
def test_the_foot_of_a_logarithmic_axis(values: list[float], floor: float, name: str) -> None:
    assert foot(np.array(values)) == (pytest.approx(floor), name)


# Staleness


def test_staleness_is_added_over_seeds() -> None:
    assert histogram([{"staleness": {"0": 2, "10": 1}}, {"staleness": {"0": 1, "3": 4}}]) == {
        0: 3,
        3: 4,
        10: 1,
    }


@given(largest=st.integers(0, 5000))
def test_bins_have_no_gaps_and_reach_the_largest(largest: int) -> None:
    ranges = bins(largest)
    assert ranges[0] == (0, 0)
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))
    assert ranges[-1][0] <= max(largest, 1) <= ranges[-1][1]


@given(counts=st.dictionaries(st.integers(0, 300), st.integers(1, 50), min_size=1))
def test_shares_of_updates_add_up_to_all(counts: dict[int, int]) -> None:
    assert sum(shares(counts, bins(max(counts)))) == pytest.approx(1)


# Time


def participant(name: str, **seconds: float) -> dict[str, Any]:
    nothing = dict.fromkeys(("compute_s", "send_s", "wait_s", "merge_s", "idle_s"), 0.0)
    return {"name": name, **nothing, **{f"{kind}_s": spent for kind, spent in seconds.items()}}


def test_shares_of_time_are_over_all_seeds_and_servers_are_not_workers() -> None:
    first = {"participants": [participant("worker 0", compute=3, wait=1), participant("server 0", wait=5)]}
    second = {"participants": [participant("worker 0", compute=1, wait=3), participant("server 0", merge=5)]}
    found = shares_by_participant([first, second])
    assert found["worker 0"] == {"compute": 0.5, "merge": 0, "send": 0, "wait": 0.5, "idle": 0}
    assert found["server 0"]["wait"] == found["server 0"]["merge"] == 0.5
    assert shares_of_workers([first, second])["compute"] == 0.5


@given(number=st.integers(1, 300))
def test_participants_are_chosen_evenly_with_both_ends(number: int) -> None:
    names = [str(index) for index in range(number)]
    found = chosen(names, 24)
    assert len(found) == len(set(found)) == min(number, 24)
    assert (found[0], found[-1]) == (names[0], names[-1])


def test_the_timeline_is_as_long_as_the_shortest_but_not_cut_by_an_early_end() -> None:
    def lasting(end: float) -> dict[str, Any]:
        return {"worker 0": [("compute", 0.0, end)]}

    assert horizon([lasting(4), lasting(6), lasting(5)]) == 4
    assert horizon([lasting(0.1), lasting(6), lasting(5)]) == 5
    many = {"worker 0": [("compute", float(n), 1.0) for n in range(100)]}
    assert horizon([many], slices=10) == 10


# Who talks to whom


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 16, 64])
@pytest.mark.parametrize("servers", [0, 1, 3])
def test_nobody_is_drawn_over_somebody_else(workers: int, servers: int) -> None:
    points = places(workers, servers)
    assert len(points) == workers + servers
    gaps = [math.dist(a, b) for a, b in itertools.combinations(points, 2)]
    assert min(gaps, default=1.0) > 0.09
    assert all(math.hypot(*point) <= 1.0 + 1e-9 for point in points)


def test_letters_within_a_worker_and_means_of_one_are_not_talk() -> None:
    assert Graph.of({"workers": 1, "servers": 0, "letters": [[0, 0, 3, 99]], "means": [[[0], 4, 0]]}).silent


def test_the_table_of_many_workers_keeps_all_bytes() -> None:
    """100 workers are 25 groups of 4; the ring's letters to the next worker stay in the group 3 times of 4."""
    ring = Graph(100, 2, [(i, (i + 1) % 100, 1, 10.0) for i in range(100)] + [(0, 101, 1, 7.0)], [])
    table = traffic(ring)
    assert table.shape == (26, 26)
    assert table.sum() == 1007
    assert (table[0, 0], table[0, 1], table[24, 0], table[0, 25]) == (30, 10, 10, 7)


def test_a_mean_is_spread_over_its_members() -> None:
    table = traffic(Graph(100, 0, [], [(tuple(range(100)), 5, 625.0)]))
    assert table == pytest.approx(np.ones((25, 25)))


def test_each_tenth_of_the_bytes_is_a_shade_lighter() -> None:
    assert shades(np.array([[100.0, 10.0], [1e-9, 0.0]]), 100.0).tolist() == [[4, 3], [0, -1]]


# Looks


def test_strategies_can_be_told_apart_without_colour() -> None:
    looks = [look(index) for index in range(72)]
    assert len(set(looks)) == 72
    assert len({(each.marker, each.dashes) for each in looks[:9]}) == 9


DICHROMATS = {
    "everything": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}  # fmt: skip
"""Machado, Oliveira and Fernandes 2009: linear RGB as it is seen."""


def linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIE L*a*b*, in which a distance of about 2 can just be seen."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(to_xyz @ np.clip(rgb, 0, 1) / (0.9505, 1, 1.089), 0.009, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", DICHROMATS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stay_apart_for_all_eyes(eyes: str, theme: str) -> None:
    seen = [lab(np.array(DICHROMATS[eyes]) @ linear(getattr(each, theme))) for each in STRATEGIES]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 15


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_have_contrast(theme: str) -> None:
    """3 to 1 at least, as accessible graphics need (WCAG 1.4.11)."""

    def luminance(colour: str) -> float:
        return float(linear(colour) @ (0.2126, 0.7152, 0.0722))

    ground = luminance(getattr(GROUND, theme))
    for each in STRATEGIES:
        low, high = sorted((ground, luminance(getattr(each, theme))))
        assert (high + 0.05) / (low + 0.05) >= 3, each


# Labels


def entries(*labels: tuple[str, str]) -> list[str]:
    rows = [
        {"strategy": call, "asked": call, "label": label, "seed": 0, "error": "x"} for label, call in labels
    ]
    return [entry.label for entry in Reading({"results": rows}).entries]


def test_labels_that_are_shared_give_way_to_calls() -> None:
    assert entries(("a", "a(x=1)"), ("a", "a(x=2)"), ("b", "b()")) == ["a(x=1)", "a(x=2)", "b"]
    assert entries(("a\x00\n", "a()")) == ["a��"]
