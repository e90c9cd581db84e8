"""Minimal strategies with servers that own shards, and a training with them, for either world.

The model has matrices and vectors of odd sizes, and a layer that no batch uses: its parameters never have
a gradient, so no optimizer may move them, not even by weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

import fast
from fast.adapters import TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.codecs import int8
from fast.collectives.canonical import canonical_mean
from fast.core import GRADIENT, WEIGHTS, Me, Strategy, Tag, fold_newest
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.sim import Simulation, SimWorker
from fast.trace import Meter
from running import as_text

OPTIMIZERS: MappingProxyType[str, Callable[[Any], torch.optim.Optimizer]] = MappingProxyType(
    {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
    }
)


class LockStep(Strategy):
    """Each server makes the mean of its slice of all gradients, in worker order, and sends back its slice."""

    synchronous = True
    replicas_agree = True

    def __init__(self, servers: int, *, bucket_bytes: int | None = None, encoded: bool = False) -> None:
        self.count, self.bucket_bytes = servers, bucket_bytes
        self.sharded = servers > 1
        codec = int8() if encoded else None
        self.tags = (
            Tag("push", carries=GRADIENT, codec=codec),
            Tag("read", carries=WEIGHTS, codec=codec),
        )

    def servers(self, workers: int) -> int:
        return self.count

    async def step(self, me: Me) -> None:
        if self.bucket_bytes is None:
            me.push(me.gradient, "push", rates=me.rates)
        else:
            await me.stream(me.servers, "push", rates=me.rates)
        await me.pull("read", me.weights)

    async def serve(self, me: Me) -> None:
        pushes, _ = await me.gather("push", me.all_workers)
        letters = list(pushes.values())
        if letters:
            mean = canonical_mean(
                [letter.tensor for letter in letters], [letter.weight for letter in letters]
            )
            me.apply(mean, of=letters, rates=letters[0].note["rates"])
            me.send(pushes, me.weights, "read")


class OnArrival(Strategy):
    """Each server applies what comes when it comes, and answers. `skip` has a worker read only from every second
    server, in turn, so that it knows the servers' weights in different versions."""

    tags = (Tag("push", carries=GRADIENT), Tag("read", carries=WEIGHTS, fold=fold_newest))
    admits = True

    def __init__(self, servers: int, *, skip: bool = False, colocated: bool = False) -> None:
        self.count, self.skip, self.sharded, self.colocated = servers, skip, servers > 1, colocated

    def servers(self, workers: int) -> int:
        return self.count

    async def step(self, me: Me) -> None:
        me.push(me.gradient, "push", rates=me.rates)
        if not self.skip:
            await me.pull("read", me.weights)
            return
        chosen = [server for server in me.servers if (server + me.steps) % 2]
        for server, letter in (await me.gather("read", chosen))[0].items():
            me.weights[me.shards[server]].copy_(letter.tensor)

    async def serve(self, me: Me) -> None:
        for letter in await me.news("push"):
            me.apply(letter.tensor * 0.5, of=[letter], rates=letter.note["rates"])
            me.send(letter.sender, me.weights, "read")


# The training


class Net(nn.Module):
    """Twenty-one units, three outputs, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(7, 21), nn.Linear(5, 3), nn.Linear(21, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


def make_net() -> Net:
    """Always with the same values, also where threads make several at once."""
    net, generator = Net(), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.uniform_(-0.4, 0.4, generator=generator)
    return net


def batches(worker: int, steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(100 + worker)
    for _ in range(steps):
        yield torch.randn(4, 7, generator=generator)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x[:, :3]).square().mean()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def replicas_of(count: int, optimizer: str) -> list[TorchReplica]:
    models = [make_net() for _ in range(count)]
    return [TorchReplica(model, OPTIMIZERS[optimizer](model.parameters())) for model in models]


def simulation_of(
    strategy: Strategy, steps: Sequence[int], optimizer: str = "sgd", **options: Any
) -> Simulation:
    """Worker i takes `steps[i]` steps."""
    replicas = replicas_of(len(steps), optimizer)

    def worker(number: int) -> SimWorker:
        replica = replicas[number]

        def compute(x: Tensor) -> None:
            replica.samples = 4
            replica.compute(lambda: loss_of(replica.model, x))

        return SimWorker(replica, batches(number, steps[number]), compute)

    servers = server_replicas(replicas[0], strategy.servers(len(steps)), sharded=strategy.sharded)
    return Simulation(strategy, [worker(n) for n in range(len(steps))], server_replicas=servers, **options)


def train(strategy: str | Strategy, steps: int, optimizer: str) -> dict[str, Any]:
    """On a real worker."""
    seat, meter, model = current_seat(), Meter(), make_net()
    moved = OPTIMIZERS[optimizer](model.parameters())
    fast.join(model, moved, strategy, observers=[meter])
    for x in batches(seat.id, steps):
        loss_of(model, x).backward()  # type: ignore[no-untyped-call]
        moved.step()
        moved.zero_grad()
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"own": as_text(flat(model)), "final": as_text(flat(final)), "bytes": meter.bytes_sent}


def call(name: str) -> str:
    """How to write one of the strategies here for a real run."""
    return f"{Path(__file__)}:{name}"
