"""Runs of the lab with servers that own shards: the model of a tick is their slices, put together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fast.engine import LocalEngine
from fast.lab import Budget, Run, load_task, simulate_task, train_task
from fast.lab.measures import state_of_shards
from fast.lab.plan import servers_of
from fast.lab.settings import Simulated
from fast.lab.sizes import Sizes, simulate_sizes
from fast.loop.loading import strategy_from

HERE = Path(__file__).resolve().parent
TASK = f"{HERE / 'problems.py'}:Dropout"
BODIES = HERE.parent / "slice_bodies.py"
LOCK_STEP, ON_ARRIVAL = f"{BODIES}:LockStep(3)", f"{BODIES}:OnArrival(3)"
WORKERS = 4


def simulated(strategy: str, gradients: str = "exact") -> Run:
    budget = Budget.of(load_task(TASK), WORKERS, epochs=3)
    return simulate_task(
        load_task(TASK), strategy_from(strategy), workers=WORKERS, budget=budget, seed=3, gradients=gradients
    )


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_slices_become_parameters_again() -> None:
    like = {"w": torch.zeros(3, 5), "b": torch.zeros(4), "mean": torch.zeros(2)}
    w, b = torch.arange(15.0), torch.arange(4.0) + 100
    shards = [{"w": w[:8]}, {}, {"w": w[8:].view(7), "b": b}]
    found = state_of_shards(shards, like)
    assert found.keys() == {"w", "b"}  # what no server has stays the workers'
    assert torch.equal(found["w"], w.view(3, 5)) and torch.equal(found["b"], b)


def test_in_lock_step_shards_are_allreduce_tick_by_tick() -> None:
    shards, plain = simulated(LOCK_STEP), simulated("allreduce")
    assert same(shards.final, plain.final)
    assert [same(a.state, b.state) for a, b in zip(shards.ticks, plain.ticks, strict=True)] == [True] * len(
        plain.ticks
    )
    assert len(shards.servers) == 3 and all(server.bytes_sent for server in shards.servers)


def test_on_arrival_the_last_tick_is_the_final_model() -> None:
    run = simulated(ON_ARRIVAL)
    parameters = [name for name in run.final if "weight" in name or "bias" in name]
    assert len(parameters) >= 4
    assert all(torch.isfinite(run.final[name]).all() for name in parameters)
    assert all(run.final[name].shape == run.ticks[0].state[name].shape for name in parameters)
    assert not torch.equal(run.ticks[0].state[parameters[0]], run.ticks[-1].state[parameters[0]])
    assert run.staleness.staleness and max(run.staleness.staleness) >= 1


@pytest.mark.real
def test_real_runs_have_the_same_bits_in_lock_step_and_whole_models_without(engine: LocalEngine) -> None:
    budget = Budget.of(load_task(TASK), WORKERS, epochs=3)
    real = train_task(TASK, LOCK_STEP, workers=WORKERS, budget=budget, seed=3, engine=engine)
    alike = simulated(LOCK_STEP)
    assert same(real.final, alike.final)
    assert [same(a.state, b.state) for a, b in zip(real.ticks, alike.ticks, strict=True)] == [True] * len(
        alike.ticks
    )
    loose = train_task(TASK, ON_ARRIVAL, workers=WORKERS, budget=budget, seed=3, engine=engine)
    assert loose.final.keys() == alike.final.keys()
    for tick in loose.ticks:
        assert {n: v.shape for n, v in tick.state.items()} == {n: v.shape for n, v in alike.final.items()}
        assert all(torch.isfinite(value).all() for value in tick.state.values() if value.is_floating_point())
    weight = next(name for name, value in alike.final.items() if value.dim() == 2)
    assert not torch.equal(loose.ticks[0].state[weight], loose.ticks[-1].state[weight])


@pytest.mark.parametrize("servers", [1, 3, 50])
def test_sizes_only(servers: int) -> None:
    """What workers send is the model and a header per server, whatever its number."""
    sizes = Sizes.of_parameters(1e5)
    strategy = strategy_from(f"{BODIES}:LockStep({servers})")
    found = simulate_sizes(sizes, strategy, workers=5, steps=3, world=Simulated())
    assert found.servers == servers and found.tally.steps == 15
    assert found.step_bytes == sizes.layout.nbytes + 256 * servers


def test_a_shard_in_every_worker_stands_on_its_host_and_is_said_to() -> None:
    strategies = [
        strategy_from(text) for text in ("allreduce", f"{BODIES}:OnArrival(4, colocated=True)", LOCK_STEP)
    ]
    assert servers_of(strategies[:2], WORKERS) == (0, 4) and servers_of(strategies, WORKERS) == (3, 4)
    lines = Simulated().model().in_words(WORKERS, 3, 4)
    assert lines[:2] == [
        "4 workers and 3 servers, each on a host of its own",
        "4 servers, each on the host of a worker",
    ]
    assert Simulated().model().in_words(WORKERS)[1] != lines[1]
