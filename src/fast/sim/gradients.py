"""When gradients are computed: one by one as they are needed, or all that are under way together.

A worker's gradient depends only on its weights when the computation starts and is needed only when
it ends, so in between it may be computed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final

from fast.runtime import seed_gradient
from fast.sim.participant import SimWorker


class Gradients(Protocol):
    """What the simulation asks for each step of each worker."""

    def begin(self, worker: int, step: int, batch: Any) -> None:
        """The computation starts: the gradient is that of this worker's weights as they are now."""

    def finish(self, worker: int) -> None:
        """It ends: put gradient and number of samples into the worker's replica."""

    def drop(self, worker: int) -> None:
        """The worker is gone, and nobody needs its gradient any more."""


@final
class OneByOne:
    """Exact: the code of real workers, each gradient when its computation ends."""

    def __init__(self, workers: Sequence[SimWorker], seed: int, *, seed_torch: bool = True) -> None:
        self._workers, self._seed, self._seed_torch = workers, seed, seed_torch
        self._begun: dict[int, tuple[int, Any]] = {}

    def begin(self, worker: int, step: int, batch: Any) -> None:
        self._begun[worker] = (step, batch)

    def finish(self, worker: int) -> None:
        step, batch = self._begun.pop(worker)
        if self._seed_torch:
            seed_gradient(self._seed, worker, step)
        self._workers[worker].compute(batch)

    def drop(self, worker: int) -> None:
        self._begun.pop(worker, None)


class Begun(NamedTuple):
    """A gradient under way."""

    worker: int
    step: int
    batch: Any


Evaluate = Callable[[Sequence[Begun]], None]
"""Puts these gradients, and the numbers of samples, into the workers' replicas."""


@final
class Together:
    """Batched: as soon as one gradient is needed, all that are under way are computed in one call.

    What happens, and when, is the same as one by one: only a worker's own turns change its weights,
    and it takes none while it computes. A gradient that is computed early waits in its replica.
    Workers come in the order of their ids, so that the same run always makes the same calls.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._begun: dict[int, Begun] = {}
        self._computed: set[int] = set()

    def begin(self, worker: int, step: int, batch: Any) -> None:
        self._begun[worker] = Begun(worker, step, batch)

    def finish(self, worker: int) -> None:
        if worker not in self._computed:
            self._compute_all()
        self._computed.remove(worker)

    def drop(self, worker: int) -> None:
        self._begun.pop(worker, None)
        self._computed.discard(worker)

    def _compute_all(self) -> None:
        begun, self._begun = [self._begun[worker] for worker in sorted(self._begun)], {}
        self._evaluate(begun)
        self._computed.update(each.worker for each in begun)
