"""Real workers that change one memory at once: counters, and separate supports."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fast
from fast.engine import current_seat
from fast.loop.session import close_sessions
from running import as_text, parameters_of


class Numbers(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(size))


def count(strategy: str, size: int, steps: int) -> dict[str, Any]:
    """Every step adds exactly 1 to every component: the gradient is -1 everywhere and the rate 1."""
    model = Numbers(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fast.join(model, optimizer, strategy)
    for _ in range(steps):
        (-model.values.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model)
    close_sessions(current_seat())
    same = as_text(parameters_of(final)) == as_text(parameters_of(model))
    return {"counted": final.values.detach().unique().tolist(), "same": same}


def target(size: int) -> torch.Tensor:
    return torch.linspace(-2.0, 3.0, size)


def descend_apart(strategy: str, size: int, steps: int) -> str:
    """Worker i has a gradient only at the places i, i + P, i + 2 P, ...: their cache lines are the same."""
    seat = current_seat()
    model = Numbers(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    fast.join(model, optimizer, strategy)
    own = slice(seat.id, None, seat.workers)
    for _ in range(steps):
        ((model.values - target(size))[own].square().sum() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    final = fast.consolidate(model)
    close_sessions(seat)
    return as_text(parameters_of(final))
