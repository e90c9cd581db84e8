"""All replicas of a training at one moment, for whoever makes one model of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from fast.collectives.canonical import canonical_mean
from fast.core import Strategy
from fast.errors import UsageError
from fast.runtime.company import Company, Nobody, Sharing
from fast.runtime.rendezvous import pack, read, unpacked_like
from fast.transport import Phase, Transport
from fast.view import Layout, View

FINAL, FINAL_BUFFERS, FINAL_MOVING = "final weights", "final buffers", "final moving average"
LIVE, LIVE_MOVING = "live weights", "live moving average"


class Like(Protocol):
    """What a replica's own values look like: everybody's look alike."""

    weights: Tensor
    layout: Layout

    def buffers(self) -> list[tuple[str, Tensor]]: ...


class Replicas(ABC):
    """Those of all workers that are still to be had."""

    workers: Sequence[int] = ()
    """Whose replicas stand for the model; known when they have been gathered."""
    only_present: ClassVar[bool] = False
    """Whether those who have left are not among them."""

    def __init__(self, company: Sharing, like: Like) -> None:
        self.company, self._like = company, like
        self.layout = like.layout

    @abstractmethod
    def gather(self, at_least: float, moving: Tensor | None) -> None:
        """All workers do it at the same time, unless one is alone with it. `at_least`: of the steps of whoever took
        most of them, a replica that counts must have taken this part. `moving`: the own moving average, if that of
        everybody is wanted."""

    @abstractmethod
    def weights(self, worker: int) -> Tensor: ...

    @abstractmethod
    def moving(self, worker: int) -> Tensor:
        """The moving average of its weights, if that was wanted."""

    @abstractmethod
    def buffers(self, worker: int) -> list[Tensor]: ...

    @abstractmethod
    def mean_weights(self) -> Tensor:
        """The mean of those that stand for the model; where servers own the weights, theirs."""

    def named(self, buffers: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        """A worker's buffers with their names."""
        return [(name, value) for (name, _), value in zip(self._like.buffers(), buffers, strict=True)]

    def mean_buffers(self) -> list[Tensor]:
        copies = zip(*(self.buffers(worker) for worker in self.workers), strict=True)
        return [mean_of(each) for each in copies]

    def mean_moving(self) -> Tensor:
        """It is also the moving average of the mean, if all took the same steps."""
        return mean_of([self.moving(worker) for worker in self.workers])


@final
class FinalReplicas(Replicas):
    """After the end: everybody has published what it ended with."""

    def __init__(
        self, company: Company, like: Like, transport: Transport, everybody: View, strategy: Strategy
    ) -> None:
        super().__init__(company, like)
        self._transport, self._everybody, self._strategy = transport, everybody, strategy

    def gather(self, at_least: float, moving: Tensor | None) -> None:
        steps = {worker: self._transport.status(worker).steps for worker in self._everybody.workers}
        self.workers = representatives(self._strategy, steps, at_least)

    def weights(self, worker: int) -> Tensor:
        return read(self._transport, worker, FINAL).view(self.layout.dtype)

    def moving(self, worker: int) -> Tensor:
        return read(self._transport, worker, FINAL_MOVING)

    def buffers(self, worker: int) -> list[Tensor]:
        like = [tensor for _, tensor in self._like.buffers()]
        return unpacked_like(read(self._transport, worker, FINAL_BUFFERS), like)

    def mean_weights(self) -> Tensor:
        owners = self._everybody.servers or self.workers
        return representative(self._strategy, [self.weights(owner) for owner in owners])


