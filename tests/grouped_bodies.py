"""Trainings and rounds among groups of workers, the same for threads, processes, hosts and simulated workers.

python grouped_bodies.py NAME ARGUMENTS-AS-JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fast
from fast.adapters import TorchReplica
from fast.core import Reduction, drive
from fast.core.world import Kind, Round
from fast.engine import current_seat
from fast.loop.loading import strategy_from
from fast.loop.session import close_sessions
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.trace import Reduced
from fast.view import Groups
from running import as_text, parameters_of

SIZE = 200
"""Each of the model's two layers has 161 kB: enough that hosts add it up across groups, and not in pairs."""
LENGTH = 50_001


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def batches(worker: int, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + worker)
    return [torch.randn(8, SIZE, generator=generator) for _ in range(steps)]


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def train(strategy: str, steps: list[int]) -> dict[str, Any]:
    """Worker i leaves after `steps[i]` steps. Its weights then, and how many took part in each of its means."""
    torch.set_num_threads(1)
    records: list[Reduced] = []
    seat, model = current_seat(), make_model()
    optimizer = make_optimizer(model)

    def keep(record: object) -> None:
        if isinstance(record, Reduced):
            records.append(record)

    fast.join(model, optimizer, strategy, observers=[keep])
    for batch in batches(seat.id, steps[seat.id]):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    own = as_text(parameters_of(model))
    final = as_text(parameters_of(fast.consolidate(model)))
    close_sessions(seat)
    return {"own": own, "final": final, "bytes": [each.nbytes for each in records]}


def simulation(strategy: str, steps: list[int], groups: Groups | None, network: Network) -> Simulation:
    """The same training on simulated workers, one gradient after another."""

    def worker(replica: TorchReplica, number: int) -> SimWorker:
        def compute(batch: Tensor) -> None:
            replica.samples = 1
            replica.compute(lambda: loss_of(replica.model, batch))

        return SimWorker(replica, iter(batches(number, steps[number])), compute)

    replicas = []
    for _ in steps:
        model = make_model()
        replicas.append(TorchReplica(model, make_optimizer(model)))
    return Simulation(
        strategy_from(strategy),
        [worker(replica, number) for number, replica in enumerate(replicas)],
        network=network,
        compute=Compute(0.02),
        groups=groups,
    )


# Rounds by themselves


def tensor_of(worker: int, number: int, dtype: torch.dtype = torch.float32, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * number + worker)
    return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)


def rounds(leaves: int) -> dict[str, Any]:
    """All kinds of means one after another; worker `leaves` is gone before the last ones. The bits, and the bytes that
    this host sent during means of a known size."""
    torch.set_num_threads(1)
    seat, model = current_seat(), nn.Linear(2, 2)
    fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "allreduce")
    assert seat.sessions[0].runtime is not None
    world = seat.sessions[0].runtime.world
    me, everybody = world.id, world.start_view.workers
    found: dict[str, Any] = {"groups": world.start_view.groups}

    def ask(tensor: Tensor, **how: Any) -> Reduction:
        return drive(world.collective(Round(tensor, everybody, **how)))

    for number, dtype in enumerate((torch.float32, torch.float64, torch.float16, torch.bfloat16)):
        for weight in (1.0, me + 1.0):
            tensor = tensor_of(me, number, dtype)
            before = tensor.clone()
            result = ask(tensor, weight=weight, present=1 << me)
            assert torch.equal(tensor, before) and result.present == (1 << len(everybody)) - 1
            found[f"{dtype} {weight == 1.0}"] = as_text(result.tensor)
    found["sum"] = as_text(ask(tensor_of(me, 7), kind=Kind.SUM).tensor)
    found["small"] = as_text(ask(tensor_of(me, 8, length=10)).tensor)
    first = ask(tensor_of(me, 9), read_only=True).tensor
    found["again"] = as_text(ask(first, read_only=True).tensor)  # the result of one round goes into the next
    found["sent"] = _sent_by_this_host(lambda: [ask(tensor_of(me, 10)) for _ in range(10)])
    if me != leaves:
        found["after"] = []
        for _ in range(2):
            result = ask(tensor_of(me, 11), weight=me + 1.0)
            found["after"].append([as_text(result.tensor), list(result.members)])
    close_sessions(seat)
    return found


def _sent_by_this_host(act: Any) -> int:
    """Bytes that left through the host's interface, where it has one of its own."""

    def sent() -> int:
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        rows = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines if ":" in line}
        return int(rows["eth0"][8]) if "eth0" in rows else 0

    before = sent()
    act()
    return sent() - before


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    print(f"found {json.dumps(globals()[name](**arguments))}\n", end="", flush=True)
