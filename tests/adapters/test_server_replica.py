"""A server builds the worker's optimizer from data and moves the same weights to the same bits."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from fast.adapters import KNOWN, ServerReplica, TorchReplica
from fast.adapters.optimizer_spec import ELEMENT_WISE
from fast.adapters.server_replica import server_replicas
from fast.core import Replica
from fast.errors import UsageError
from fast.view import Layout


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 33, bias=False), nn.Linear(33, 5, bias=False), nn.Linear(5, 9, bias=False)
    )


def pair(optimizer: torch.optim.Optimizer, worker_model: nn.Module) -> tuple[TorchReplica, ServerReplica]:
    """A worker and its server, with everything sent as bytes in between."""
    worker = TorchReplica(worker_model, optimizer)
    spec = msgspec.msgpack.decode(msgspec.msgpack.encode(worker.optimizer_spec()))
    assert spec == json.loads(json.dumps(worker.optimizer_spec()))
    layout = Layout.from_description(json.loads(json.dumps(worker.layout.describe())))
    return worker, ServerReplica(spec, layout, worker.weights.clone())


VARIANTS = [
    (name, options)
    for name, kind in KNOWN.items()
    for options in ({}, {"foreach": True}, {"fused": True}, {"weight_decay": 0.1})
    if {*options} <= {*inspect.signature(kind).parameters}
]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_server_and_worker_give_the_same_bits(name: str, options: dict[str, Any]) -> None:
    worker_model = model()
    first, *others = worker_model.parameters()
    groups = [{"params": others}, {"params": [first], "lr": 0.03}]
    optimizer = KNOWN[name](groups, lr=0.02, **options)  # type: ignore[call-arg]
    worker, server = pair(optimizer, worker_model)
    start = worker.weights.clone()
    for step in range(4):
        gradient = torch.randn_like(worker.gradient)
        untouched, present = gradient.clone(), None if step % 2 else 0b101
        rates = [0.02 / (step + 1), 0.03]
        optimizer.param_groups[0]["lr"] = rates[0]
        worker.apply(gradient, present)
        server.apply(gradient, present, rates)
        assert torch.equal(gradient, untouched)
    assert torch.equal(worker.weights, server.weights) and not torch.equal(worker.weights, start)
    assert server.rates == worker.rates


def test_it_is_a_replica_whose_state_can_be_saved() -> None:
    worker_model = model()
    _, server = pair(torch.optim.Adam(worker_model.parameters(), lr=0.1), worker_model)
    replica: Replica = server
    gradient = torch.randn_like(server.weights)
    replica.apply(gradient, None)
    state = replica.state_dict()
    replica.apply(gradient, None)
    after = server.weights.clone()
    replica.load_state_dict(state)
    replica.apply(gradient, None)
    assert torch.equal(after, server.weights) and not torch.equal(after, state["weights"])


def test_a_shard_takes_its_segments_and_keeps_the_rates_in_place() -> None:
    worker_model = model()
    first, *others = worker_model.parameters()
    optimizer = torch.optim.Adam([{"params": [first]}, {"params": others, "lr": 0.5}])
    worker = TorchReplica(worker_model, optimizer)
    layout = Layout.of([("1.weight", (5, 33)), ("2.weight", (9, 5))], torch.float32)
    begin = worker.layout.segments[1].start
    shard = ServerReplica(worker.optimizer_spec(), layout, worker.weights[begin:].clone())
    gradient = torch.randn_like(worker.gradient)
    worker.apply(gradient, None)
    shard.apply(gradient[begin:], None, [0.001, 0.5])
    assert torch.equal(worker.weights[begin:], shard.weights) and shard.rates == [0.001, 0.5]


def test_the_spec_is_the_optimizer_as_it_is_now() -> None:
    worker_model = model()
    optimizer = torch.optim.SGD(worker_model.parameters(), lr=0.5, momentum=0.9)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.25
    spec = TorchReplica(worker_model, optimizer).optimizer_spec()
    (group,) = spec["groups"]
    assert spec["name"] == "SGD" and group["segments"] == ["0.weight", "1.weight", "2.weight"]
    assert group["options"]["lr"] == 0.25 and group["options"]["momentum"] == 0.9
    assert "initial_lr" not in group["options"] and "params" not in group


def test_groups_keep_their_own_options() -> None:
    worker_model = model()
    first, *others = worker_model.parameters()
    groups = [{"params": others, "betas": (0.5, 0.6)}, {"params": [first], "weight_decay": 0.3}]
    worker, server = pair(torch.optim.AdamW(groups, lr=0.02), worker_model)
    for _ in range(3):
        gradient = torch.randn_like(worker.gradient)
        worker.apply(gradient, None)
        server.apply(gradient, None)
    assert torch.equal(worker.weights, server.weights)


def test_a_learning_rate_that_is_a_tensor() -> None:
    worker_model = model()
    worker, server = pair(torch.optim.Adam(worker_model.parameters(), lr=torch.tensor(0.1)), worker_model)
    gradient = torch.randn_like(worker.gradient)
    worker.apply(gradient, None, [0.3])
    server.apply(gradient, None, [0.3])
    assert torch.equal(worker.weights, server.weights)
    assert worker.rates == [pytest.approx(0.1)] and server.rates == [pytest.approx(0.3)]


class Mine(torch.optim.SGD):
    """A subclass may do anything in step(), so its name says nothing."""


class SGD(torch.optim.SGD):
    """Neither does a name that is taken."""


@pytest.mark.parametrize("kind", [Mine, SGD, torch.optim.SparseAdam])
def test_other_classes_are_refused(kind: Any) -> None:
    worker_model = model()
    replica = TorchReplica(worker_model, kind(worker_model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match="strategy without servers"):
        replica.optimizer_spec()


def test_an_unknown_name_is_refused() -> None:
    layout = Layout.of([("w", (2,))], torch.float32)
    with pytest.raises(UsageError, match="no optimizer 'LBFGS'"):
        ServerReplica({"name": "LBFGS", "defaults": {}, "groups": []}, layout, torch.zeros(layout.size))


def test_options_that_are_not_data_are_refused() -> None:
    worker_model = model()
    optimizer = torch.optim.SGD(worker_model.parameters(), lr=0.1)
    optimizer.param_groups[0]["momentum"] = object()
    with pytest.raises(UsageError, match="momentum="):
        TorchReplica(worker_model, optimizer).optimizer_spec()


# Shards


@pytest.mark.parametrize("count", [2, 3, 5, 16])
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_shards_together_give_the_bits_of_one_server(name: str, options: dict[str, Any], count: int) -> None:
    """Also of a server whose shard is empty, holds a part of one parameter, or none of a group's."""
    worker_model = model()
    first, *others = worker_model.parameters()
    groups = [{"params": others}, {"params": [first], "lr": 0.03}]
    worker, whole = pair(KNOWN[name](groups, lr=0.02, **options), worker_model)  # type: ignore[call-arg]
    shards = server_replicas(worker, count, sharded=True)
    cuts = worker.shards(count)
    assert whole.shards(count) == cuts == [cut for shard in shards[:1] for cut in shard.shards(count)]
    for step in range(4):
        gradient, rates = torch.randn_like(worker.gradient), [0.02 / (step + 1), 0.03]
        present = None if step % 2 else 0b101
        whole.apply(gradient, present, rates)
        for shard, cut in zip(shards, cuts, strict=True):
            inside = worker.layout.within(cut.start, cut.stop)
            own = None if present is None else present >> inside.start & (1 << len(inside)) - 1
            shard.apply(gradient[cut], own, rates)
    assert torch.equal(torch.cat([shard.weights for shard in shards]), whole.weights)
    assert [shard.rates for shard in shards] == [rates] * count


