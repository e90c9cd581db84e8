"""P workers with batch b train like one worker with batch P b: real processes, float64."""

from __future__ import annotations

from functools import cache

import loop_bodies
import pytest
import torch
from loop_bodies import (
    CASES,
    head_batch,
    heads_model,
    loss_of,
    make_model,
    momentum,
    own_data,
    reference,
    uses_both,
)
from torch import Tensor

from running import as_text, from_text, parameters_of, plainly

pytestmark = pytest.mark.real

WORKERS = 3


@pytest.fixture(scope="module")
def trained(runner):
    """The results of a case on three workers, each case once."""
    return cache(lambda name: runner.results("loop_bodies:train", WORKERS, name=name))


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return float((a - b).abs().max()) <= tolerance * float(b.abs().max())


def number(text: str) -> Tensor:
    return from_text(text, torch.float64)


def global_batches(name: str, results: list) -> list[list[int]]:
    """What all workers together saw in each step, without what counted for nobody."""
    case = CASES[name]
    steps = zip(*(result["seen"] for result in results), strict=True)
    whole = [[index for part in step for index in part] for step in steps]
    # with fewer samples than workers some see a sample again, with weight zero
    return [list(dict.fromkeys(step)) if len(step) <= case.batch * WORKERS else step for step in whole]


@pytest.mark.parametrize("name", CASES)
def test_many_workers_train_like_one_with_the_whole_batch(name, trained):
    results = trained(name)
    assert len({result["own"] for result in results}) == 1, "the replicas differ"
    assert all(result["final"] == result["own"] for result in results)
    batches = global_batches(name, results)
    per_epoch = len(batches) // CASES[name].epochs
    for epoch in range(CASES[name].epochs):
        seen = sorted(i for batch in batches[epoch * per_epoch : (epoch + 1) * per_epoch] for i in batch)
        assert seen == list(range(CASES[name].samples)), "an epoch isn't every sample once"
    expected = reference(name, batches)
    start = torch.cat([p.detach().double().reshape(-1) for p in make_model(CASES[name]).parameters()])
    assert not close(expected, start, 1e-3), "nothing was trained"
    assert close(number(results[0]["own"]), expected, 1e-6 if name == "several dtypes" else 1e-12)


def test_compiled_and_zeroed_gradients_change_no_bit(trained):
    plain, zeroed, compiled = (
        trained(name)[0]["own"] for name in ("momentum", "zero_grad to zeros", "torch.compile")
    )
    assert plain == zeroed == compiled


def test_the_limit_of_clipping_is_low_enough_to_matter(trained):
    batches = global_batches("momentum", trained("momentum"))
    clipped, free = (reference(name, batches) for name in ("clipping the merged gradient", "momentum"))
    assert not close(clipped, free, 1e-2)


@pytest.mark.parametrize("strategy", ["allreduce", "ssp(bound=0)"])
def test_a_parameter_without_gradient_on_some_workers_counts_as_zero_and_on_all_stays(strategy, runner):
    steps, model = 6, heads_model()
    results = runner.results("loop_bodies:train_heads", WORKERS, strategy=strategy, steps=steps)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    parameters = list(model.parameters())
    for step in range(steps):
        per_worker = []
        for worker in range(WORKERS):
            x, y = head_batch(worker, step)
            loss = (model(x, uses_both(worker, step)) - y).square().mean()
            per_worker.append(torch.autograd.grad(loss, parameters, allow_unused=True))
        for p, gradients in zip(parameters, zip(*per_worker, strict=True), strict=True):
            here = [g for g in gradients if g is not None]
            p.grad = sum(here) / WORKERS if here else None
        optimizer.step()
    assert len({result["final"] for result in results}) == 1
    assert close(number(results[0]["final"]), parameters_of(model))


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_consolidation_averages_weights_and_buffers_and_takes_the_largest_counter(compiled, runner):
    """Local steps only, so that all replicas differ; also for a model that is wrapped by torch.compile."""
    steps = [2, 5, 3]
    results = runner.results(
        "loop_bodies:train_buffers", WORKERS, steps=steps, strategy="local_sgd(tau=100)", compiled=compiled
    )
    final = results[0]["final"]
    assert all(result["final"] == final for result in results)
    assert len({result["own"]["0.weight"] for result in results}) == WORKERS
    counter = from_text(final.pop("1.num_batches_tracked"), torch.int64)
    assert counter.tolist() == [5]
    assert set(final) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"} | {
        "1.running_mean", "1.running_var"
    }  # fmt: skip
    for name, text in final.items():
        a, b, c = (number(result["own"][name]) for result in results)
        assert torch.equal(number(text), ((a + b) + c) / 3), name


def test_own_data_of_unequal_sizes_is_weighted_by_samples(runner):
    results = runner.results("loop_bodies:train_own", WORKERS)
    model = make_model(CASES["momentum"])
    optimizer = momentum(model)
    for parts in zip(*(own_data(worker) for worker in range(WORKERS)), strict=True):
        x, y = (torch.cat(rows) for rows in zip(*parts, strict=True))
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(set(results)) == 1
    assert close(number(results[0]), parameters_of(model))


def test_what_is_refused_with_others_works_alone(runner):
    """A scaler and a closure, with one worker, give the same as without FAST."""
    model = make_model(CASES["sgd"])
    optimizer = loop_bodies.sgd(model)
    for _ in range(2):
        loss_of(model, *head_batch(0, 0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert close(number(plainly(loop_bodies.use_scaler)), parameters_of(model))
    (launched,) = runner.results("loop_bodies:use_scaler", 1, seed=None)
    assert launched == plainly(loop_bodies.use_scaler)
    once = make_model(CASES["sgd"])
    optimizer = loop_bodies.sgd(once)
    loss_of(once, *head_batch(0, 0)).backward()
    optimizer.step()
    assert plainly(loop_bodies.use_closure) == as_text(parameters_of(once))
