"""Servers that own shards, on real processes: four workers, three servers, and the bits of one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from fast.engine.threads import run_threads
from fast.loop.serving import serve
from fast.strategies.presets import allreduce
from fast.wire import HEADER_BYTES
from running import Runner, from_text
from slice_bodies import LockStep, call, flat, make_net, replicas_of, simulation_of, train

WORKERS, STEPS = 4, 5
real = pytest.mark.real


@pytest.fixture(scope="module")
def trained(runner: Runner) -> Any:
    """What each worker ended with; each call once."""
    return cache(
        lambda strategy, optimizer: runner.results(
            "slice_bodies:train", WORKERS, strategy=strategy, steps=STEPS, optimizer=optimizer
        )
    )


@cache
def simulated(optimizer: str) -> torch.Tensor:
    simulation = simulation_of(allreduce(), [STEPS] * WORKERS, optimizer)
    simulation.run()
    return flat(simulation.me(0).model)


@real
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "decay", "adam", "adafactor"])
def test_three_servers_give_the_bits_of_allreduce(trained: Any, optimizer: str) -> None:
    for worker in trained(call("LockStep(3)"), optimizer):
        assert torch.equal(from_text(worker["own"], torch.float32), simulated(optimizer))
        assert worker["final"] == worker["own"]


@real
def test_so_does_one_server_and_so_do_real_workers_without_any(trained: Any) -> None:
    three = trained(call("LockStep(3)"), "decay")[0]["own"]
    for strategy in (call("LockStep(1)"), "allreduce"):
        assert [worker["own"] for worker in trained(strategy, "decay")] == [three] * WORKERS


@real
def test_pieces_of_slices_while_backward_runs(trained: Any) -> None:
    for worker in trained(call("LockStep(3, bucket_bytes=64)"), "adamw"):
        assert torch.equal(from_text(worker["own"], torch.float32), simulated("adamw"))


@real
def test_a_server_without_any_value(trained: Any) -> None:
    """Six parameters on whole shards, of which the largest is bigger than all others together."""
    cuts = replicas_of(1, "adafactor")[0].shards(WORKERS)
    assert min(cut.stop - cut.start for cut in cuts) == 0
    for worker in trained(call("LockStep(4)"), "adafactor"):
        assert torch.equal(from_text(worker["own"], torch.float32), simulated("adafactor"))
        assert worker["final"] == worker["own"]


@real
def test_bytes_are_those_of_the_simulator(trained: Any) -> None:
    nbytes = replicas_of(1, "sgd")[0].layout.nbytes
    for worker in trained(call("LockStep(3)"), "sgd"):
        assert worker["bytes"] == STEPS * (3 * HEADER_BYTES + nbytes)


@real
def test_the_model_of_servers_that_apply_on_arrival_is_their_slices(trained: Any) -> None:
    """Workers end with what they read last, which may be something else for each; the consolidated model is one."""
    results = trained(call("OnArrival(3)"), "momentum")
    finals = {worker["final"] for worker in results}
    assert len(finals) == 1
    final = from_text(finals.pop(), torch.float32)
    own = from_text(results[0]["own"], torch.float32)
    assert final.shape == own.shape and torch.isfinite(final).all()
    assert not torch.equal(final, flat(make_net()))  # it has been trained


def test_threads_over_letters_give_the_same_bits() -> None:
    for strategy in (LockStep(3), LockStep(4)):
        results = run_threads(WORKERS, lambda id, made=strategy: train(made, STEPS, "adamw"), serve)
        for worker in results:
            assert torch.equal(from_text(worker["own"], torch.float32), simulated("adamw"))
            assert worker["final"] == worker["own"]