@pytest.mark.parametrize("name", KNOWN)
def test_only_optimizers_that_look_at_shapes_keep_parameters_whole(name: str) -> None:
    """All others are known to be element-wise: on a part of a vector they do what they do on all of it."""
    worker_model = model()
    worker = TorchReplica(worker_model, KNOWN[name](worker_model.parameters(), lr=0.02))  # type: ignore[call-arg]
    borders = {segment.start for segment in worker.layout.segments} | {worker.layout.size}
    inside = [cut for cut in worker.shards(5) if cut.start not in borders]
    assert bool(inside) == (name in ELEMENT_WISE) == (name not in ("Adafactor", "Muon"))


def test_a_shards_state_can_be_saved() -> None:
    worker_model = model()
    worker = TorchReplica(worker_model, torch.optim.Adam(worker_model.parameters(), lr=0.1))
    for shard, cut in zip(server_replicas(worker, 30, sharded=True), worker.shards(30), strict=True):
        gradient = torch.randn(cut.stop - cut.start)
        shard.apply(gradient, None)
        state = shard.state_dict()
        shard.apply(gradient, None)
        after = shard.weights.clone()
        shard.load_state_dict(state)
        shard.apply(gradient, None)
        assert torch.equal(after, shard.weights)


def test_without_shards_every_server_has_a_copy_of_all() -> None:
    worker_model = model()
    worker = TorchReplica(worker_model, torch.optim.SGD(worker_model.parameters(), lr=0.1))
    first, second = server_replicas(worker, 2, sharded=False)
    assert torch.equal(first.weights, worker.weights)
    first.apply(torch.ones_like(first.weights), None)
    assert torch.equal(second.weights, worker.weights) and not torch.equal(first.weights, worker.weights)


class Own(torch.optim.SGD):
    """Somebody's own optimizer, which no server could build."""


def test_where_servers_do_not_optimize_the_optimizer_may_be_any() -> None:
    worker_model = model()
    worker = TorchReplica(worker_model, Own(worker_model.parameters(), lr=0.1))
    (server,) = server_replicas(worker, 1, sharded=False, optimize=False)
    assert torch.equal(server.weights, worker.weights) and server.moments() == {}
    server.load_state_dict(server.state_dict())
    with pytest.raises(UsageError, match="servers_optimize = False"):
        server.apply(torch.ones_like(server.weights), None)
    assert torch.equal(server.weights, worker.weights)
    for sharded in (False, True):  # shards are cut by what the optimizer looks at
        with pytest.raises(UsageError, match="a server can't build Own"):
            server_replicas(worker, 2, sharded=sharded, optimize=not sharded)