@final
class PresentReplicas(Replicas):
    """In a pause of the training: those of everybody who is still in it."""

    only_present = True

    def __init__(self, company: Company, like: Like) -> None:
        super().__init__(company, like)
        self._shown: dict[int, list[Tensor]] = {}

    def gather(self, at_least: float, moving: Tensor | None) -> None:
        buffers = [tensor for _, tensor in self._like.buffers()]
        mine = [self._like.weights if moving is None else moving, *buffers]
        shown = self.company.share(pack(mine), "replica")
        self._shown = {worker: unpacked_like(data, mine) for worker, data in shown.items()}
        self.workers = sorted(self._shown)

    def weights(self, worker: int) -> Tensor:
        return self._shown[worker][0]

    def moving(self, worker: int) -> Tensor:
        return self._shown[worker][0]

    def buffers(self, worker: int) -> list[Tensor]:
        return self._shown[worker][1:]

    def mean_weights(self) -> Tensor:
        return mean_of([self.weights(worker) for worker in self.workers])


@final
class LiveReplicas(Replicas):
    """As they are in this moment, while their owners train on: read in place, without asking anybody.

    Whoever is in the middle of a step may be found with some parameters of before and others of after it. Buffers lie
    in each worker's own memory, so those of the reader stand for all.
    """

    only_present = True

    def __init__(self, like: Like, transport: Transport, everybody: View, strategy: Strategy) -> None:
        super().__init__(Nobody(transport.id), like)
        self._transport, self._everybody, self._strategy = transport, everybody, strategy
        self._seen: dict[int, Tensor] = {}

    def gather(self, at_least: float, moving: Tensor | None) -> None:
        """Copy all that can be asked for, so that it stays the same while it is looked at."""
        status = {worker: self._transport.status(worker) for worker in self._everybody.workers}
        steps = {worker: found.steps for worker, found in status.items() if found.phase < Phase.DONE}
        names = {
            worker: LIVE if moving is None or not done else LIVE_MOVING for worker, done in steps.items()
        }
        self._seen = {worker: self._copy(worker, name) for worker, name in names.items()}
        self.workers = representatives(self._strategy, steps, at_least)

    def _copy(self, peer: int, name: str) -> Tensor:
        found = self._transport.peek(peer, name)
        if found is None:
            raise UsageError(
                f"worker {peer} keeps no moving average. Give all workers the same: fast.join(..., ema=0.999)"
            )
        return found.clone()

    def weights(self, worker: int) -> Tensor:
        return self._seen[worker]

    def moving(self, worker: int) -> Tensor:
        return self._seen[worker]

    def buffers(self, worker: int) -> list[Tensor]:
        return [tensor for _, tensor in self._like.buffers()]

    def mean_weights(self) -> Tensor:
        owned = [self._copy(server, LIVE) for server in self._everybody.servers]
        return representative(self._strategy, owned or [self.weights(worker) for worker in self.workers])


def representatives(strategy: Strategy, steps: dict[int, int], at_least: float = 0.0) -> list[int]:
    """Whose replicas stand for the model: all who trained, or took this part of the most steps; where replicas
    agree, the latest."""
    most = max(steps.values())
    # As it is written: 0.55 of 100 steps are 55, not the 55.00000000000001 of a product of floats.
    least = most if strategy.replicas_agree else max(1, ceil(Fraction(str(at_least)) * most))
    return [worker for worker, done in steps.items() if done >= least] or list(steps)


def representative(strategy: Strategy, weights: Sequence[Tensor]) -> Tensor:
    """The weights of the model, out of those of its owners: of servers that own a slice each, one behind the other;
    else the mean."""
    return torch.cat(list(weights)) if strategy.sharded else mean_of(weights)


def mean_of(copies: Sequence[Tensor]) -> Tensor:
    """One value for many: the mean of floating-point and complex numbers, the largest of counters.

    Where all agree it is exactly what they agree on; (a + a + a) / 3 may be another number.
    """
    first, *others = copies
    if first.is_complex():
        return torch.view_as_complex(mean_of([torch.view_as_real(each) for each in copies]))
    if not first.is_floating_point():
        return torch.stack(list(copies)).amax(0)
    agreed = torch.ones_like(first, dtype=torch.bool)
    for other in others:
        agreed &= first == other
    return torch.where(agreed, first, canonical_mean(list(copies), [1.0] * len(copies)))
