"""docs/how-to/topologies.md: its code runs, its table and its picture are what the code makes."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import fast
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.testing import check_strategy
from fast.testing.strategy import LeastSquares, batches
from fast.view import View

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "how-to" / "topologies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@cache
def page() -> tuple[dict[str, Any], str]:
    """All blocks run one after the other, as a reader would: the names they make, what they print."""
    names: dict[str, Any] = {"__name__": "page"}
    printed = io.StringIO()
    for number, block in enumerate(BLOCKS):
        if block.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(block, names, f"block {number}", None, None)
            report: list[str] = []
            runner = doctest.DocTestRunner(verbose=False)
            failed = runner.run(example, out=report.append, clear_globs=False).failed
            assert not failed, "".join(report)
            names.update(example.globs)
        else:
            with contextlib.redirect_stdout(printed):
                exec(compile(block, f"block {number}", "exec", dont_inherit=True), names)
    return names, printed.getvalue()


def test_the_code_does_what_the_page_says() -> None:
    names, _ = page()
    assert len(BLOCKS) > 10
    assert {"strategy", "cells", "petersen", "shares", "PushSum", "Chordal"} <= set(names)


def test_the_table_is_up_to_date() -> None:
    _, printed = page()
    assert printed.count("\n") == 15
    assert f"|---|---|---|---|---|---|---|\n{printed}\n" in TEXT, f"the table should be:\n{printed}"


def test_every_topology_is_on_the_page() -> None:
    missing = [name for name in fast.topologies.TOPOLOGIES if not re.search(rf"\b{name}\b", TEXT)]
    assert not missing


def test_the_picture_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    assert spec is not None and spec.loader is not None
    made = sys.modules["make_pictures"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    drawn = (DOCS / "pictures" / "topologies.svg").read_text(encoding="utf-8")
    assert drawn == made.draw_topologies(), "run: python docs/make_pictures.py"
    names = {panel.topology.partition("(")[0] for panel in made.PANELS}
    assert names == set(fast.topologies.TOPOLOGIES) - {"rotating", "shuffled"}


# The strategy that the page shows

UNBALANCED = fast.topologies.Channels(one_way=[(0, 1), (0, 2), (1, 2), (2, 3), (3, 0), (1, 3)])
each_topology = pytest.mark.parametrize("topology", [fast.topologies.Exponential(), UNBALANCED], ids=repr)
STEPS, RATE = 40, 0.05


@each_topology
def test_push_sum_passes_the_kit(topology: fast.topologies.Topology) -> None:
    check_strategy(lambda: page()[0]["PushSum"](topology=topology), workers=[4])


@each_topology
def test_push_sum_by_hand(topology: fast.topologies.Topology) -> None:
    """Four workers in the simulator against x, w and z = x / w in a plain loop."""
    replicas = [LeastSquares(RATE) for _ in range(4)]
    workers = [SimWorker(each, batches(number, STEPS), each.compute) for number, each in enumerate(replicas)]
    strategy = page()[0]["PushSum"](topology=topology)
    Simulation(strategy, workers, network=Network(1e9, 0.001), compute=Compute(), seed_torch=False).run()

    data, view = [[*batches(number, STEPS)] for number in range(4)], View(0, (0, 1, 2, 3))
    x, w = [torch.zeros_like(replicas[0].weights) for _ in range(4)], [1.0] * 4
    for step in range(STEPS):
        new_x, new_w = [torch.zeros_like(each) for each in x], [0.0] * 4
        for i in range(4):
            model = LeastSquares(RATE)
            model.weights.copy_(x[i] / w[i])
            model.compute(data[i][step])
            moved = x[i] - RATE * model.gradient
            audience = topology.audience(i, view, step)
            for j, share in {**audience, i: 1 - sum(audience.values())}.items():
                new_x[j] += share * moved
                new_w[j] += share * w[i]
        x, w = new_x, new_w
    assert sum(w) == pytest.approx(4)
    for i in range(4):
        torch.testing.assert_close(replicas[i].weights, x[i] / w[i], rtol=1e-10, atol=1e-12)
