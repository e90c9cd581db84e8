"""What workers do in runs that are recorded: train with everything that a replay must bring back."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy
import torch
from torch import nn

import fast
from fast.core import GRADIENT, Tag, fold_sum
from fast.engine import current_seat
from fast.loop.session import close_sessions
from running import as_text, parameters_of


class Flood(fast.Strategy):
    """Sends far more than there is room for, so that it folds where it was sent."""

    tags = (Tag("many", carries=GRADIENT, fold=fold_sum),)

    async def step(self, me: fast.Me) -> None:
        for number in range(8):
            me.send(me.peers, me.gradient * (1 + me.random() / (number + 3)), tag="many")
        if me.id != 1 or me.steps % 3 == 2:
            for letter in me.letters("many"):
                me.weights.add_(letter.tensor, alpha=-0.001 / letter.count)
        me.apply(me.gradient)


class Beside(fast.Strategy):
    """Rounds and letters that go on beside each other, and random numbers drawn inside them."""

    async def step(self, me: fast.Me) -> None:
        noisy = me.start(self._noisy(me))
        mean = me.start(me.mean(me.gradient * 2, codec=fast.codecs.fp16()))
        heard = me.start(me.gather("values", me.peers))
        me.send(me.peers, me.weights, tag="values")
        letters, _ = await heard
        me.apply(await mean + 0.1 * await noisy)
        for letter in letters.values():
            me.weights.lerp_(letter.tensor, 0.05)

    async def _noisy(self, me: fast.Me) -> torch.Tensor:
        first = await me.mean(me.gradient * me.random())
        return await me.all_reduce(first * me.random())


class AnyOrder(fast.Strategy):
    async def step(self, me: fast.Me) -> None:
        me.apply(await me.mean(me.gradient, order="any"))


class Stuck(fast.Strategy):
    """In its third step everybody waits for a letter that nobody has sent."""

    async def step(self, me: fast.Me) -> None:
        me.apply(me.gradient)
        if me.steps == 2:
            await me.receive("never", me.peers[0])


OWN = {"flood": Flood, "beside": Beside, "any": AnyOrder, "stuck": Stuck}


def chosen(call: str) -> str | fast.Strategy:
    return OWN[call]() if call in OWN else call


def train(call: str, steps: list[int], optimizer: str = "SGD") -> dict[str, Any]:
    """Worker i takes `steps[i]` steps, each of another length; nobody has seeded anything."""
    seat = current_seat()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 1))
    moves = getattr(torch.optim, optimizer)(model.parameters(), lr=0.02)
    fast.join(model, moves, chosen(call))
    for _ in range(steps[seat.id]):
        for _ in range(int(random.random() * 40 * (1 + 2 * seat.id))):
            torch.ones(60, 60) @ torch.ones(60, 60)
        x = torch.tensor(numpy.random.randn(5, 6), dtype=torch.float32)
        (model(x) - x.sum(1, keepdim=True) - random.random()).square().mean().backward()
        moves.step()
        moves.zero_grad()
    return finish(model)


def finish(model: nn.Module) -> dict[str, Any]:
    final = fast.consolidate(model)
    close_sessions(current_seat())
    return {"own": as_text(parameters_of(model)), "final": as_text(parameters_of(final))}


def train_for_ever(call: str) -> None:
    """Says so when it has done 30 steps, and goes on until it is killed."""
    model = nn.Linear(3, 1)
    moves = torch.optim.SGD(model.parameters(), lr=0.01)
    fast.join(model, moves, call)
    done = 0
    while True:
        model(torch.full((2, 3), 0.1 * random.random())).sum().backward()
        moves.step()
        moves.zero_grad()
        done += 1
        if done == 30:
            print("ready", os.getpid())


def fail(who: int, how: str) -> None:
    """One worker ends badly after three steps."""
    model = nn.Linear(3, 1)
    moves = torch.optim.SGD(model.parameters(), lr=0.01)
    fast.join(model, moves, "gossip(p=0.5)")
    for step in range(6):
        model(torch.ones(2, 3)).sum().backward()
        moves.step()
        if step == 2 and current_seat().id == who:
            if how == "raise":
                raise ValueError("a bad sample")
            os.kill(os.getpid(), signal.SIGKILL)
    fast.consolidate(model)
