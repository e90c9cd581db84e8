"""What a codec has not sent yet is not lost in steps that don't count."""

import pytest
import torch

from fast.codecs import dgc, error_feedback, power_sgd, top_k
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.strategies.presets import allreduce, torus

from .problem import PlainReplica

SIZE, STEPS = 8, 60


def worker(number: int, quiet: bool) -> SimWorker:
    """Gradients 1 to 8 in its first steps, then none; every other step doesn't count if it is `quiet`."""
    replica = PlainReplica(torch.zeros(SIZE, dtype=torch.float64), lr=1.0)

    def compute(step: int) -> None:
        replica.samples = 0 if quiet and step % 2 else 4
        replica.gradient.zero_()
        if replica.samples and step < 6:
            replica.gradient.copy_(torch.arange(1.0, SIZE + 1))

    return SimWorker(replica, iter(range(STEPS)), compute)


CODECS = {"top": error_feedback(top_k(0.125)), "factors": power_sgd(1)}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_nothing_is_lost_where_a_step_does_not_count(codec):
    """Worker 1 counts in every other step only; alone in the first six it brings three gradients, worker 0
    six. In steps that both count in each is half of the mean, in the others worker 0 is all of it."""
    strategy = allreduce(codec=codec)
    simulation = Simulation(
        strategy, [worker(0, False), worker(1, True)], network=Network(1e9, 0.0), compute=Compute()
    )
    simulation.run()
    moved = -simulation.me(0).weights
    brought = torch.arange(1.0, SIZE + 1).double()
    assert torch.equal(simulation.me(0).weights, simulation.me(1).weights)
    if codec == CODECS["factors"]:  # one dimension travels whole
        assert torch.allclose(moved, brought * (3 + 3))
        return
    # Whatever is sent later counts half or whole, by the step that it is sent in; nothing is left.
    assert bool((moved >= brought * 4.5 - 1e-9).all()), (
        "all of worker 0's gradients and half of worker 1's at least"
    )
    assert bool((moved <= brought * 9 + 1e-9).all())
    rests = [rest for me in (simulation.me(0), simulation.me(1)) for rest in _rests(me)]
    assert len(rests) == 2
    assert all(float(rest.abs().max()) == 0 for rest in rests)


def _rests(me):
    return [rest for coder in me.coding._coders.values() for rest in coder.state.rests()]


def test_momentum_goes_on_after_a_step_that_does_not_count():
    """dgc keeps velocity and sum; a quiet step leaves both as they are."""
    simulation = Simulation(
        torus(send="own", codec=dgc(ratio=0.5, momentum=0.5, dense_below=1)), [worker(0, True), worker(1, True)],
        network=Network(1e9, 0.0), compute=Compute(),
    )  # fmt: skip
    simulation.run(pause_after=1)
    before = [rest.clone() for rest in _rests(simulation.me(0))]
    simulation.run(pause_after=2)
    assert before and all(torch.equal(a, b) for a, b in zip(before, _rests(simulation.me(0)), strict=True))
