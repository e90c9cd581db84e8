"""Real workers whose letters are of many sizes."""

from __future__ import annotations

import os
import random
from typing import Any

import torch

import fast
from fast.engine import current_seat
from fast.loop.session import close_sessions
from fast.topologies import Full
from fast.transport import ShmTransport

STEPS = 600
"""So many letters each worker sends."""


def used_bytes(end: ShmTransport) -> int:
    """What this participant's shared memory takes, as the system counts it."""
    return os.fstat(end._arena.fd).st_blocks * 512


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_bytes() -> int:
    """What all of everybody's shared memory has in this process."""
    ours, total = False, 0
    with open("/proc/self/smaps") as regions:
        for line in regions:
            first, *rest = line.split()
            if not first.endswith(":"):
                ours = "memfd:fast" in line
            elif ours and first == "Rss:":
                total += int(rest[0]) * 1024
    return total


class Varying(fast.Strategy):
    """Each step sends everybody a letter of another size, all of its bytes the step's number."""

    topology = Full()

    def __init__(self, sizes: str, largest: int) -> None:
        self.sizes, self.largest = sizes, largest

    def size(self, step: int) -> int:
        if self.sizes == "growing":
            return 1 + step * self.largest // STEPS
        return int(random.Random(step).uniform(1, self.largest))

    async def step(self, me: fast.Me) -> None:
        size = self.size(me.steps)
        me.send(me.peers, torch.full((size,), me.steps % 251, dtype=torch.uint8), tag="varying")
        letters, _ = await me.gather("varying", me.peers)
        for letter in letters.values():
            assert letter.tensor.numel() == size and bool((letter.tensor == me.steps % 251).all())
        me.apply(me.gradient)


def exchange(sizes: str) -> dict[str, Any]:
    """What it took, as the system counts it, at the worst of the moments between steps."""
    strategy = Varying(sizes, 1 << 18)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fast.join(model, optimizer, strategy)
    runtime = current_seat().sessions[-1].runtime
    assert runtime is not None and isinstance(runtime.transport, ShmTransport)
    start, used, mapped, descriptors = used_bytes(runtime.transport), 0, 0, set()
    for step in range(STEPS):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        used = max(used, used_bytes(runtime.transport) - start)
        if step % 100 == 0:
            mapped = max(mapped, mapped_bytes())
            descriptors.add(open_descriptors())
    fast.consolidate(model)
    close_sessions(current_seat())
    return {
        "sent_bytes": sum(strategy.size(step) for step in range(STEPS)),
        "largest_bytes": strategy.largest,
        "used_bytes": used,
        "mapped_bytes": mapped,
        "descriptors": len(descriptors),
    }
