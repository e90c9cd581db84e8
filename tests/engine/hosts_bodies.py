"""What a user's script does beside training, between hosts as within one: run as `python hosts_bodies.py NAME`."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fast
from fast.engine import current_seat
from fast.loop.session import close_sessions
from running import as_text, parameters_of


def _data(samples: int = 48) -> TensorDataset:
    values = torch.arange(samples * 6, dtype=torch.float32).reshape(samples, 6).sin()
    return TensorDataset(values, values.sum(1, keepdim=True))


def _loader(seed: int, samples: int = 48) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(_data(samples), batch_size=4, shuffle=True, generator=generator)


def _text(model: nn.Module) -> str:
    """Parameters and buffers."""
    buffers = [value.double().reshape(-1) for value in model.buffers()]
    return as_text(torch.cat([parameters_of(model).double(), *buffers]))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()


def lockstep() -> dict[str, Any]:
    """Whatever is the same on all workers, and in each run."""
    torch.set_num_threads(1)
    worker = fast.whoami().worker
    torch.manual_seed(worker)
    model = nn.Sequential(nn.Linear(6, 5), fast.SyncBatchNorm(5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    plan = fast.LargeBatch(batch=4, warm_up=3)
    model, optimizer = fast.join(model, optimizer, "allreduce", large_batch=plan, ema=0.9)
    loader, snapshots, seen = fast.shard(_loader(worker)), [], []
    for _ in range(2):
        for x, y in loader:
            seen.append(round(float(x.sum()), 4))
            _train(model, optimizer, x, y)
        snapshots.append(_text(fast.snapshot(model)))
    final = fast.consolidate(model, fast.policies.Average(), batches=loader)
    moving = fast.consolidate(model, "ema")
    return {"seen": seen, "snapshots": snapshots, "final": _text(final), "ema": _text(moving)}


def at_will() -> dict[str, Any]:
    """Where nobody waits for anybody."""
    torch.set_num_threads(1)
    worker = fast.whoami().worker
    torch.manual_seed(worker)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model, optimizer = fast.join(model, optimizer, "gossip", ema=0.9)
    loader, batches = fast.shard(_loader(worker, 480), finish=0.5), []
    for _ in range(2):
        taken = 0
        for x, y in loader:
            taken += 1
            _train(model, optimizer, x, y)
        batches.append(taken)
    looks = [fast.snapshot(model), fast.snapshot(model, "ema")]
    finite = all(bool(torch.isfinite(parameters_of(each)).all()) for each in looks)
    return {"batches": batches, "finite": finite, "final": _text(fast.consolidate(model))}


def leaving() -> dict[str, Any]:
    """Worker 1 leaves in the middle; its replica still counts."""
    torch.set_num_threads(1)
    worker = fast.whoami().worker
    torch.manual_seed(worker)
    model = nn.Linear(6, 1)
    model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.02), "local_sgd(tau=50)")
    for step, (x, y) in enumerate(fast.own(_loader(worker, 4 * (worker + 2)))):
        if worker == 1 and step == 2:
            close_sessions(current_seat())
            return {"final": "", "own": as_text(parameters_of(model))}
        _train(model, optimizer, x, y)
    mine = as_text(parameters_of(model))
    return {"final": _text(fast.consolidate(model)), "own": mine}


if __name__ == "__main__":
    print(f"final {json.dumps(globals()[sys.argv[1]]())}\n", end="", flush=True)
