"""A small network whose flat tensor can be cut in many ways, trained on real workers and on simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import fast
from fast.adapters import TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.engine import current_seat
from fast.loop.loading import strategy_from
from fast.loop.session import close_sessions
from fast.sim import Simulation, SimWorker
from running import as_text, parameters_of

Batch = tuple[Tensor, Tensor]

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
}


def make_model() -> nn.Module:
    """Parameters of 60, 10, 30 and 3 values, padded to 16 each: no number of shards divides them evenly."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def batches(worker: int, steps: int) -> Iterator[Batch]:
    """Workers have unequal batches, so that their gradients have unequal weights."""
    generator = torch.Generator().manual_seed(100 + worker)
    for _ in range(steps):
        x = torch.randn(4 + worker, 6, generator=generator)
        yield x, x[:, :3].sin() + x[:, 3:]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def simulation(call: str, optimizer: str, steps: Sequence[int], **options: Any) -> Simulation:
    strategy, replicas = strategy_from(call), []
    for _ in steps:
        model = make_model()
        replicas.append(TorchReplica(model, OPTIMIZERS[optimizer](model.parameters())))
    servers = server_replicas(replicas[0], strategy.servers(len(steps)), sharded=strategy.sharded)
    workers = [_worker(replica, number, steps[number]) for number, replica in enumerate(replicas)]
    return Simulation(strategy, workers, server_replicas=servers, **options)


def _worker(replica: TorchReplica, worker: int, steps: int) -> SimWorker:
    def compute(batch: Batch) -> None:
        replica.samples = len(batch[0])
        replica.compute(lambda: loss_of(replica.model, batch))

    return SimWorker(replica, batches(worker, steps), compute)


def own_weights(simulated: Simulation) -> list[str]:
    return [as_text(parameters_of(worker.me.model)) for worker in simulated.workers]


def train(strategy: str, optimizer: str, steps: int) -> str:
    """On a real worker: its weights after so many steps."""
    seat, model = current_seat(), make_model()
    chosen = OPTIMIZERS[optimizer](model.parameters())
    fast.join(model, chosen, strategy)
    for batch in fast.own(list(batches(seat.id, steps))):
        chosen.zero_grad()
        loss_of(model, batch).backward()
        chosen.step()
    close_sessions(seat)
    return as_text(parameters_of(model))
