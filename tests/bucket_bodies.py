"""Real workers that send buckets during backward: unequal samples, unequal numbers of steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

import fast
from fast.engine import current_seat
from fast.loop.session import close_sessions
from running import as_text, parameters_of


def train(strategy: str, steps: Sequence[int], samples: Sequence[int]) -> dict[str, object]:
    """As many steps as are said for this worker, each of which counts for as many samples."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.Flatten(), nn.Linear(16 * 64, 64), nn.Tanh(), nn.Linear(64, 8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fast.join(model, optimizer, strategy)
    seat = current_seat()
    session = seat.sessions[-1]
    generator = torch.Generator().manual_seed(seat.id)
    early = []
    for step in range(steps[seat.id]):
        session.count(samples[(seat.id + step) % len(samples)])
        model(torch.randn(4, 1, 12, 12, generator=generator)).square().mean().backward()
        assert session.runtime is not None
        early.append(session.runtime.world.buckets_ready)  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"own": as_text(parameters_of(model)), "final": as_text(parameters_of(final)), "early": early}


def deep(strategy: str) -> dict[str, object]:
    """Three steps of a model with forty parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fast.join(model, optimizer, strategy)
    seat = current_seat()
    early = []
    for _ in range(3):
        model(torch.full((4, 6), 1.0 + seat.id)).square().mean().backward()
        runtime = seat.sessions[-1].runtime
        assert runtime is not None
        early.append(runtime.world.buckets_ready)
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model)
    close_sessions(seat)
    return {"final": as_text(parameters_of(final)), "early": early}
