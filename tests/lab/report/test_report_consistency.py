"""What a report says about how closely replicas should agree."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from made import Made, Shape, run_json
from test_report_files import Text, page, words

from fast.lab.report.consistency import Mixing, mixing_of, promise_of
from fast.lab.report.reading import Reading

Written = Callable[[str], Path]
STRATEGIES = (
    Made("allreduce()", talk="mean"),
    Made("dpsgd(topology=ring(), moments='keep', rule=mean)", label="dpsgd", apart=0.05),
    Made("dpsgd(topology=full())", label="full", apart=0.02),
    Made("choco(codec=top_k(ratio=0.1), gamma=0.2, topology=ring())", apart=0.1),
    Made("torus", apart=0.04),
    Made("mine.py:Mine(p=1)", apart=0.04),
)


@pytest.fixture(scope="module")
def mixing() -> dict[str, Mixing]:
    shape = Shape(STRATEGIES, workers=8, seeds=(0, 1), ticks=5)
    return {each.entry.label: each for each in mixing_of(Reading(run_json(shape)))}


def test_every_strategy_with_a_topology_has_its_gap(mixing: dict[str, Mixing]) -> None:
    """A ring of 8: (1 + 2 cos 45°) / 3 = 0.8047, to the tenth power 0.114. Gamma 0.2 makes it 1 - 0.2 (1 - 0.8047)."""
    said = {label: (each.factor, each.gap, each.left) for label, each in mixing.items()}
    assert said["dpsgd"] == ("0.8047", "0.1953", "0.11")
    assert said["full"] == ("0.0000", "1.0000", "0")
    assert said["choco"] == ("0.9609", "0.0391", "0.67")
    assert said["torus"][2] == "only gradients are exchanged"
    assert mixing["torus"].promise.graph == "torus of 2 x 4"
    assert set(said) == {
        "dpsgd",
        "full",
        "choco",
        "torus",
    }  # allreduce has no topology, and files aren't read here


def test_the_measured_distance_stands_beside_it(mixing: dict[str, Mixing]) -> None:
    assert {label: float(each.measured) for label, each in mixing.items()} == {
        "dpsgd": 0.05, "full": 0.02, "choco": 0.1, "torus": 0.04,
    }  # fmt: skip


def test_the_page_has_both_and_says_what_the_prediction_leaves_out(written: Written) -> None:
    """Four workers: (1 + 2 cos 90°) / 3 and (1 + 2 cos 180°) / 3 are 1/3 in size, and to the tenth power 1.7e-5."""
    html = page(written("typical"))
    rows = {row[0]: row[1:] for row in Text(html).rows if len(row) == 6 and " of " in row[1]}
    assert rows["dpsgd"] == ["ring of 4", "0.3333", "0.6667", "1.7e-05", "0.0500"]
    assert rows["torus"] == ["torus of 2 x 2", "0.3333", "0.6667", "only gradients are exchanged", "0.0400"]
    assert "every gradient pulls the replicas apart again" in words(html)
    assert "spectral gap" in words(html)


def test_the_same_numbers_as_a_table(written: Written) -> None:
    with (written("typical") / "tables" / "mixing.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["label"]: row for row in csv.DictReader(file)}
    assert float(rows["dpsgd"]["lambda_2"]) == pytest.approx(1 / 3)
    assert float(rows["dpsgd"]["spectral_gap"]) == pytest.approx(2 / 3)
    assert rows["dpsgd"]["not_predicted_because"] == ""
    assert rows["torus"]["not_predicted_because"] == "only gradients are exchanged"


def test_push_sum_has_the_promise_of_its_shares() -> None:
    """On a star of 5 differences between those around it are halved; mixing weights would leave four fifths."""
    found = promise_of("sgp(topology=star())", 5)
    assert found is not None and found.spectrum.factor == pytest.approx(0.5) and found.left_out == ""
    for call, left_out in (("osgp", ""), ("osgp(overlap=2)", "letters are mixed in some steps later")):
        promise = promise_of(call, 5)
        assert promise is not None and promise.left_out == left_out


def test_who_has_no_promise() -> None:
    assert mixing_of(Reading(run_json(Shape(STRATEGIES[:1])))) == []
    assert promise_of("dpsgd", 1) is None and promise_of("dpsgd", 513) is None
    assert promise_of("allreduce", 8) is None and promise_of("mine.py:Mine", 8) is None
    assert promise_of("no such thing", 8) is None
