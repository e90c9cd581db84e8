"""What rules that stand hostile workers have in common: they count heads.

- Every sender has one vote, the mean of what it sent, however many updates are folded into its letters. So
  nobody gains by sending often.
- Samples are what a sender claims, so they don't weigh. Only who claims none has no vote: its step
  doesn't count.
- Who sends NaN or infinity has given itself away. Its vote is left out, and one hostile worker less is to be
  stood among the others. Where nothing finite is left, what was sent is passed on as it is: then
  training itself has failed, and that must be seen.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import ClassVar

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.merge import Arrived, Rule, mean


@dataclass(frozen=True, repr=False)
class Robust(ABC):
    """A rule as a frozen value. Subclasses say how votes that are finite become one update.

    With fewer votes than it `needs` it can't keep its promise, and refuses. What is done with them then is
    the strategy's business.
    """

    whole: ClassVar[bool] = False
    """Whether it must see whole updates. Where coordinates don't depend on each other, a shard is as good."""

    @property
    @abstractmethod
    def needs(self) -> int:
        """So many votes it takes at least."""

    @abstractmethod
    def merge_finite(self, votes: Sequence[Tensor], left_out: int) -> Tensor:
        """One new tensor of them all; so many others were not finite."""

    def merge(self, votes: Sequence[Tensor]) -> Tensor:
        """One new tensor of them all, without those that aren't finite. Fewer than it needs are refused."""
        self.check(len(votes))
        finite = [vote for vote in votes if is_finite(vote)]
        return self.merge_finite(finite, len(votes) - len(finite)) if finite else votes[0].clone()

    def __call__(self, own: Tensor, weight: float, arrived: Sequence[Arrived]) -> Tensor:
        votes = votes_of(own, weight, arrived)
        return self.merge(votes) if votes else own

    def check(self, updates: int) -> None:
        """Refuse fewer updates than it needs."""
        if updates < self.needs:
            raise UsageError(
                f"{self!r} needs at least {self.needs} updates at a time, and {updates} come together here. Let more "
                "workers take part, on a graph let each hear more, or take a rule that promises less."
            )

    @property
    def name(self) -> str:
        """As the command line writes it: TrimmedMean is trimmed_mean."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def __repr__(self) -> str:
        """The call that makes it, as the command line reads it."""
        known = ((each.name, getattr(self, each.name)) for each in fields(self))
        return f"{self.name}({', '.join(f'{name}={_text(value)}' for name, value in known)})"


def _text(value: object) -> str:
    return str(getattr(value, "__name__", None) or repr(value)).rstrip("_")


def is_finite(vote: Tensor) -> bool:
    """In one pass, by its smallest and its largest value; what has only a size, or not even that, is."""
    if vote.is_meta or not vote.numel():
        return True
    return all(isfinite(float(end)) for end in torch.aminmax(vote))


def votes_of(own: Tensor, weight: float, arrived: Sequence[Arrived]) -> list[Tensor]:
    """One update for each who has any: the own one, then those of the senders in their order."""
    sent: dict[int, list[Arrived]] = {}
    for letter in arrived:
        if letter.weight > 0:
            sent.setdefault(letter.sender, []).append(letter)
    return [*([own] if weight > 0 else []), *(_mean_of(letters) for letters in sent.values())]


def _mean_of(letters: Sequence[Arrived]) -> Tensor:
    """The mean update in the letters of one sender, whose samples do count among each other."""
    first, *rest = letters
    if rest:
        nothing = first.tensor.new_zeros(first.tensor.shape)
        return mean(nothing, 0.0, letters)
    return first.tensor if first.count == 1 else first.tensor / first.count


@dataclass(frozen=True)
class Vote:
    """One vote as any rule reads it."""

    tensor: Tensor
    sender: int
    count: int = 1
    weight: float = 1.0
    steps: tuple[int, ...] = (0,)
    age: float = 0.0


def merge_votes(rule: Rule, votes: Sequence[Tensor]) -> Tensor:
    """What a rule of any kind makes of votes that all weigh the same: a new tensor."""
    if isinstance(rule, Robust):
        return rule.merge(votes)
    first, *rest = (Vote(vote, sender) for sender, vote in enumerate(votes))
    merged = rule(first.tensor, first.weight, rest)
    return merged.clone() if any(merged is vote for vote in votes) else merged
