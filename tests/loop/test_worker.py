"""`fast.Worker`: a torus written by hand is the preset `torus`, bit for bit."""

from __future__ import annotations

import pytest
import torch

import fast
from fast.adapters import TorchReplica
from fast.errors import UsageError
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.strategies.presets import torus
from preset_bodies import OPTIMUM, batches, loss_of, make_model, make_optimizer, own_weights, simulation
from running import as_text, from_text, parameters_of, plainly

STEPS = 30
COMPUTE = Compute(workers_s={0: 0.02, 1: 0.013, 2: 0.031, 3: 0.02, 4: 0.05, 5: 0.017})


def iteration(me, batch, updates):
    """What FAST does on a torus: send the own gradient, include what has arrived, never wait."""
    me.backward(loss_of(me.model, batch))
    me.send(me.neighbours, me.gradient, tag="update")
    me.apply(fast.rules.mean(me.gradient, me.samples, updates))


def by_hand(topology, workers: int, steps: int) -> Simulation:
    """The simulator is handed batches by number, because the iteration computes the gradient itself."""
    data = [list(batches(worker, steps)) for worker in range(workers)]
    strategy = fast.Worker(topology, iteration).strategy(lambda me: data[me.id][me.steps])
    sim_workers = []
    for _ in range(workers):
        model = make_model()
        replica = TorchReplica(model, make_optimizer(model))
        sim_workers.append(SimWorker(replica, iter(range(steps)), lambda number: None))
    return Simulation(strategy, sim_workers, network=Network(1e7, 2e-3), compute=COMPUTE)


def test_a_torus_by_hand_equals_the_preset_in_the_simulator():
    ours, preset = (
        by_hand(fast.topologies.Torus(), 6, STEPS),
        simulation(torus(send="own"), [STEPS] * 6, compute=COMPUTE),
    )
    # gradients that arrive after the last step belong to `end`, which an iteration doesn't have
    ours.run(pause_after=STEPS)
    preset.run(pause_after=STEPS)
    assert own_weights(ours) == own_weights(preset)
    assert len(set(own_weights(ours))) == 6


def test_attached_channels_decide_who_hears_whom():
    """A line of three: the ends never hear each other directly."""
    heard = {0: set(), 1: set(), 2: set()}

    def listen(me, batch, updates):
        heard[me.id] |= {letter.sender for letter in updates}
        iteration(me, batch, updates)

    line = fast.topologies.Channels().attach(0, 1).attach(1, 2)
    data = [list(batches(worker, 8)) for worker in range(3)]
    strategy = fast.Worker(line, listen).strategy(lambda me: data[me.id][me.steps])
    workers = []
    for _ in range(3):
        model = make_model()
        workers.append(SimWorker(TorchReplica(model, make_optimizer(model)), iter(range(8)), lambda n: None))
    Simulation(strategy, workers, network=Network(1e9, 1e-4), compute=Compute()).run()
    assert heard == {0: {1}, 1: {0, 2}, 2: {1}}


def train_by_hand() -> torch.Tensor:
    model = make_model()
    fast.Worker(fast.topologies.Torus(), iteration).train(
        model, make_optimizer(model), list(batches(0, STEPS))
    )
    return parameters_of(model)


def test_alone_it_trains_like_without_fast():
    model = make_model()
    optimizer = make_optimizer(model)
    for batch in batches(0, STEPS):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert as_text(plainly(train_by_hand)) == as_text(parameters_of(model))


@pytest.mark.real
def test_it_trains_on_real_workers(runner):
    """However late a gradient arrives, the mean of the own one and the others moves little."""
    for text in runner.results("loop_bodies:train_torus_by_hand", 3):
        final = from_text(text, torch.float32)
        assert float((final - OPTIMUM).norm() / OPTIMUM.norm()) < 0.5


def test_what_it_refuses():
    with pytest.raises(UsageError, match=r"needs a topology, such as fast\.topologies\.Torus\(\)"):
        fast.Worker("torus", iteration)
    with pytest.raises(UsageError, match=r"needs a function iteration\(me, batch, updates\)"):
        fast.Worker(fast.topologies.Torus(), None)
