"""What becomes of moments on real workers, where rounds of several sizes share one memory."""

from __future__ import annotations

import pytest

from fast.loop.loading import strategy_from
from preset_bodies import own_weights, simulation
from running import Runner

STEPS = (24, 9, 16)


@pytest.mark.real
@pytest.mark.parametrize(
    "call", ["local_sgd(tau=4, moments='correct')", "post_local_sgd(tau=4)", "osgp(moments='average')"]
)
def test_real_workers_do_what_simulated_ones_do_bit_for_bit(call: str, runner: Runner) -> None:
    """Also where some leave early. The table of all presets has the other policies."""
    results = runner.results("preset_bodies:train", 3, strategy=call, steps=STEPS, together=False)
    simulated = simulation(strategy_from(call), STEPS)
    simulated.run()
    assert [result["settled"] for result in results] == own_weights(simulated)
