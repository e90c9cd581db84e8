"""A convex problem whose optimum is known, trained on real workers and on simulated ones.

Least squares without noise, mean((x·w + b - x·w* - b*)^2) / 2: its gradient vanishes at (w*, b*)
on every batch, so every strategy that works must end there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

import fast
from fast.adapters import TorchReplica
from fast.adapters.server_replica import server_replicas
from fast.core import drive
from fast.core.world import Round
from fast.engine import current_seat
from fast.loop import serving
from fast.loop.loading import strategy_from
from fast.loop.session import Session, close_sessions
from fast.sim import Compute, ComputeModel, Network, Simulation, SimWorker
from fast.trace import Meter, Observer
from running import as_text, parameters_of

SIZE, SAMPLES = 8, 16
FLAT_BYTES = (16 + 16) * 4
"""Weight and bias in float32, each padded to 64 bytes."""
PACE = 4
"""So many steps the asynchronous may be apart: on a busy machine one worker could finish before
another begins, and then the gradients at the start would arrive at the end."""
OPTIMUM = torch.cat([1.0 + 0.25 * torch.arange(SIZE), torch.tensor([-2.0])])

Batch = tuple[Tensor, Tensor]


def make_model() -> nn.Linear:
    model = nn.Linear(SIZE, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def batches(worker: int, steps: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(100 + worker)
    for _ in range(steps):
        x = torch.randn(SAMPLES, SIZE, generator=generator)
        yield x, x @ OPTIMUM[:SIZE] + OPTIMUM[SIZE]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]).squeeze(1) - batch[1]).square().mean() / 2


# On real workers


def train(strategy: str, steps: list[int], together: bool) -> dict[str, Any]:
    """Worker i takes `steps[i]` steps. With `together` nobody leaves before all have done theirs."""
    seat, meter = current_seat(), Meter()
    model = make_model()
    optimizer = make_optimizer(model)
    fast.join(model, optimizer, strategy, observers=[meter])
    chosen = strategy_from(strategy)
    # Who is late for a quorum, or whose push must wait for what others compute on, needs them to go on.
    needy = isfinite(chosen.reach) or (chosen.never_stale and not chosen.synchronous)
    together, paced = together and not needy, not chosen.synchronous and not needy
    for step, batch in enumerate(batches(seat.id, steps[seat.id])):
        if step % PACE == 0 and paced:
            await_everybody(seat.sessions[-1])
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    bytes_sent = meter.bytes_sent
    if together:
        await_everybody(seat.sessions[-1])
    final = fast.consolidate(model)
    close_sessions(seat)
    return {
        "settled": as_text(parameters_of(model)),
        "final": as_text(parameters_of(final)),
        "bytes": bytes_sent,
        "steps": meter.steps,
        "staleness": sorted(meter.staleness.items()),
    }


def await_everybody(session: Session) -> None:
    """A collective that nobody needs: it ends when all have come who have not left.

    It goes in a lane of its own, and `me` doesn't hear of it, so no strategy is disturbed."""
    assert session.runtime is not None
    world = session.runtime.world
    drive(world.collective(Round(torch.zeros(1), world.start_view.workers, lane=99)))


def serve(strategy: str, number: int) -> dict[str, Any]:
    meter = Meter()
    serving.serve(strategy, number, observers=[meter])
    return {"staleness": sorted(meter.staleness.items())}


# On simulated ones


def simulation(
    strategy: fast.Strategy,
    steps: Sequence[int],
    *,
    seed: int = 0,
    observers: Sequence[Observer] = (),
    compute: ComputeModel | None = None,
    network: Network | None = None,
) -> Simulation:
    """The same training, ready to run. Workers differ somewhat in speed unless told otherwise."""
    replicas = []
    for _ in steps:
        model = make_model()
        replicas.append(TorchReplica(model, make_optimizer(model)))
    return Simulation(
        strategy,
        [_worker(replica, worker, steps[worker]) for worker, replica in enumerate(replicas)],
        server_replicas=server_replicas(replicas[0], strategy.servers(len(steps)), sharded=strategy.sharded),
        network=network or Network(1e7, 2e-3),
        compute=compute or Compute(workers_s={w: 0.02 + 0.007 * w for w in range(len(steps))}),
        seed=seed,
        observers=observers,
    )


def _worker(replica: TorchReplica, worker: int, steps: int) -> SimWorker:
    def compute(batch: Batch) -> None:
        replica.samples = 1
        replica.compute(lambda: loss_of(replica.model, batch))

    return SimWorker(replica, batches(worker, steps), compute)


def own_weights(simulation: Simulation) -> list[str]:
    return [as_text(parameters_of(worker.me.model)) for worker in simulation.workers]


# Alone


def alone(strategies: list[str]) -> list[list[str]]:
    """With one worker: per strategy the bits with FAST and those without."""
    without = as_text(train_alone(None))
    return [[as_text(train_alone(strategy)), without] for strategy in strategies]


def train_alone(strategy: str | None) -> Tensor:
    """A whole script, with everything in it that a launcher could disturb; None: without FAST."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(SIZE, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    x, y = (torch.cat(parts) for parts in zip(*batches(0, 3), strict=True))
    data = torch.utils.data.TensorDataset(x, y)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
    if strategy is not None:
        fast.join(model, optimizer, strategy)
    for _ in range(2):
        for batch in loader if strategy is None else fast.shard(loader):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            scheduler.step()
    final = model if strategy is None else fast.consolidate(model)
    return torch.cat([value.double().reshape(-1) for value in final.state_dict().values()])
