"""Staleness corrections: what a server does with an update that was computed on older weights.

A correction takes a push and gives back the push that the optimizer gets instead: another gradient,
or a factor on the learning rate. It keeps nothing itself: what it has to remember (the weights that
each worker read last, moving squares, a velocity) is a `Memory`, which the server's program holds in
its state and which is checkpointed with it. On several shards each server corrects its own slice, by
the staleness that is counted there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor

from fast.errors import UsageError

_EPSILON = 1e-7
"""Under the root of the moving squares, as in the paper."""


@dataclass(frozen=True)
class Push:
    """An update as a correction sees it. The gradient is only read; a corrected one is a new tensor."""

    gradient: Tensor
    sender: int = 0
    staleness: int = 0
    """The server's version now minus the version that the gradient was computed on."""
    workers: int = 1
    """So many train at the moment."""
    rate: float = 1.0
    """By which the learning rate is multiplied for this update."""


@dataclass
class Memory:
    """What the correction of one server remembers."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    backups: dict[int, Tensor] = field(default_factory=dict)
    """By worker: the weights that it was sent last. Those who were sent the same share one copy."""
    inner: list[Memory] = field(default_factory=list)
    """Of the members of a chain."""


class Correction(ABC):
    """Subclasses say how a push is corrected; most need to remember nothing."""

    identity_alone: bool = True
    """Whether it leaves the pushes of one worker, which are never stale, as they are."""

    def begin(self, weights: Tensor, workers: Iterable[int]) -> Memory:
        """What a server remembers before the first push; these workers start with these weights."""
        return Memory()

    @abstractmethod
    def correct(self, push: Push, weights: Tensor, memory: Memory) -> Push:
        """What is applied to the server's `weights` instead of this push."""

    def answered(  # noqa: B027 (most have nothing to remember)
        self, workers: Iterable[int], weights: Tensor, memory: Memory
    ) -> None:
        """These workers are sent these weights: what they push next was computed on them."""

    @property
    def name(self) -> str:
        """As the command line writes it: ByStaleness is by_staleness."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    def __repr__(self) -> str:
        """The call that makes it, as the command line reads it."""
        known: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        return f"{self.name}({', '.join(f'{each.name}={getattr(self, each.name)!r}' for each in known)})"


@final
@dataclass(frozen=True, repr=False)
class AsIs(Correction):
    """No correction: every push is applied as it came."""

    def correct(self, push: Push, weights: Tensor, memory: Memory) -> Push:
        return push


@final
@dataclass(frozen=True, repr=False)
class ByStaleness(Correction):
    """The rate by staleness: alpha(sigma) = alpha_0 / sigma where sigma >= 1, else alpha_0.

    It is the rate that is divided, not the gradient: with plain SGD that is the same, and with an
    optimizer that scales gradients itself (Adagrad, Adam) only the rate makes a difference.

    >>> ByStaleness()
    by_staleness()
    """

    def correct(self, push: Push, weights: Tensor, memory: Memory) -> Push:
        return replace(push, rate=push.rate / max(1, push.staleness))


class _Compensation(Correction):
    """Delay compensation: the gradient as it would about be at today's weights, by the first terms of
    Taylor's series with lambda g*g for the diagonal of the Hessian:

        g + lambda g*g*(w - w_m),  where w_m are the weights that worker m was sent last
    """

    def begin(self, weights: Tensor, workers: Iterable[int]) -> Memory:
        memory = Memory()
        self.answered(workers, weights, memory)
        return memory

    def answered(self, workers: Iterable[int], weights: Tensor, memory: Memory) -> None:
        sent = tuple(workers)
        if sent:
            memory.backups.update(dict.fromkeys(sent, weights.detach().clone()))

    def correct(self, push: Push, weights: Tensor, memory: Memory) -> Push:
        squares = push.gradient * push.gradient
        strength = self._strength(squares, memory)
        backup = memory.backups.get(push.sender)
        if backup is None:  # it came while others trained, with the weights of a peer: nothing is known
            return push
        drift = squares.mul_(strength).mul_(weights.detach() - backup)
        return replace(push, gradient=drift.add_(push.gradient))

    @abstractmethod
    def _strength(self, squares: Tensor, memory: Memory) -> Tensor | float:
        """Lambda, from the squares of this push."""


@final
@dataclass(frozen=True, repr=False)
class DelayCompensation(_Compensation):
    """Delay compensation with a constant: g + strength g*g*(w - w_m)  (DC-ASGD-c).

    Remembers the weights that each worker read last: at most one copy of the weights per worker.

    >>> DelayCompensation(0.1)
    delay_compensation(strength=0.1)
    """

    strength: float = 0.04

    def __post_init__(self) -> None:
        _check_number(self, "strength", least=0.0)

    def _strength(self, squares: Tensor, memory: Memory) -> float:
        return self.strength


@final
@dataclass(frozen=True, repr=False)
class AdaptiveDelayCompensation(_Compensation):
    """Delay compensation that weakens where gradients are large (DC-ASGD-a):

        m <- decay m + (1 - decay) g*g;   lambda = strength / sqrt(m + 1e-7)

    >>> AdaptiveDelayCompensation()
    adaptive_delay_compensation(strength=2.0, decay=0.95)
    """

    strength: float = 2.0
    decay: float = 0.95

    def __post_init__(self) -> None:
        _check_number(self, "strength", least=0.0)
        _check_number(self, "decay", least=0.0, below=1.0)

    def _strength(self, squares: Tensor, memory: Memory) -> Tensor:
        moving = memory.tensors.setdefault("squares", torch.zeros_like(squares))
        moving.mul_(self.decay).add_(squares, alpha=1.0 - self.decay)
        return self.strength / (moving + _EPSILON).sqrt_()


class _Momentum(Correction):
    identity_alone = False

    def correct(self, push: Push, weights: Tensor, memory: Memory) -> Push:
        velocity = memory.tensors.setdefault("velocity", torch.zeros_like(push.gradient))
        velocity.mul_(self._mu(push.workers)).add_(push.gradient)
        return replace(push, gradient=velocity.clone())

    @abstractmethod
    def _mu(self, workers: int) -> float:
        """The momentum among so many workers."""


@final
@dataclass(frozen=True, repr=False)
class ExplicitMomentum(_Momentum):
    """Momentum on the server, v <- mu v + g, which may be negative: torch's optimizers refuse that.

    Asynchrony alone acts like a momentum of about 1 - 1/P; a negative one takes away from it.

    >>> ExplicitMomentum(-0.3)
    explicit_momentum(mu=-0.3)
    """

    mu: float

    def __post_init__(self) -> None:
        _check_number(self, "mu", above=-1.0, below=1.0)

    def _mu(self, workers: int) -> float:
        return self.mu


@final
@dataclass(frozen=True, repr=False)
class TotalMomentum(_Momentum):
    """Explicit momentum so that with the implicit one of P workers, 1 - 1/P, it adds up to `total`:

        mu = total - (1 - 1/P);   v <- mu v + g

    The sum is a rule of thumb (it is exact in expectation where one of the two is zero). With more
    workers than the total allows for, mu is negative.

    >>> TotalMomentum(0.9)
    total_momentum(total=0.9)
    """

    total: float

    def __post_init__(self) -> None:
        _check_number(self, "total", least=0.0, below=1.0)

    def _mu(self, workers: int) -> float:
        return self.total - (1.0 - 1.0 / max(1, workers))


@final
@dataclass(frozen=True, repr=False)
class Chain(Correction):
    """Corrections one after another: each gets what the one before it made of the push."""

    parts: tuple[Correction, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity_alone", all(part.identity_alone for part in self.parts))

    def begin(self, weights: Tensor, workers: Iterable[int]) -> Memory:
        present = tuple(workers)
        return Memory(inner=[part.begin(weights, present) for part in self.parts])

    def correct(self, push: Push, weights: Tensor, memory: Memory) -> Push:
        for part, own in zip(self.parts, memory.inner, strict=True):
            push = part.correct(push, weights, own)
        return push

    def answered(self, workers: Iterable[int], weights: Tensor, memory: Memory) -> None:
        present = tuple(workers)
        for part, own in zip(self.parts, memory.inner, strict=True):
            part.answered(present, weights, own)

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.parts))})"


def chain(*parts: Correction) -> Correction:
    """These corrections one after another.

    >>> chain(ByStaleness(), ExplicitMomentum(-0.2))
    chain(by_staleness(), explicit_momentum(mu=-0.2))
    """
    if not parts or not all(isinstance(part, Correction) for part in parts):
        raise UsageError(
            f"chain({', '.join(map(repr, parts))}) can't be built: a chain of corrections has one or more of them, "
            "such as chain(by_staleness(), explicit_momentum(-0.2))"
        )
    return parts[0] if len(parts) == 1 else Chain(parts)


def _check_number(
    part: Correction, key: str, *, least: float = -inf, above: float = -inf, below: float = inf
) -> None:
    value = getattr(part, key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (least <= value < below and value > above):
        limits = (f"at least {least:g}", f"more than {above:g}", f"less than {below:g}")
        said = [text for text, limit in zip(limits, (least, above, below), strict=True) if abs(limit) < inf]
        raise UsageError(f"{part.name}({key}={value!r}): {key} is a number, {' and '.join(said)}")


by_staleness = ByStaleness
delay_compensation, adaptive_delay_compensation = DelayCompensation, AdaptiveDelayCompensation
explicit_momentum, total_momentum = ExplicitMomentum, TotalMomentum

CORRECTIONS: Mapping[str, type[Correction]] = MappingProxyType(
    {
        "by_staleness": ByStaleness,
        "delay_compensation": DelayCompensation,
        "adaptive_delay_compensation": AdaptiveDelayCompensation,
        "explicit_momentum": ExplicitMomentum,
        "total_momentum": TotalMomentum,
    }
)
"""By the name that the command line uses; several go into a `chain`."""

__all__ = [
    "CORRECTIONS",
    "Correction",
    "Memory",
    "Push",
    "adaptive_delay_compensation",
    "by_staleness",
    "chain",
    "delay_compensation",
    "explicit_momentum",
    "total_momentum",
]
