"""Buckets: the same values, exchanged while backward is still running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loop_bodies import WIDTH, TiedAndFrozen, TwoHeads, double_mlp
from torch import nn

import fast
from fast.adapters import TorchReplica
from fast.core.buckets import BUCKET_LIMIT, bucket_cuts, ready_shares
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.strategies.presets import allreduce
from fast.view import Layout
from running import as_text, parameters_of

TINY_MB = 1e-6
"""Smaller than any parameter, so that each is a bucket."""


def batches(worker: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(worker)
    return [
        (torch.randn(4, WIDTH, generator=generator).double(), torch.randn(4, 1, generator=generator).double())
        for _ in range(steps)
    ]


def train(
    strategy: str,
    model_of: Callable[[], nn.Module] = double_mlp,
    *,
    forward: Callable[..., torch.Tensor] = lambda model, x, step: model(x),
    accumulate: int | None = None,
    mark: bool = False,
    early: list[int] | None = None,
) -> str:
    """Three steps of one worker, with any number of backward passes each; the weights' bits."""
    model = model_of()
    generator = torch.Generator().manual_seed(0)  # threads share torch's own
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fast.join(model, optimizer, strategy, accumulate=0 if mark else accumulate or 1)
    seat, passes = current_seat(), accumulate or 1
    for step, (x, y) in enumerate(batches(seat.id, 3 * passes)):
        loss = (forward(model, x, step) - y).square().mean()
        if mark and step % passes == passes - 1:
            with fast.final_backward():
                loss.backward()
        else:
            loss.backward()
        if step % passes == passes - 1:
            if early is not None:
                early.append(seat.sessions[-1].runtime.world.buckets_ready)
            optimizer.step()
            optimizer.zero_grad()
    weights = as_text(parameters_of(model))
    close_sessions(seat)
    return weights


def together(workers: int = 3, **options: Any) -> list[str]:
    return run_threads(workers, lambda id: train(**options), serve)


@pytest.mark.parametrize(
    "strategy", ["allreduce", "allreduce(codec=fp16)", "allreduce(algorithm='doubling')"]
)
def test_buckets_change_no_bit(strategy: str) -> None:
    arguments = strategy.partition("(")[2].rstrip(")")
    bucketed = f"allreduce({arguments}{', ' * bool(arguments)}bucket_mb={TINY_MB})"
    early: list[int] = []
    assert together(strategy=bucketed, early=early) == together(strategy=strategy)
    assert early == [3] * 9, "four parameters: three buckets are on their way when backward ends"


@pytest.mark.parametrize("model", [TiedAndFrozen, double_mlp])
def test_tied_and_frozen_parameters(model: Callable[[], nn.Module]) -> None:
    bucketed = together(strategy=f"allreduce(bucket_mb={TINY_MB})", model_of=model)
    assert bucketed == together(strategy="allreduce", model_of=model)


def test_a_parameter_without_a_gradient_holds_back_the_buckets_after_it() -> None:
    def forward(model: nn.Module, x: torch.Tensor, step: int) -> torch.Tensor:
        return model(x, both=(step + current_seat().id) % 2 == 0)

    early: list[int] = []
    options: dict[str, Any] = {"model_of": TwoHeads, "forward": forward}
    bucketed = together(strategy=f"allreduce(bucket_mb={TINY_MB})", early=early, **options)
    assert bucketed == together(strategy="allreduce", **options)
    assert set(early) == {0, 5}, "the unused head comes first in backward's order"


@pytest.mark.parametrize("mark", [False, True])
def test_accumulated_passes(mark: bool) -> None:
    early: list[int] = []
    options: dict[str, Any] = {"strategy": f"allreduce(bucket_mb={TINY_MB})", "accumulate": 2}
    bucketed = together(mark=mark, early=early, **options)
    assert bucketed == together(strategy="allreduce", accumulate=2)
    assert early == [3] * 9


def test_a_worker_may_accumulate_without_saying_so_where_nothing_is_sent_early() -> None:
    assert together(strategy="allreduce", accumulate=2) == together(
        strategy="allreduce", accumulate=2, mark=True
    )


def careless(what: str) -> None:
    model = double_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fast.join(model, optimizer, f"torus(bucket_mb={TINY_MB})")
    (x, y), (x2, y2) = batches(0, 2)
    (model(x) - y).square().mean().backward()
    if what == "again":
        (model(x2) - y2).square().mean().backward()
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()


@pytest.mark.parametrize(
    ("what", "answer"), [("again", "accumulate=2"), ("clip", "use before_apply")], ids=["again", "clip"]
)
def test_what_comes_too_late_is_refused(what: str, answer: str) -> None:
    with pytest.raises(fast.UsageError) as raised:
        run_threads(2, lambda id: careless(what), serve)
    assert answer in str(raised.value)


@pytest.mark.parametrize("count", [-1, -7])
def test_a_negative_number_of_passes_is_refused(count: int) -> None:
    def body(id: int) -> None:
        model = double_mlp()
        fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=count)

    with pytest.raises(fast.UsageError, match="counts backward passes"):
        run_threads(2, body, serve)


# How buckets are cut, and when they are ready


