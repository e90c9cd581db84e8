"""Merge rules: how a worker includes the gradients that arrived into its own.

A rule takes the own gradient with its weight and what arrived, each as (sum, count, weight): the
sum of `count` updates that together stand for `weight` samples. It returns a new tensor and
changes none that it was given. A user's own function has the same shape. A server, which has no
gradient of its own, gives the first push as `own` and the others as what arrived.

A rule may say more about itself: `needs`, how many updates it takes at least, `check(updates)`, which
refuses fewer before anything starts, and `whole`, whether it must see whole updates, not shards. One that remembers
has `begin()`, which makes its memory of one worker, kept in that worker's state, and `amend(merged, weight, arrived,
memory)`: what the worker itself applies of what was merged, which it passes on to others as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from fast.errors import UsageError


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
    @property
    def age(self) -> float: ...


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
    """The sum: with complete delivery every replica takes every gradient exactly once. What stands for no
    samples adds nothing."""
    merged = own.clone() if weight else torch.zeros_like(own)
    for letter in arrived:
        if letter.weight:
            merged.add_(letter.tensor)
    return merged


def check_rule(rule: Rule, updates: int, shards: int = 1) -> None:
    """Refuse a rule that so many updates are too few for, or that a server with a shard can't follow."""
    check = getattr(rule, "check", None)
    if check is not None:
        check(updates)
    if shards > 1 and getattr(rule, "whole", False):
        raise UsageError(
            f"{rule!r} compares whole updates, and each of the {shards} servers sees only its own slice of them. Take "
            "one server, or a rule that goes coordinate by coordinate: median() or trimmed_mean()."
        )


def check_rule_given(name: str, key: str, rule: object) -> None:
    """Refuse an argument that merges nothing: no function, or a kind of rule that still has to be called."""
    if isinstance(rule, type):
        raise UsageError(
            f"{name}({key}={rule.__name__}): a rule of this kind is called, with brackets, such as median() or "
            "krum(hostile=1)"
        )
    if not callable(rule):
        raise UsageError(
            f"{name}({key}={rule!r}): a rule is mean, sum, one that stands hostile workers such as median(), or a "
            "function of (own, weight, arrived); in Python an object without quotes, such as fast.rules.median()"
        )


def enough(rule: Rule, weight: float, arrived: Sequence[Arrived]) -> bool:
    """Whether these are as many updates as the rule needs. One sender has one, however often it sent,
    and what stands for no samples is none."""
    senders = {letter.sender for letter in arrived if letter.weight > 0}
    return bool((weight > 0) + len(senders) >= getattr(rule, "needs", 0))


def memory_of(rule: Rule) -> Any:
    """What this rule remembers of one worker at first; None for most, which remember nothing."""
    begin = getattr(rule, "begin", None)
    return None if begin is None else begin()


def amended(rule: Rule, merged: Tensor, weight: float, arrived: Sequence[Arrived], memory: Any) -> Tensor:
    """What a worker applies of what the rule has merged: most rules leave it as it is."""
    if memory is None:
        return merged
    amend: Callable[..., Tensor] = rule.amend  # type: ignore[attr-defined]
    return amend(merged, weight, arrived, memory)


RULES: Mapping[str, Rule] = MappingProxyType({"mean": mean, "sum": sum_})
"""By the name that the command line uses."""
