"""What runs inside real workers in the tests of the representative model and of leaving early."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fast
import preset_bodies
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.policies import Best
from running import as_text, parameters_of

WIDTH = 5


def dropping_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1)
    ).double()


def common_loader() -> DataLoader[Any]:
    x = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)


def pause(strategy: str, pauses: list[int]) -> dict[str, Any]:
    """Two epochs over common data, with dropout; a snapshot after some of the steps, with statistics from the very
    loader that is trained on, and with a score that draws random numbers."""
    model = dropping_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    fast.join(model, optimizer, strategy)
    loader, steps, snapshots = common_loader(), 0, []
    for _ in range(2):
        for x, y in fast.shard(loader):
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps in pauses:
                snapshots.append(text_of(fast.snapshot(model, Best(drawn), batches=fast.shard(loader))))
    own = text_of(model)
    final = text_of(fast.consolidate(model, batches=fast.shard(loader)))
    close_sessions(current_seat())
    return {"steps": steps, "own": own, "final": final, "snapshots": snapshots}


def pause_alone(strategy: str) -> None:
    """Only worker 0 makes a snapshot, as one writes who knows torch.save."""
    model = dropping_model()
    model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=0.05), strategy)
    for step, (x, y) in enumerate(fast.shard(common_loader())):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 and fast.is_main():
            fast.snapshot(model)


def drawn(model: nn.Module) -> float:
    return float(torch.rand(()))


def text_of(model: nn.Module) -> str:
    return "".join(as_text(value) for value in model.state_dict().values())


# Told to stop


ROWS, COLUMNS = 240, 8


def least_squares() -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets, and where their squared error is smallest."""
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64)
    b = a @ torch.randn(COLUMNS, 1, generator=generator, dtype=torch.float64)
    b += 0.1 * torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)
    return a, b, torch.linalg.lstsq(a, b).solution


def leave_when_told(strategy: str, steps: int, who: int, when: int, folder: str) -> dict[str, Any]:
    """One worker gets SIGTERM in the middle of its training. Whatever it does after its loop it must not come to,
    and what it has opened must be closed."""
    seat = current_seat()
    a, b, _ = least_squares()
    model = nn.Linear(COLUMNS, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fast.join(model, optimizer, strategy)
    loader = DataLoader(TensorDataset(a, b), batch_size=5, shuffle=True)
    taken = 0
    try:
        while taken < steps:
            for x, y in fast.shard(loader):
                (model(x) - y).square().mean().backward()
                if seat.id == who and taken == when:
                    os.kill(os.getpid(), signal.SIGTERM)
                optimizer.step()
                optimizer.zero_grad()
                taken += 1
                if taken == steps:
                    break
    finally:
        with open(os.path.join(folder, f"steps of {seat.id}"), "w") as file:
            file.write(str(taken))
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"final": as_text(final.weight), "own": as_text(model.weight)}


def train_until_told(strategy: str, who: int, steps: list[int]) -> str:
    """As `preset_bodies.train`, but for one worker: it is told to stop in the last of its steps, and would go on."""
    seat = current_seat()
    model = preset_bodies.make_model()
    optimizer = preset_bodies.make_optimizer(model)
    fast.join(model, optimizer, strategy)
    count = max(steps)
    for step, batch in enumerate(preset_bodies.batches(seat.id, count), 1):
        preset_bodies.loss_of(model, batch).backward()
        if seat.id == who and step == steps[who]:
            os.kill(os.getpid(), signal.SIGTERM)
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model)
    close_sessions(seat)
    return as_text(parameters_of(final))


def look_around() -> list[float]:
    """Everybody's one weight is its number; all of them look, each for itself, without anybody's help."""
    seat = current_seat()
    model = nn.Linear(1, 1, bias=False)
    fast.join(model, torch.optim.SGD(model.parameters(), lr=0.0), "gossip(p=0)")
    with torch.no_grad():
        model.weight.fill_(float(seat.id))
    preset_bodies.await_everybody(seat.sessions[-1])
    found = [fast.snapshot(model), fast.snapshot(model, fast.policies.Chosen(2))]
    preset_bodies.await_everybody(seat.sessions[-1])
    return [float(each.weight.detach()) for each in found]


def look_at_servers(strategy: str) -> list[bool]:
    """In lock-step nobody can have moved the servers since this worker's last step: its replica is what they have."""
    model = nn.Linear(3, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    fast.join(model, optimizer, strategy)
    found = []
    for _ in range(5):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(torch.equal(fast.snapshot(model).weight, model.weight))
    fast.consolidate(model)
    return found