def test_buckets_go_from_the_last_parameter_to_the_first() -> None:
    layout = Layout.of([("a", (40,)), ("b", (8,)), ("c", (100,)), ("d", (3,))], torch.float32)
    cuts = bucket_cuts(layout, 64 * 4)
    assert cuts == [(slice(64, 192), 0b1100), (slice(0, 64), 0b0011)]
    assert bucket_cuts(layout, None) == [(slice(0, 192), 0b1111)]
    assert len(bucket_cuts(layout, 1)) == 4
    many = Layout.of([(str(n), (16,)) for n in range(1000)], torch.float32)
    assert len(bucket_cuts(many, 1)) <= BUCKET_LIMIT
    assert ready_shares(layout, cuts, 1 / 3) == pytest.approx([1 / 3 + 2 / 3 * 128 / 192, 1.0])


def duration_of(bucket_mb: float | None, network: Network) -> float:
    """Of one step of two workers that compute 30 ms, in virtual seconds."""
    workers = []
    for worker in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(63, 64, bias=False), nn.Linear(64, 128, bias=False))
        replica = TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.1))

        def compute(x: torch.Tensor, model: nn.Module = model, replica: TorchReplica = replica) -> None:
            replica.backward(model(x).square().mean())

        workers.append(SimWorker(replica, iter([torch.ones(2, 63) * worker]), compute))
    simulation = Simulation(allreduce(bucket_mb=bucket_mb), workers, network=network, compute=Compute(0.030))
    simulation.run()
    return simulation.now_ns / 1e9


def test_the_simulator_moves_a_bucket_while_the_next_is_computed() -> None:
    """64 x 63 and 128 x 64 values: the second, two thirds of the whole, is ready first."""
    first, second = 64 * 63 * 4, 128 * 64 * 4
    rate, latency = 1e6, 0.001
    network = Network(rate, latency)
    whole_s = 0.030 + (first + second) / rate + 2 * latency
    assert duration_of(None, network) == pytest.approx(whole_s, abs=1e-6)
    ready_s = 0.030 * (1 / 3 + 2 / 3 * second / (first + second))
    overlapped_s = max(ready_s + second / rate, 0.030) + first / rate + 2 * latency
    assert duration_of(TINY_MB, network) == pytest.approx(overlapped_s, abs=1e-6)
    fast_network = Network(1e9, 0.0)
    assert duration_of(TINY_MB, fast_network) == pytest.approx(0.030 + first / 1e9, abs=1e-6)


# Real processes, over shared memory


@pytest.mark.real
@pytest.mark.parametrize("samples", [[32, 32, 32], [32, 32, 8], [32, 0, 8]], ids=repr)
@pytest.mark.parametrize("steps", [[6, 6, 6], [6, 2, 4]], ids=repr)
def test_buckets_of_processes_change_no_bit(runner, samples, steps) -> None:
    """Also where samples are unequal, and where workers leave between two steps."""
    plain, bucketed = (
        runner.results("bucket_bodies:train", 3, strategy=strategy, steps=steps, samples=samples)
        for strategy in ("allreduce", "allreduce(bucket_mb=0.001)")
    )
    assert [worker["own"] for worker in bucketed] == [worker["own"] for worker in plain]
    assert [worker["final"] for worker in bucketed] == [worker["final"] for worker in plain]
    if 0 not in samples:
        assert all(early > 0 for worker in bucketed for early in worker["early"])


@pytest.mark.real
@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce(algorithm='ring', bucket_mb=0.001)",
        "allreduce(codec=power_sgd(1), algorithm='ring', bucket_mb=0.001)",
        "ssp(bound=0, bucket_mb=0.001)",
        "torus(codec=error_feedback(top_k(0.1)), bucket_mb=0.001)",
    ],
)
def test_buckets_of_processes_over_letters(runner, strategy) -> None:
    results = runner.results("bucket_bodies:train", 3, strategy=strategy, steps=[12, 7, 9], samples=[4, 4, 1])
    assert len({worker["final"] for worker in results}) == 1


def test_what_is_merged_can_not_be_sent_early() -> None:
    with pytest.raises(fast.UsageError, match="made of the whole gradient"):
        fast.presets.torus(send="merged", bucket_mb=1)


@pytest.mark.real
def test_a_turn_with_more_letters_than_a_ring_of_descriptors_holds(runner) -> None:
    """Some twenty buckets by ring are far more letters between two workers than may lie unread: what a round has
    used is given back when it is over, not when the turn is."""
    results = runner.results(
        "bucket_bodies:deep", 3, strategy="allreduce(algorithm='ring', bucket_mb=0.000001)"
    )
    assert len({worker["final"] for worker in results}) == 1
    assert all(early >= 15 for worker in results for early in worker["early"])


def test_a_loop_that_ends_after_backward_is_told() -> None:
    def body(id: int) -> None:
        model = double_mlp()
        fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), f"torus(bucket_mb={TINY_MB})")
        ((x, y),) = batches(0, 1)
        (model(x) - y).square().mean().backward()
        close_sessions(current_seat())

    with pytest.raises(fast.UsageError, match="Step after every backward"):
        run_threads(2, body, serve)


class Hasty(fast.Strategy):
    """Applies what is there of its gradient."""

    bucket_bytes = 1

    async def step(self, me: fast.Me) -> None:
        me.apply(me.gradient)


def test_a_step_that_does_not_wait_for_its_gradient_is_refused() -> None:
    with pytest.raises(fast.UsageError, match="ended before all of the gradient was computed"):
        run_threads(2, lambda id: train(Hasty()), serve)  # type: ignore[arg-type]
