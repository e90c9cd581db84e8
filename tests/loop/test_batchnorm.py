"""BatchNorm on many workers: with statistics of their own they are not one large batch, with common ones they are."""

from __future__ import annotations

import copy
import re
from typing import Any

import large_batch_bodies as bodies
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from large_batch_bodies import MODELS, inputs, loss_of, normal_reference
from torch import Tensor, nn

import fast
from fast.adapters import TorchReplica
from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.errors import UsageError
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from fast.sim import Simulation, SimWorker
from fast.trace import Record, Reduced
from running import from_text, parameters_of, plainly

COUNT = 24
COUNTER = "num_batches_tracked"


def distance(found: dict[str, str], expected: nn.Module) -> float:
    """The largest relative difference among all parameters and statistics; counters must be equal."""
    far = 0.0
    for name, value in expected.state_dict().items():
        got = from_text(found[name], value.dtype).view(value.shape)
        if name.endswith(COUNTER):
            assert torch.equal(got, value), name
        else:
            far = max(far, float((got - value).abs().max() / value.abs().max()))
    return far


def compare(results: list[Any], model: str, optimizer: str, count: int = COUNT) -> float:
    expected = normal_reference(model, optimizer, [worker["seen"] for worker in results], count)
    start = parameters_of(MODELS[model]())
    assert float((parameters_of(expected) - start).abs().max()) > 1e-2, "nothing was trained"
    return distance(results[0]["own"], expected)


