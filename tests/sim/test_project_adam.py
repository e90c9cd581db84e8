"""Project Adam's pushes: activations and errors of linear layers, from which the server rebuilds gradients."""

import pytest
import torch
from torch import nn

from factor_bodies import batches, loss_of, make_model, make_optimizer, make_single_model
from fast.adapters import TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.core import Letter
from fast.errors import WireError
from fast.sim import Compute, Simulation, SimWorker
from fast.sim.checkers import Checkers
from fast.strategies.central.adam import _rebuilt
from fast.strategies.presets import project_adam, ssp
from fast.trace import Included, Sent

from .problem import INSTANT, RandomCompute, random_network

LARGE = (40 + 50, 50 + 30)
"""Inputs and outputs of the layers that go by factors with four rows."""
SMALL = 30 + 3
DOUBLE_REST, SINGLE_REST = 56 + 56 + 96 + 8, 64 + 64 + 96 + 16
"""The norm and the small layer, in values, padded to 64 bytes each."""
STEPS = 6


def simulation(strategy, sizes, *, make=make_model, loss=loss_of, log=None, **options):
    """Worker i takes one step with each of its sizes; its gradients are put into `log`."""
    workers = []
    for worker, own in enumerate(sizes):
        model = make()
        replica = TorchReplica(model, make_optimizer(model))

        def compute(batch, replica=replica):
            replica.samples = batch[2]
            replica.compute(lambda: loss(replica.model, batch))
            if log is not None:
                log.append(replica.gradient.clone())

        workers.append(SimWorker(replica, batches(worker, own), compute))
    options = {
        "network": INSTANT,
        "compute": Compute(workers_s={w: 0.02 + 0.007 * w for w in range(9)}),
        **options,
    }
    return Simulation(
        strategy, workers, server_replicas=server_replicas(workers[0].replica, 1, sharded=False), **options
    )


def weights(simulation):
    return torch.stack([p.me.weights for p in simulation.participants])


def run(*args, **options):
    built = simulation(*args, **options)
    built.run()
    return built


# Values


@pytest.mark.parametrize("make", [make_model, make_single_model])
@pytest.mark.parametrize("rows", [1, 4, 60])
def test_the_server_applies_the_very_gradient_that_backward_computed(make, rows):
    """For one row all layers go by factors, for four the large ones, for sixty none."""
    log, applied = [], []
    built = simulation(project_adam(), [[rows] * (STEPS + 1)] * 3, make=make, log=log)
    server = built.servers[0].me.replica
    apply = server.apply

    def spy(gradient, present, rates=None):
        applied.append(gradient.clone())
        apply(gradient, present, rates)

    server.apply = spy
    built.run(pause_after=STEPS)  # nobody has left, so everybody counts for a third
    assert len(applied) == len(log) == 3 * STEPS
    for computed, found in zip(log, applied, strict=True):
        assert torch.equal(found, computed * (1 / 3))


@pytest.mark.parametrize(
    "sizes", [[[4] * 9] * 3, [[4, 1, 4, 60, 2, 4], [3, 4, 4, 4], [4, 40, 1, 2, 4]]], ids=["equal", "unequal"]
)
def test_it_is_the_unbounded_server_to_the_bit(sizes):
    """On a network that takes no time pushes come in the same order, whatever their size is."""
    by_factors, dense = (
        run(strategy, sizes, compute=RandomCompute(), seed=2)
        for strategy in (project_adam(), ssp(bound=float("inf")))
    )
    assert torch.equal(weights(by_factors), weights(dense))


def with_penalty(model, batch):
    return loss_of(model, batch) + 0.01 * sum(p.square().sum() for p in model.parameters())


def test_what_factors_do_not_rebuild_goes_as_it_is():
    sizes = [[4] * STEPS] * 2
    sent = pushes(project_adam(), sizes, loss=with_penalty)
    whole = sum(p.numel() for p in make_model().parameters())
    assert min(sent) > 8 * whole, "a penalty in the loss is in no layer's activations"
    by_factors, dense = (
        run(strategy, sizes, loss=with_penalty) for strategy in (project_adam(), ssp(bound=float("inf")))
    )
    assert torch.equal(weights(by_factors), weights(dense))


# Bytes


def pushes(strategy, sizes, **options):
    found = []

    def watch(record):
        if isinstance(record, Sent) and record.tag == "push":
            found.append(record.nbytes)

    run(strategy, sizes, observers=[watch], **options)
    return found


@pytest.mark.parametrize(
    ("make", "item", "rest"), [(make_model, 8, DOUBLE_REST), (make_single_model, 4, SINGLE_REST)]
)
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("rows", [4, 10])
def test_the_bytes_are_the_formula(make, item, rest, workers, rows):
    """N (in + out) values of each large layer, 4 bytes for each of three places, the other values, a header; the same
    for any number of workers, as each sends to the server only."""
    sent = pushes(project_adam(), [[rows] * 3] * workers, make=make)
    assert len(sent) == workers * 3
    assert set(sent) == {256 + 3 * 4 + item * (rows * sum(LARGE) + rest)}


def test_that_is_less_than_the_gradient():
    factors, dense = (
        pushes(strategy, [[4] * STEPS] * 3, make=make_single_model)
        for strategy in (project_adam(), ssp(bound=float("inf")))
    )
    assert max(factors) < min(dense) / 3


# Asynchrony


@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_and_everything_is_accounted_for(seed):
    sizes, late, checkers = [[4] * 9, [1, 2, 60, 4], [4] * 12], [], Checkers(project_adam())

    def watch(record):
        if isinstance(record, Included):
            late.append(record.staleness)

    built = simulation(
        project_adam(), sizes, observers=[checkers, watch], compute=RandomCompute(), seed=seed, spoil_letters=True,
        network=random_network(3, seed, 4),
    )  # fmt: skip
    checkers.attach(built)
    built.run(after_event=checkers.after_event)
    checkers.finish()
    assert len(late) == sum(map(len, sizes)) and max(late) > 0
    assert bool(torch.isfinite(weights(built)).all())


def test_a_push_that_does_not_fit_is_refused():
    me = run(project_adam(), [[4]]).servers[0].me
    table = torch.tensor([-1, -1, -1], dtype=torch.int32).view(torch.uint8)
    push = Letter(0, "push", torch.cat([torch.zeros(16, dtype=torch.uint8), table]), (0,), note={"dense": 16})
    with pytest.raises(WireError, match="16 bytes beside its factors"):
        _rebuilt(me, push)
    with pytest.raises(WireError, match="factors of 3 layers"):
        _rebuilt(me, Letter(0, "push", table[:5], (0,), note={"dense": 0}))


def test_a_model_without_linear_layers_pushes_its_gradient():
    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.LayerNorm(40), nn.Tanh()).double()

    def loss(model, batch):
        return model(batch[0]).square().mean()

    sizes = [[4] * STEPS] * 2
    assert set(pushes(project_adam(), sizes, make=make, loss=loss)) == {256 + 8 * 80}
    by_factors, dense = (
        run(strategy, sizes, make=make, loss=loss) for strategy in (project_adam(), ssp(bound=float("inf")))
    )
    assert torch.equal(weights(by_factors), weights(dense))
