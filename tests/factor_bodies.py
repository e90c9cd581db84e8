"""A small network with layers whose factors pay, on real workers and on simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import fast
from fast.adapters import TorchReplica
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.sim import Compute, ComputeModel, Network, Simulation, SimWorker
from fast.strategies.factors import FactorBroadcast
from fast.trace import Meter, Observer
from running import as_text, parameters_of

Batch = tuple[Tensor, Tensor, int]
"""Inputs, targets, and how many samples the step counts for."""


def make_model() -> nn.Sequential:
    """Two large layers, with a norm between them and a small layer at the end that mostly go densely."""
    torch.manual_seed(3)
    layers = (nn.Linear(40, 50), nn.Tanh(), nn.LayerNorm(50), nn.Linear(50, 30), nn.Tanh(), nn.Linear(30, 3))
    return nn.Sequential(*layers).double()


def make_single_model() -> nn.Sequential:
    """The same in single precision."""
    return make_model().float()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def batches(worker: int, sizes: Sequence[int]) -> Iterator[Batch]:
    """One step for each size. A size of 0 is a step that doesn't count: it sees a sample all the same."""
    generator = torch.Generator().manual_seed(100 + worker)
    for size in sizes:
        rows = max(1, size)
        x = torch.randn(rows, 40, generator=generator, dtype=torch.float64)
        yield x, x[:, :3].sin(), size


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    x, y = (tensor.to(next(model.parameters()).dtype) for tensor in batch[:2])
    return (model(x) - y).square().mean()


def train(sizes: list[list[int]], single: bool) -> dict[str, Any]:
    """On a real worker: one step for each of its sizes."""
    seat, meter = current_seat(), Meter()
    model = make_single_model() if single else make_model()
    optimizer = make_optimizer(model)
    fast.join(model, optimizer, FactorBroadcast(), observers=[meter])
    session = seat.sessions[-1]
    for batch in batches(seat.id, sizes[seat.id]):
        loss_of(model, batch).backward()
        session.count(batch[2])
        optimizer.step()
        optimizer.zero_grad()
    fast.consolidate(model)
    close_sessions(seat)
    return {"weights": as_text(parameters_of(model)), "links": list(meter.links.values())}


def simulation(
    strategy: fast.Strategy,
    sizes: Sequence[Sequence[int]],
    *,
    make: Callable[[], nn.Module] = make_model,
    loss: Callable[[nn.Module, Batch], Tensor] = loss_of,
    observers: Sequence[Observer] = (),
    compute: ComputeModel | None = None,
) -> Simulation:
    """The same training, ready to run."""
    workers = []
    for worker, own in enumerate(sizes):
        model = make()
        replica = TorchReplica(model, make_optimizer(model))
        workers.append(SimWorker(replica, batches(worker, own), _compute(replica, loss)))
    return Simulation(
        strategy,
        workers,
        network=Network(1e7, 2e-3),
        compute=compute or Compute(workers_s={w: 0.02 + 0.007 * w for w in range(len(sizes))}),
        observers=observers,
    )


def _compute(replica: TorchReplica, loss: Callable[[nn.Module, Batch], Tensor]) -> Callable[[Batch], None]:
    def compute(batch: Batch) -> None:
        replica.samples = batch[2]
        replica.compute(lambda: loss(replica.model, batch))

    return compute
