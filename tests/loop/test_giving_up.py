"""Steps that are given up, on real workers."""

from __future__ import annotations

import pytest
import torch

from preset_bodies import OPTIMUM
from running import from_text


@pytest.mark.real
@pytest.mark.parametrize("steps", [[60, 60, 60], [20, 60, 35]], ids=["equal", "unequal"])
def test_a_quorum_that_gives_late_work_up_trains_and_ends(runner, steps):
    """Each worker takes all its steps, also those whose gradient it doesn't send, and all end with one model."""
    results = runner.results(
        "preset_bodies:train",
        3,
        serve="preset_bodies:serve",
        strategy="tensorflow(backups=1, cancel=True)",
        steps=steps,
        together=False,
    )
    assert [result["steps"] for result in results] == steps
    assert len({result["final"] for result in results}) == 1
    assert all(result["bytes"] <= count * 384 for result, count in zip(results, steps, strict=True))
    final = from_text(results[0]["final"], torch.float32)
    assert float((final - OPTIMUM).norm() / OPTIMUM.norm()) < 0.1