# One large batch, or not


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["allreduce", "ssp(bound=0)"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_statistics_of_ones_own_are_not_those_of_one_large_batch_and_common_ones_are(
    strategy, optimizer, runner
):
    arguments = {"model": "1d", "strategy": strategy, "optimizer": optimizer}
    own = runner.results("large_batch_bodies:train_normal", 3, synchronised=False, **arguments)
    assert compare(own, "1d", optimizer) > 1e-2
    assert len({worker["own"]["1.running_mean"] for worker in own}) == 3
    common = runner.results("large_batch_bodies:train_normal", 3, **arguments)
    assert compare(common, "1d", optimizer) < 1e-11
    assert all(worker["own"] == common[0]["own"] == worker["final"] for worker in common)


@pytest.mark.real
@pytest.mark.parametrize(
    "arguments",
    [
        {"model": "2d"},
        {"model": "2d", "strategy": "allreduce(bucket_mb=0.000001)"},
        {"model": "1d", "strategy": "allreduce(bucket_mb=0.000001, algorithm='ring')"},
        {"model": "1d", "strategy": "ssp(bound=0, bucket_mb=0.000001)"},
        pytest.param({"model": "1d", "compiled": True}, marks=pytest.mark.long),
    ],
    ids=repr,
)
def test_processes_with_common_statistics(arguments, runner):
    """Also while parts of the gradient are under way, and inside a compiled model."""
    results = runner.results("large_batch_bodies:train_normal", 3, **arguments)
    assert compare(results, arguments["model"], "momentum") < 1e-11
    assert all(worker["own"] == results[0]["own"] for worker in results)


def together(workers: int = 3, **arguments: Any) -> list[Any]:
    return run_threads(workers, lambda id: bodies.train_normal(**arguments), serve)


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_layer(model):
    results = together(model=model)
    assert compare(results, model, "momentum") < 1e-11
    assert all(worker["own"] == results[0]["own"] for worker in results)


@pytest.mark.parametrize(
    ("strategy", "bucketed"),
    [
        ("allreduce", "allreduce(bucket_mb=0.000001)"),
        ("ssp(bound=0)", "ssp(bound=0, bucket_mb=0.000001)"),
    ],
)
def test_buckets_change_no_bit(strategy, bucketed):
    bucketed = together(model="2d", strategy=bucketed)
    assert [worker["own"] for worker in bucketed] == [
        worker["own"] for worker in together(model="2d", strategy=strategy)
    ]


@pytest.mark.parametrize("count", [26, 13, 25])
def test_a_short_last_step_counts_by_its_samples(count):
    """Of 26 samples the last two go to two of three workers; of 13 or 25 the last one to one, and the
    others see it again, with weight zero: that adds nothing to the statistics either."""
    if count % 12 == 1:  # one large batch of one sample has no variance
        with pytest.raises(UsageError, match=r"all workers together have 1 value.*drop_last=True"):
            together(model="1d", count=count)
        return
    assert compare(together(model="1d", count=count), "1d", "momentum", count) < 1e-11


@pytest.mark.real
def test_unequal_batches_are_weighted_by_their_samples(runner):
    sizes = [3, 9, 1]
    common = runner.results("large_batch_bodies:train_own_normal", 3, sizes=sizes, synchronised=True)
    assert all(worker == common[0] for worker in common)
    assert distance(common[0], whole_batch(sizes)) < 1e-11
    own = runner.results("large_batch_bodies:train_own_normal", 2, sizes=[3, 9], synchronised=False)
    assert distance(own[0], whole_batch([3, 9])) > 1e-2


def whole_batch(sizes: list[int], steps: int = 3) -> nn.Module:
    model, (x, y) = MODELS["1d"](), inputs("1d", sum(sizes))
    optimizer = bodies.OPTIMIZERS["momentum"](model)
    for _ in range(steps):
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


# The layer by itself


def layer_of(channels: int, shift: float, **options: Any) -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(channels, dtype=torch.float64, **options)
    with torch.no_grad():
        if layer.affine:
            layer.weight.copy_(torch.linspace(0.5, 2.0, channels))
            layer.bias.copy_(torch.linspace(-1.0, 1.0, channels) + shift)
    return layer


def alone(x: Tensor, errors: Tensor, layer: nn.Module) -> tuple[Tensor, ...]:
    """Output, input's gradient, parameters' gradients, of L = sum y e / samples."""
    x = x.clone().requires_grad_()
    y = layer(x)
    ((y * errors).sum() / len(x)).backward()
    return y.detach(), x.grad, *(p.grad for p in layer.parameters())


@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    channels=st.integers(1, 5),
    inner=st.lists(st.integers(1, 3), max_size=2),
    offset=st.sampled_from([0.0, 1e4]),
    seed=st.integers(0, 100),
)
@settings(max_examples=25)
def test_forward_and_backward_are_those_of_the_whole_batch(sizes, channels, inner, offset, seed):
    """Of worker j comes W / w_j times its part of the true gradient, which the merge multiplies by w_j / W."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(sizes), channels, *inner)
    x = offset + torch.randn(shape, generator=generator, dtype=torch.float64)
    errors = torch.randn(shape, generator=generator, dtype=torch.float64)
    plain = layer_of(channels, 0.5)
    plain._check_input_dim = lambda input: None  # type: ignore[method-assign]  # any shape
    expected = alone(x, errors, plain)

    def body(id: int) -> tuple[Tensor, ...]:
        model = nn.Sequential(fast.SyncBatchNorm.convert(layer_of(channels, 0.5)))
        fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        (rows,) = fast.own([x.split(sizes)[id]])
        found = alone(rows, errors.split(sizes)[id], model)
        close_sessions(current_seat())
        return *found, *model[0].buffers()

    results = run_threads(len(sizes), body, serve)
    shares = [size / sum(sizes) for size in sizes]
    tolerance = {"rtol": 1e-9, "atol": 1e-9 * max(1.0, offset**2 / 1e5)}
    merged = [
        torch.cat([result[0] for result in results]),
        torch.cat([share * result[1] for share, result in zip(shares, results, strict=True)]),
        *(sum(s * r[n] for s, r in zip(shares, results, strict=True)) for n in (2, 3)),
    ]
    for got, wanted in zip(merged, expected, strict=True):
        torch.testing.assert_close(got, wanted, **tolerance)
    for result in results:
        for got, wanted in zip(result[4:], plain.buffers(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_numbers_are_normalised_in_32_bits(dtype):
    x = 100 + torch.randn(8, 3, 5, generator=torch.Generator().manual_seed(0))
    plain = nn.BatchNorm1d(3)
    expected = plain(x.to(dtype).float())

    def body(id: int) -> tuple[Tensor, Tensor]:
        model = nn.Sequential(fast.SyncBatchNorm(3))
        fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        rows = x.to(dtype)[4 * id : 4 * id + 4].requires_grad_()
        y = model(rows)
        y.sum().backward()
        close_sessions(current_seat())
        assert y.dtype == rows.grad.dtype == dtype
        return y.detach(), model[0].running_var

    results = run_threads(2, body, serve)
    near = {"atol": 1e-4 if dtype == torch.float32 else 0.02, "rtol": 0.01}
    torch.testing.assert_close(torch.cat([y for y, _ in results]).float(), expected.detach(), **near)
    torch.testing.assert_close(results[1][1], plain.running_var)


# Where it is torch's own


def test_with_one_worker_it_is_torchs_own_to_the_bit():
    def script(convert: bool) -> dict[str, str]:
        model = MODELS["2d"]()
        if convert:
            fast.SyncBatchNorm.convert(model)
        optimizer = bodies.OPTIMIZERS["adam"](model)
        fast.join(model, optimizer)
        x, y = inputs("2d", 8)
        for _ in range(3):
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return bodies.state_of(fast.consolidate(model))

    assert plainly(lambda: script(True)) == plainly(lambda: script(False))


def test_before_join_in_evaluation_in_copies_and_after_the_end_nobody_is_waited_for():
    """Each worker does all of it as often as it likes."""
    x, y = inputs("1d", 8)

    def body(id: int) -> list[Tensor]:
        model = fast.SyncBatchNorm.convert(MODELS["1d"]())
        plain = MODELS["1d"]()
        model(x), plain(x)
        optimizer = bodies.OPTIMIZERS["sgd"](model)
        fast.join(model, optimizer)
        found = []
        for _ in range(id):
            other, its_like = copy.deepcopy(model), copy.deepcopy(plain)
            found.append(other(x) - its_like(x))
            found.append(other.eval()(x) - its_like.eval()(x))
        model.eval(), plain.eval()
        found += [model(x) - plain(x) for _ in range(2 * id)]
        model.train()
        loss_of(model, x, y).backward()
        optimizer.step()
        final = fast.consolidate(model)
        plain.train().load_state_dict(model.state_dict())
        found += [final(x) - final(x) for _ in range(id)] + [model(x) - plain(x) for _ in range(id)]
        close_sessions(current_seat())
        return found

    results = run_threads(3, body, serve)
    assert all(not difference.any() for found in results for difference in found)


# The way to the others


def test_a_layer_costs_two_rounds_forward_and_one_backward_in_a_lane_of_their_own():
    """The first layer's input needs no gradient, so nothing is handed on of its errors."""

    def body(id: int) -> None:
        records: list[Record] = []
        model = fast.SyncBatchNorm.convert(MODELS["2d"]())
        optimizer = bodies.OPTIMIZERS["sgd"](model)
        fast.join(model, optimizer, observers=[records.append])
        loss_of(model, *inputs("2d", 4)).backward()
        before = sum(isinstance(record, Reduced) for record in records)
        optimizer.step()
        close_sessions(current_seat())
        rounds = [record for record in records if isinstance(record, Reduced)]
        assert before == 5 and len(rounds) == 6, "and one of the strategy"
        assert all(record.members == (0, 1) and record.nbytes > 0 for record in rounds)

    run_threads(2, body, serve)


