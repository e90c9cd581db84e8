"""The start of a training: everybody brings the same model, and takes over worker 0's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from fast.errors import PeerLost, UsageError
from fast.runtime.world import RealWorld
from fast.transport import Phase, Transport
from fast.view import Groups, Layout

_HELLO, _WEIGHTS, _REST = "hello", "start weights", "start rest"
_NAP_S = 0.1


class Hello(msgspec.Struct):
    """What a worker says when it joins."""

    strategy: str
    layout: dict[str, Any]
    rest: list[tuple[str, list[int]]]
    """Names and shapes of what is copied at the start only: buffers and frozen parameters."""
    optimizer: dict[str, Any] | None = None
    """For the servers: the optimizer as data."""
    groups: Groups = ()
    """In which order sums are made."""


def meet(world: RealWorld, hello: Hello, weights: Tensor, rest: Sequence[tuple[str, Tensor]]) -> None:
    """A worker joins: say hello, check that all brought the same, adopt worker 0's values."""
    transport, workers = world.transport, world.start_view.workers
    _publish_data(transport, _HELLO, hello)
    if world.id == workers[0]:
        transport.publish(_WEIGHTS, weights)
        transport.publish(_REST, pack([tensor for _, tensor in rest]))
    transport.set_phase(Phase.JOINED)
    await_phase(world, workers, Phase.JOINED, "fast.join")
    for peer in workers:
        _check_same(workers[0], hello_of(transport, workers[0]), peer, hello_of(transport, peer))
    if world.id != workers[0]:
        weights.copy_(read(transport, workers[0], _WEIGHTS).view(weights.dtype))
        unpack(read(transport, workers[0], _REST), [tensor for _, tensor in rest])
    transport.set_phase(Phase.READY)
    await_phase(world, (*workers, *world.start_view.servers), Phase.READY, "start")


def meet_as_server(world: RealWorld) -> tuple[Hello, Layout, Tensor]:
    """A server joins: it takes everything from worker 0. The weights are to be copied before it is ready."""
    first = world.start_view.workers[0]
    await_phase(world, (first,), Phase.JOINED, "fast.join")
    hello = hello_of(world.transport, first)
    layout = Layout.from_description(hello.layout)
    weights = read(world.transport, first, _WEIGHTS).view(layout.dtype)
    return hello, layout, weights


def hello_of(transport: Transport, peer: int) -> Hello:
    data = transport.peek(peer, _HELLO)
    if data is None:
        raise PeerLost(ended_before_join(f"worker {peer}"), peers=(peer,))
    return msgspec.msgpack.decode(data.numpy().tobytes(), type=Hello)


def ended_before_join(name: str) -> str:
    return (
        f"{name} ended without calling fast.join, and the others wait for it there. "
        "Every worker runs the whole script: don't leave it before fast.join."
    )


def read(transport: Transport, peer: int, name: str) -> Tensor:
    """What a peer must have published by now."""
    data = transport.peek(peer, name)
    if data is None:
        raise PeerLost(f"participant {peer} left without giving its {name}", peers=(peer,))
    return data


def await_phase(world: RealWorld, peers: Sequence[int], phase: Phase, why: str) -> None:
    """Wait until all these peers have come so far."""
    world.patience.begin()
    while True:
        token = world.transport.listen()
        missing = tuple(p for p in peers if p != world.id and world.transport.phase(p) < phase)
        if not missing:
            break
        world.pump()
        world.transport.sleep(token, _NAP_S)
        world.patience.check(missing, why)
    world.patience.end()


def _check_same(first: int, a: Hello, peer: int, b: Hello) -> None:
    if a.strategy != b.strategy:
        raise UsageError(
            f"worker {first} joins with strategy {a.strategy} and worker {peer} with {b.strategy}. "
            "All workers of a run take the same one."
        )
    if a.groups != b.groups:
        raise UsageError(
            f"worker {first} adds up in the groups {a.groups} and worker {peer} in {b.groups}. All workers of a run "
            "take the same ones: start all of them with the same --groups."
        )
    for kind, ours, theirs in (
        ("parameters", a.layout["segments"], b.layout["segments"]),
        ("buffers and frozen parameters", a.rest, b.rest),
    ):
        for x, y in zip(ours, theirs, strict=False):
            if list(x) != list(y):
                raise UsageError(
                    f"the models differ: {kind} of worker {first} have {x[0]} {x[1]} where worker {peer} has "
                    f"{y[0]} {y[1]}. Build the same model on every worker."
                )
        if len(ours) != len(theirs):
            raise UsageError(
                f"the models differ: worker {first} has {len(ours)} {kind} and worker {peer} has {len(theirs)}. "
                "Build the same model on every worker."
            )
    if a.layout["dtype"] != b.layout["dtype"]:
        raise UsageError(
            f"the models differ: worker {first} trains in {a.layout['dtype']} and worker {peer} in {b.layout['dtype']}"
        )


def _publish_data(transport: Transport, name: str, data: Any) -> None:
    transport.publish(name, torch.frombuffer(bytearray(msgspec.msgpack.encode(data)), dtype=torch.uint8))


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """One run of bytes from several tensors."""
    parts = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in tensors if t.numel()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8)


def unpack(data: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the values of `pack` back into tensors of the same kind."""
    at = 0
    with torch.no_grad():
        for tensor in tensors:
            nbytes = tensor.numel() * tensor.element_size()
            tensor.copy_(data[at : at + nbytes].clone().view(tensor.dtype).view(tensor.shape))
            at += nbytes


def unpacked_like(data: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies shaped like these tensors, with values from `pack` of such."""
    copies = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
    unpack(data, copies)
    return copies
