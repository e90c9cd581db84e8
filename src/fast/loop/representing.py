"""One model out of many replicas, by a policy: the same bits on every worker."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fast.adapters.parameters import plain_name
from fast.errors import UsageError
from fast.loop.loose import Told, agree_on_loose
from fast.loop.policies import Average, Best, Chosen, Ema, Policy
from fast.loop.reestimating import reestimate
from fast.runtime.gathering import LiveReplicas, Replicas
from fast.view import Layout

Model = TypeVar("Model", bound=nn.Module)
Values = tuple[Tensor, Sequence[Tensor], int | None]
"""Flat weights, the buffers in their order, and the worker whose replica this is; None for a mean."""


def represent(
    model: Model,
    replicas: Replicas,
    policy: Policy,
    batches: Iterable[Any] | None,
    moving: Tensor | None,
    say: Told,
) -> Model:
    """All workers do it at the same time. `moving` is this worker's own moving average, if it keeps one."""
    _agree(replicas, _terms(policy, batches))
    at_least = policy.at_least if isinstance(policy, Average | Ema) else 0.0
    replicas.gather(at_least, moving if isinstance(policy, Ema) else None)
    weights, buffers, only = _values(model, replicas, policy)
    final = plain_copy(model)
    _load(final, replicas.layout, weights, replicas.named(buffers))
    agree_on_loose(final, replicas, only, say)
    if batches is not None:
        reestimate(final, batches, lambda mine: replicas.company.share(mine, "statistics of BatchNorm"))
    return final


def _values(model: nn.Module, replicas: Replicas, policy: Policy) -> Values:
    match policy:
        case Average():
            return replicas.mean_weights(), replicas.mean_buffers(), None
        case Ema():
            return replicas.mean_moving(), replicas.mean_buffers(), None
        case Best():
            worker = _best(model, replicas, policy)
        case Chosen(worker):
            _check_there(worker, replicas)
    return replicas.weights(worker), replicas.buffers(worker), worker


def _terms(policy: Policy, batches: object) -> str:
    """What this worker asks for, in words that all workers must have in common."""
    words = "Best(...)" if isinstance(policy, Best) else repr(policy)
    return f"{words} with{'out' if batches is None else ''} batches"


def _agree(replicas: Replicas, terms: str) -> None:
    shown = replicas.company.share(torch.tensor(list(terms.encode()), dtype=torch.uint8), "policy")
    asked = {worker: bytes(words.tolist()).decode() for worker, words in shown.items()}
    first, *others = sorted(asked)
    for other in others:
        if asked[other] != asked[first]:
            raise UsageError(
                f"worker {first} asks for {asked[first]} and worker {other} for {asked[other]}. All workers make the "
                "same model together: give them the same policy, and batches to all or to none."
            )


def _best(model: nn.Module, replicas: Replicas, policy: Best) -> int:
    """Whoever has left without being asked for its score can't win."""
    scores = _scores(model, replicas, policy)
    able = [worker for worker in replicas.workers if worker in scores] or sorted(scores)
    return max(able, key=lambda worker: (scores[worker], -worker))


def _scores(model: nn.Module, replicas: Replicas, policy: Best) -> dict[int, float]:
    """Everybody scores its own; who is alone with it scores all of them."""
    if isinstance(replicas, LiveReplicas):
        filled = ((worker, _filled(model, replicas, worker)) for worker in replicas.workers)
        return {worker: score_of(copy, policy) for worker, copy in filled}
    mine = torch.tensor([score_of(model, policy)], dtype=torch.float64)
    return {worker: float(score) for worker, score in replicas.company.share(mine, "score").items()}


def _filled(model: Model, replicas: Replicas, worker: int) -> Model:
    """A copy of the model with this worker's values."""
    copy = plain_copy(model)
    _load(copy, replicas.layout, replicas.weights(worker), replicas.named(replicas.buffers(worker)))
    return copy


def score_of(model: nn.Module, policy: Best) -> float:
    """Of this worker's replica."""
    with torch.no_grad():
        found = policy.score(plain_copy(model).eval())
    try:
        score = float(found)
    except (TypeError, ValueError):
        raise UsageError(
            f"the score of Best returned {type(found).__name__}, and it must be one number: higher is better"
        ) from None
    return -math.inf if math.isnan(score) else score


def _check_there(worker: int, replicas: Replicas) -> None:
    """At the end everybody has left something; in a pause those who are still in."""
    if replicas.only_present and worker not in replicas.workers:
        there = ", ".join(map(str, replicas.workers))
        raise UsageError(
            f"Chosen(worker={worker}): it has left the training. Still in it are {there}; its replica is to be had "
            "from fast.consolidate, at the end."
        )


def plain_copy(model: Model) -> Model:
    """A copy in memory of its own, without gradients."""
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in grads:
            parameter.grad = None
        return copy.deepcopy(model)
    finally:
        for parameter, grad in grads:
            parameter.grad = grad


@torch.no_grad()
def _load(model: nn.Module, layout: Layout, weights: Tensor, buffers: Sequence[tuple[str, Tensor]]) -> None:
    parameters = {plain_name(name): p for name, p in model.named_parameters()}
    own_buffers = {plain_name(name): buffer for name, buffer in model.named_buffers()}
    for segment in layout.segments:
        if segment.name in parameters:
            parameters[segment.name].copy_(segment.of(weights))
    for name, values in buffers:
        if name in own_buffers:
            own_buffers[name].copy_(values)
