"""A synchronous training step: `fast.join(..., "allreduce")` against DDP over Gloo.

DDP gets `gradient_as_bucket_view=True` and the best of three bucket sizes. The floor is the same
step without any communication, on as many workers at once.
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import fast
import harness
from fast.engine import LocalEngine, current_seat
from fast.loop.session import close_sessions
from harness import Row, Times

MODELS = {
    "1.9 M MLP": (784, 1024, 1024, 10),
    "64-64-10 MLP": (64, 64, 10),
}
WORKERS = (2, 4)
BUCKETS_MB = (1, 5, 25)
BATCH = 32
OURS, FLOOR = "ours", "no communication"


def mlp(widths: list[int]) -> nn.Module:
    """The same weights wherever it is made."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """One step of the user's loop."""
    F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def batch(widths: list[int], worker: int) -> tuple[Tensor, Tensor]:
    """The same batch again and again: loading data is not what is measured."""
    generator = torch.Generator().manual_seed(worker)
    x = torch.randn(BATCH, widths[0], generator=generator)
    return x, torch.randint(widths[-1], (BATCH,), generator=generator)


def worker(widths: list[int], repetitions: int, rounds: int, folder: str) -> Times:
    """One worker of the contest for one model."""
    seat = current_seat()
    with harness.gloo(folder):
        found = contestants(widths, seat.id)
        times = harness.take_turns(found, repetitions=repetitions, rounds=rounds, meet=dist.barrier)
        close_sessions(seat)
    return times


def contestants(widths: list[int], worker: int) -> dict[str, partial[None]]:
    """One step each, all from the same weights; DDP needs Gloo."""
    x, y = batch(widths, worker)

    def contestant(model: nn.Module, optimizer: torch.optim.Optimizer) -> partial[None]:
        return partial(step, model, optimizer, x, y)

    found = {OURS: contestant(*fast.join(*fresh(widths), "allreduce"))}
    for megabytes in BUCKETS_MB:
        wrapped = DistributedDataParallel(mlp(widths), bucket_cap_mb=megabytes, gradient_as_bucket_view=True)
        found[ddp(megabytes)] = contestant(wrapped, _optimizer(wrapped))
    return {**found, FLOOR: contestant(*fresh(widths))}


def fresh(widths: list[int]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, as a user makes them."""
    model = mlp(widths)
    return model, _optimizer(model)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def ddp(megabytes: int) -> str:
    return f"DDP, {megabytes} MB buckets"


def contest(engine: LocalEngine, workers: int, model: str, *, repetitions: int, rounds: int) -> list[Row]:
    times = harness.run(
        engine,
        workers,
        "training_step:worker",
        widths=MODELS[model],
        repetitions=repetitions,
        rounds=rounds,
    )
    best = min(map(ddp, BUCKETS_MB), key=lambda name: statistics.median(times[name]))
    name = f"{model}, {workers} workers"
    return [harness.compare(name, times[OURS], times[peer], peer) for peer in (best, FLOOR)]


def main() -> None:
    options = harness.options(__doc__)
    effort = {"repetitions": 3, "rounds": 10} if options.quick else {"repetitions": 15, "rounds": 20}
    with harness.engine() as engine:
        rows = [
            row
            for model in MODELS
            for workers in WORKERS
            for row in contest(engine, workers, model, **effort)
        ]
    harness.report(rows, options.json)


if __name__ == "__main__":
    main()
