"""HOGWILD! on real processes: one memory, changed by all of them without locks."""

import pytest
import torch

from fast.errors import UsageError
from fast.runtime.journal import check_recordable
from fast.strategies.presets import hogwild
from hogwild_bodies import target
from running import Runner, from_text

WORKERS = 4


@pytest.mark.real
def test_atomic_additions_are_conserved(runner: Runner):
    """Every component has been counted up once by each step of each worker, whatever came in between."""
    steps = 40
    results = runner.results(
        "hogwild_bodies:count", WORKERS, strategy="hogwild(atomic=True)", size=3000, steps=steps
    )
    for result in results:
        assert result["counted"] == [WORKERS * steps]
        assert result["same"], "who shares a memory ends with the same values"


@pytest.mark.real
def test_workers_with_different_supports_do_not_disturb_each_other(runner: Runner):
    """The bits are those of each worker's own descent, taken alone: no other can have touched its places."""
    size, steps = 203, 50
    results = runner.results(
        "hogwild_bodies:descend_apart", WORKERS, strategy="hogwild", size=size, steps=steps
    )
    w, velocity = torch.zeros(size), torch.zeros(size)
    for _ in range(steps):
        velocity = velocity * 0.5 + (w - target(size))
        w = w - 0.1 * velocity
    for result in results:
        assert torch.equal(from_text(result, torch.float32), w)


def test_a_run_can_not_be_recorded():
    with pytest.raises(UsageError, match="no run of it can be repeated"):
        check_recordable(hogwild())
