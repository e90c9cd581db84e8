"""A strategy that sends more than anybody reads, for tests of leaving."""

from __future__ import annotations

from collections import Counter

import fast
from fast.core import fold_sum
from fast.engine import current_seat
from fast.loop.session import close_sessions
from preset_bodies import batches, loss_of, make_model, make_optimizer


class Flood(fast.Strategy):
    """Many letters in every step, more than wait unread at a peer; read only at the end."""

    tags = (fast.Tag("flood", carries="gradient", fold=fold_sum),)

    def __init__(self, mean: bool) -> None:
        self.mean = mean

    def state(self, me):
        return Counter()

    async def step(self, me):
        if self.mean:
            await me.mean(me.weights)
        for _ in range(10):
            me.send(me.peers, me.gradient, tag="flood")

    async def end(self, me):
        for letter in me.letters("flood"):
            me.state[letter.sender] += letter.count


def flood(steps, mean):
    """How many letters each worker has got from each other one."""
    seat, model = current_seat(), make_model()
    optimizer = make_optimizer(model)
    fast.join(model, optimizer, Flood(mean))
    for batch in batches(seat.id, steps[seat.id]):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    fast.consolidate(model)
    state = dict(seat.sessions[-1].runtime.me.state)
    close_sessions(seat)
    return sorted(state.items())