class Keeping(fast.Strategy):
    """Holds the result of a round while backward, which its turn has begun in, goes on through layers."""

    synchronous, bucket_bytes = True, 1

    async def step(self, me: fast.Me) -> None:
        kept = await me.mean(torch.full((14,), float(me.id), dtype=torch.float64), read_only=True)
        async for _ in me.buckets():
            assert kept.eq(0.5).all(), f"a layer has overwritten the strategy's result: {kept}"
        me.apply(await me.mean(me.gradient))


def test_a_result_of_the_strategy_outlives_the_layers_rounds():
    def body(id: int) -> list[int]:
        model = fast.SyncBatchNorm.convert(MODELS["1d"]())
        optimizer = bodies.OPTIMIZERS["sgd"](model)
        fast.join(model, optimizer, Keeping())
        early = []
        for _ in range(2):
            loss_of(model, *inputs("1d", 4)).backward()
            early.append(current_seat().sessions[-1].runtime.world.buckets_ready)
            optimizer.step()
            optimizer.zero_grad()
        close_sessions(current_seat())
        return early

    assert run_threads(2, body, serve) == [[7, 7]] * 2, "eight parameters, seven of them told during backward"


def test_who_has_left_is_not_waited_for():
    x, y = inputs("1d", 12)

    def body(id: int) -> dict[str, str]:
        model = fast.SyncBatchNorm.convert(MODELS["1d"]())
        optimizer = bodies.OPTIMIZERS["sgd"](model)
        fast.join(model, optimizer)
        for _ in range(1 if id == 1 else 3):
            loss_of(model, x[4 * id : 4 * id + 4], y[4 * id : 4 * id + 4]).backward()
            optimizer.step()
            optimizer.zero_grad()
        state = bodies.state_of(model)
        close_sessions(current_seat())
        return state

    results = run_threads(3, body, serve)
    model = MODELS["1d"]()
    optimizer = bodies.OPTIMIZERS["sgd"](model)
    for step in range(3):
        rows = list(range(12)) if step == 0 else [0, 1, 2, 3, 8, 9, 10, 11]
        loss_of(model, x[rows], y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert results[0] == results[2] != results[1]
    assert distance(results[0], model) < 1e-11


# Converting


def test_converting_keeps_everything_and_returns_the_same_model():
    shared = nn.BatchNorm1d(4, eps=0.1, momentum=None)
    kinds = [nn.BatchNorm2d(4), nn.BatchNorm3d(4, affine=False), nn.SyncBatchNorm(4), fast.SyncBatchNorm(4)]
    model = nn.ModuleList([shared, nn.Sequential(shared), nn.InstanceNorm1d(4, affine=True), *kinds]).eval()
    seen: list[nn.Module] = []
    shared.register_forward_hook(lambda module, *_: seen.append(module))
    before = dict(model.state_dict(keep_vars=True))
    assert fast.SyncBatchNorm.convert(model) is model
    after = model.state_dict(keep_vars=True)
    assert before.keys() == after.keys() and all(after[name] is before[name] for name in before)
    assert model[0] is model[1][0] is shared
    assert [type(module) for module in model[3:]] == [fast.SyncBatchNorm] * 4
    assert type(model[2]) is nn.InstanceNorm1d
    assert (shared.eps, shared.momentum, shared.training) == (0.1, None, False)
    shared(torch.zeros(2, 4))
    assert seen == [shared]
    assert type(fast.SyncBatchNorm.convert(nn.BatchNorm1d(2))) is fast.SyncBatchNorm


class Loud(nn.BatchNorm1d):
    """Has ways of its own."""


@pytest.mark.parametrize("layer", [Loud(3), nn.LazyBatchNorm1d()], ids=["subclass", "lazy"])
def test_what_can_not_be_converted_is_named(layer):
    with pytest.raises(
        UsageError, match=r"layer '0' is a (Loud|LazyBatchNorm1d).*by hand with fast.SyncBatchNorm"
    ):
        fast.SyncBatchNorm.convert(nn.Sequential(layer))


# What is refused


def test_a_strategy_that_lets_workers_go_on_alone_is_refused():
    def body(id: int) -> None:
        model = fast.SyncBatchNorm.convert(MODELS["1d"]())
        fast.join(model, bodies.OPTIMIZERS["sgd"](model), "torus")

    with pytest.raises(
        UsageError, match=re.compile("waits for all workers in every layer.*torus.*allreduce")
    ):
        run_threads(2, body, serve)


def test_the_simulator_refuses_it_with_several_workers():
    def simulation(workers: int, convert: bool) -> Simulation:
        crew = []
        for _ in range(workers):
            model = MODELS["1d"]()
            if convert:
                fast.SyncBatchNorm.convert(model)
            replica = TorchReplica(model, bodies.OPTIMIZERS["sgd"](model))
            crew.append(SimWorker(replica, iter([]), lambda batch: None))
        return Simulation(fast.presets.allreduce(), crew)

    simulation(1, True).run()
    simulation(2, False).run()
    with pytest.raises(
        UsageError, match=r"2 layers of type SyncBatchNorm.* all 2 workers at once.*on real workers"
    ):
        simulation(2, True)


@pytest.mark.parametrize("shape", [(3,), (4, 2), (4, 6, 2)], ids=repr)
def test_an_input_with_other_channels_is_refused(shape):
    with pytest.raises(ValueError, match=re.escape(f"(samples, 3 channels, ...) and got the shape {shape}")):
        fast.SyncBatchNorm(3)(torch.zeros(shape))
