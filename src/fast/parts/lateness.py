"""Rules for gradients that come late: they weigh less, or act as if they had come in time.

Neighbours never wait for each other, so what arrives belongs to a step that is over: `age` steps, in the mean of what
is folded into a letter. Where nothing is late, both rules are the mean, bit for bit.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from types import MappingProxyType
from typing import final

from torch import Tensor

from fast.errors import UsageError
from fast.parts.merge import Arrived, mean


@dataclass(frozen=True, repr=False)
class ForLate(ABC):
    """A rule that looks at ages, as a frozen value."""

    @abstractmethod
    def __call__(self, own: Tensor, weight: float, arrived: Sequence[Arrived]) -> Tensor:
        """One update of the own gradient, which is never late, and of what arrived."""

    @property
    def name(self) -> str:
        """As the command line writes it: ByAge is by_age."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def __repr__(self) -> str:
        """The call that makes it, as the command line reads it."""
        known = ((each.name, getattr(self, each.name)) for each in fields(self))
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in known)})"


@final
@dataclass(frozen=True, repr=False)
class ByAge(ForLate):
    """The mean, in which a gradient counts less the later it comes:

        sum_k n_k f_k g_k / sum_k n_k f_k,    f_k = 1 / (1 + age_k)^power

    over the own gradient (age 0) and those that arrived, n_k their samples. A power of 0 is the mean; the larger it
    is, the more a worker relies on what is fresh. With equally fast workers neighbours are one step late, so with
    the power 1 each of them counts half as much as oneself.

    >>> ByAge()
    by_age(power=1.0)
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        _check_number("by_age", "power", self.power, below=inf)

    def __call__(self, own: Tensor, weight: float, arrived: Sequence[Arrived]) -> Tensor:
        if not any(letter.age for letter in arrived):
            return mean(own, weight, arrived)
        counts = [float(letter.weight * (1.0 + letter.age) ** -self.power) for letter in arrived]
        total = weight + sum(counts)
        if not total:
            return own
        merged = own * (weight / total)
        for letter, count in zip(arrived, counts, strict=True):
            merged.add_(letter.tensor, alpha=count / (letter.count * total))
        return merged


@dataclass
class Owed:
    """What a worker gave ahead in its last step, and takes back in the next."""

    tensor: Tensor | None = None


@final
@dataclass(frozen=True, repr=False)
class MomentumCorrected(ForLate):
    """The mean, in which late gradients act on an optimizer with momentum as if they had come in time.

    Under v <- mu v + g; w <- w - eta v a gradient moves the weights by eta g (1 + mu + ... + mu^n) in the n steps after
    its own, and what is left of it in v is mu^n g. One that comes k steps late has all of that still before it: so it
    pushes on when those of its age are done, which acts like still more momentum (Mitliagkas et al., Asynchrony
    begets Momentum, 2016). Therefore

        G_t = mean_t + ahead_t - ahead_(t-1),    ahead_t = sum_k a_k mu (1 - mu^age_k) / (1 - mu) g_k

    with a_k the weights of the mean. What a gradient's momentum would have done by now is given ahead, and taken back
    in the next step, from which on the optimizer's own momentum does it. One step later weights and velocity are, to
    rounding, what they would be had the same gradient come in time; with or without Nesterov. Nothing is lost: in the
    end each gradient has been given once. What it can't mend is that the gradient was computed on older weights.

    Only what a worker applies is corrected. What it passes on to others is the mean: given ahead once more at each hop,
    a gradient would grow without end. So of one that has come several hops only the last is corrected.

    `momentum` is the optimizer's own mu. With 0, or with an optimizer that isn't linear (Adam), there is nothing to
    correct: take the mean. It remembers one tensor per worker. Where nothing is remembered, on servers and in
    `allreduce`, nothing is late either, and it is the mean.

    >>> MomentumCorrected(0.9)
    momentum_corrected(momentum=0.9)
    """

    momentum: float

    def __post_init__(self) -> None:
        _check_number("momentum_corrected", "momentum", self.momentum, below=1.0)

    def begin(self) -> Owed:
        """What a worker remembers before its first step."""
        return Owed()

    def ahead(self, age: float) -> float:
        """mu + mu^2 + ... + mu^age: what momentum has done of a gradient, beyond itself, when it is this old."""
        return float(self.momentum * (1.0 - self.momentum**age) / (1.0 - self.momentum))

    def __call__(self, own: Tensor, weight: float, arrived: Sequence[Arrived]) -> Tensor:
        return mean(own, weight, arrived)

    def amend(self, merged: Tensor, weight: float, arrived: Sequence[Arrived], owed: Owed) -> Tensor:
        """What is applied of this mean."""
        before, owed.tensor = owed.tensor, self._given_ahead(weight, arrived)
        if before is None and owed.tensor is None:
            return merged
        given = merged.clone()
        for tensor, sign in ((owed.tensor, 1.0), (before, -1.0)):
            if tensor is not None:
                given.add_(tensor, alpha=sign)
        return given

    def _given_ahead(self, weight: float, arrived: Sequence[Arrived]) -> Tensor | None:
        total = weight + sum(letter.weight for letter in arrived)
        given: Tensor | None = None
        for letter in arrived:
            share = self.ahead(letter.age) * letter.weight
            if share:
                given = letter.tensor.new_zeros(letter.tensor.shape) if given is None else given
                given.add_(letter.tensor, alpha=share / (letter.count * total))
        return given


def _check_number(rule: str, key: str, value: object, *, below: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < below:  # type: ignore[operator]
        limit = f"from 0 to below {below:g}" if below < inf else "from 0 on, and finite"
        raise UsageError(f"{rule}({key}={value!r}): {key} is a number {limit}")


LATE: Mapping[str, type[ForLate]] = MappingProxyType(
    {"by_age": ByAge, "momentum_corrected": MomentumCorrected}
)
"""By the name that the command line uses."""
