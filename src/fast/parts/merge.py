"""Merge rules: how a worker includes the gradients that arrived into its own.

A rule takes the own gradient with its weight and what arrived, each as (sum, count, weight): the
sum of `count` updates that together stand for `weight` samples. It returns a new tensor and
changes none that it was given. A user's own function has the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from torch import Tensor


class Arrived(Protocol):
    """What a rule reads of a letter."""

    @property
    def tensor(self) -> Tensor: ...
    @property
    def count(self) -> int: ...
    @property
    def weight(self) -> float: ...
    @property
    def steps(self) -> tuple[int, ...]: ...
    @property
    def sender(self) -> int: ...


Rule = Callable[[Tensor, float, Sequence[Arrived]], Tensor]


def mean(own: Tensor, weight: float, arrived: Sequence[Arrived]) -> Tensor:
    """The mean of the own gradient and all that arrived, weighted by samples."""
    if not arrived:
        return own
    if weight and all(letter.weight == weight * letter.count for letter in arrived):
        return sum_(own, weight, arrived).div_(1 + sum(letter.count for letter in arrived))
    total = weight + sum(letter.weight for letter in arrived)
    if total == 0:
        return own
    merged = own * (weight / total)
    for letter in arrived:
        merged.add_(letter.tensor, alpha=letter.weight / (letter.count * total))
    return merged


def sum_(own: Tensor, weight: float, arrived: Sequence[Arrived]) -> Tensor:
    """The sum: with complete delivery every replica takes every gradient exactly once."""
    merged = own.clone()
    for letter in arrived:
        merged.add_(letter.tensor)
    return merged


RULES: Mapping[str, Rule] = MappingProxyType({"mean": mean, "sum": sum_})
"""By the name that the command line uses."""
