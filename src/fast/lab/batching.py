"""How simulated workers' gradients are computed: one by one like real ones, or all that are under way together.

Batched products round differently, so this is a setting that is written down with the result. What it is
unless told is a rule about layers and strategies and one trial on real samples: never a timing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from fast.adapters.batchable import Verdict, batchable
from fast.adapters.rows import Rows
from fast.core import Strategy, Task
from fast.errors import UsageError
from fast.runtime import seed_gradient
from fast.sim.gradients import Begun, Evaluate
from fast.strategies.calls import short_call

Asked = Literal["auto", "together", "exact"]
WAYS: tuple[Asked, ...] = ("auto", "together", "exact")
FEWEST = 16
"""With fewer workers than these there is nothing to gain from batching."""


@dataclass(frozen=True)
class Way:
    """What was decided, and why."""

    together: bool
    reason: str

    def __str__(self) -> str:
        return f"{'together' if self.together else 'exact'} ({self.reason})"


def way_of(asked: str, task: Task, strategy: Strategy, workers: int) -> Way:
    """Whether this strategy's gradients of this task are batched."""
    if asked not in WAYS:
        raise UsageError(f"gradients {asked!r}: they are computed {', '.join(WAYS[:-1])} or {WAYS[-1]}")
    if asked == "exact":
        return Way(False, "as asked")
    if asked == "auto" and workers < FEWEST:
        return Way(False, f"fewer than {FEWEST} workers")
    model = task.model()
    verdict = _verdict(task, model, task.optimizer(model), strategy, asked == "together")
    if asked == "together" and not verdict.together:
        raise UsageError(
            f"the gradients of {strategy!r} can't be computed together: {verdict.reason}. Use auto or exact."
        )
    return Way(verdict.together, "as asked" if asked == "together" else verdict.reason)


def ways_of(asked: str, task: Task, strategies: Sequence[Strategy], workers: int) -> dict[str, Way]:
    """By the strategies' calls."""
    return {repr(strategy): way_of(asked, task, strategy, workers) for strategy in strategies}


def in_words(ways: Mapping[str, str]) -> list[str]:
    """How the gradients were computed: a line for all strategies, or for those that have one in common."""
    alike: dict[str, list[str]] = {}
    for call, way in ways.items():
        alike.setdefault(way, []).append(short_call(call))
    if len(alike) == 1:
        return [f"gradients {way}" for way in alike]
    return [f"gradients of {', '.join(calls)} {way}" for way, calls in alike.items()]


def _verdict(
    task: Task, model: nn.Module, optimizer: Optimizer, strategy: Strategy, demanded: bool
) -> Verdict:
    for verdict in (_of_strategy(strategy), batchable(model, optimizer)):
        if not verdict.together and not (demanded and verdict.may_ask):
            return verdict
    fault = _trial(task, model, optimizer)
    return verdict if fault is None and verdict.together else Verdict(fault is None, fault or "as asked")


def _of_strategy(strategy: Strategy) -> Verdict:
    if strategy.computes_gradient:
        return Verdict(False, f"{strategy!r} computes its gradients itself", may_ask=False)
    if strategy.uses_factors:
        return Verdict(False, f"{strategy!r} looks into the layers", may_ask=False)
    if strategy.bucket_bytes is not None:
        return Verdict(False, f"{strategy!r} sends buckets while backward runs")
    return Verdict(True, "")


def _trial(task: Task, model: nn.Module, optimizer: Optimizer) -> str | None:
    """What goes wrong with two workers on the first samples; None if nothing does. A loss may do what
    can't be batched (draw, or ask for a value), whatever the layers are."""
    rows = Rows(model, optimizer, task.loss, 2)
    size = min(task.batch_size, len(task.train()))
    batches = [task.batch(list(range(size)))] * 2
    alone = rows.gradient_alone(0, batches[0])
    try:
        rows.evaluate([0, 1], batches)
    except Exception as error:
        return f"{type(error).__name__} where the loss of two workers is batched: {str(error).partition(chr(10))[0]}"
    found = rows.layout.views(rows.gradients[1])
    near = all(one is None or _near(one, other) for one, other in zip(alone, found, strict=True))
    return None if near else "batched, the gradient is another one"


def _near(one: Tensor, other: Tensor) -> bool:
    tolerance = torch.finfo(one.dtype).eps ** 0.5
    return bool(torch.linalg.vector_norm(one - other) <= tolerance * torch.linalg.vector_norm(one))


# Evaluating


def evaluator(task: Task, rows: Rows, seed: int) -> Evaluate:
    """For `Together`: gradients of steps that are given as (indices, how many samples they count for)."""

    def evaluate(begun: Sequence[Begun]) -> None:
        alike: dict[int, list[Begun]] = {}
        for each in begun:
            indices, samples = each.batch
            rows.replicas[each.worker].samples = samples
            if samples == 0:
                _count_nothing(rows, each.worker)
            else:
                alike.setdefault(len(indices), []).append(each)
        for size, some in alike.items():
            workers = [each.worker for each in some]
            if task.stackable:
                rows.evaluate_stacked(workers, _looked_up(task, some, size))
            else:
                rows.evaluate(workers, [_batch(task, each, seed) for each in some])

    return evaluate


def _count_nothing(rows: Rows, worker: int) -> None:
    """A step that is there only so that everybody takes as many."""
    rows.gradients[worker].zero_()
    rows.replicas[worker].present = 0


def _batch(task: Task, begun: Begun, seed: int) -> Any:
    """Seeded as on a real worker, for tasks that draw while they put a batch together."""
    seed_gradient(seed, begun.worker, begun.step)
    return task.batch(begun.batch[0])


def _looked_up(task: Task, begun: Sequence[Begun], size: int) -> Any:
    """All their batches in one call."""
    indices = chain.from_iterable(each.batch[0] for each in begun)
    batch = task.batch(np.fromiter(indices, np.int64, size * len(begun)))  # type: ignore[arg-type]
    return pytree.tree_map(lambda leaf: _unfold(task, leaf, len(begun), size), batch)


def _unfold(task: Task, leaf: Tensor, workers: int, size: int) -> Tensor:
    if len(leaf) != workers * size:
        raise UsageError(
            f"{task.name} says that its batches are stackable, and its batch of {workers * size} samples has "
            f"{len(leaf)} rows. Leave out `stackable`, or give one row for each index."
        )
    return leaf.view(workers, size, *leaf.shape[1:])
