"""`fast.Worker`: a worker to be filled with the code of one iteration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from fast.core import GRADIENT, Letter, Me, Strategy, Tag, fold_sum
from fast.engine import current_seat
from fast.errors import UsageError
from fast.loop.data import shard
from fast.loop.joining import join
from fast.parts import Topology
from fast.parts.codecs import Codec

Iteration = Callable[[Me, Any, Sequence[Letter]], Awaitable[None] | None]
"""A function, or an `async def` that may wait: for letters, for rounds with the others."""
UPDATE = "update"


class Iterations(Strategy):
    """A strategy whose step is the user's function; it computes the gradient itself."""

    computes_gradient = True

    def __init__(
        self,
        topology: Topology,
        iteration: Iteration,
        batches: Callable[[Me], Any],
        codec: Codec | None = None,
    ) -> None:
        self.topology, self.iteration, self.batches = topology, iteration, batches
        self.tags = (Tag(UPDATE, carries=GRADIENT, fold=fold_sum, codec=codec),)
        self.call = f"Worker({topology!r}, {getattr(iteration, '__name__', 'iteration')})"

    async def step(self, me: Me) -> None:
        waiting = self.iteration(me, self.batches(me), me.letters(UPDATE))
        if waiting is not None:
            await waiting


class Worker:
    """One worker of a topology, with the code of one iteration.

    `iteration(me, batch, updates)` computes a gradient (`me.backward(loss)`), sends what it likes to
    `me.neighbours` under the tag "update", includes the `updates` that have arrived as it likes,
    and moves the weights with `me.apply(gradient)`. Written as `async def` it may also wait: for
    `me.receive`, `me.gather`, `me.mean`, `me.all_reduce` and the like. A topology is a ready one, or
    built by attaching places: `fast.topologies.Channels().attach(0, 1).attach(1, 2)`. `codec` is
    how updates are encoded, unless `me.send` is given another one.
    """

    def __init__(self, topology: Topology, iteration: Iteration, *, codec: Codec | None = None) -> None:
        if not isinstance(topology, Topology):
            raise UsageError(
                f"fast.Worker needs a topology, such as fast.topologies.Torus(), and got {topology!r}"
            )
        if not callable(iteration):
            raise UsageError(
                f"fast.Worker needs a function iteration(me, batch, updates) and got {iteration!r}"
            )
        self.topology, self.iteration, self.codec = topology, iteration, codec
        self._batch: Any = None

    def strategy(self, batches: Callable[[Me], Any] | None = None) -> Strategy:
        """As a strategy, for the simulator; `batches(me)` gives the batch of the current step."""
        return Iterations(self.topology, self.iteration, batches or (lambda me: self._batch), self.codec)

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Iterable[Any],
        *,
        epochs: int = 1,
        **options: Any,
    ) -> None:
        """Call the iteration for every batch of this worker's part of the data."""
        join(model, optimizer, self.strategy(), **options)
        session = current_seat().sessions[-1]
        for _ in range(epochs):
            for batch in shard(loader):
                self._batch = batch
                session.optimizer.step()
