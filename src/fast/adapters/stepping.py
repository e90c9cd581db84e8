"""One step of an optimizer with gradients that are lent to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from fast.adapters.optimizer_spec import KNOWN
from fast.errors import UsageError


def check_optimizer(optimizer: object) -> None:
    """Refuse what isn't an optimizer, or can't take a step with a given gradient."""
    if not isinstance(optimizer, Optimizer):
        raise UsageError(
            f"the optimizer is {type(optimizer).__name__}; it must be a torch.optim.Optimizer, "
            "e.g. torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"{type(optimizer).__name__} computes gradients of its own inside step(closure), which workers "
            "can't merge. Use an optimizer that takes one gradient per step, e.g. SGD or Adam."
        )


def only_reads(optimizer: Optimizer) -> bool:
    """Whether this optimizer is known to leave p.grad as it is, in every variant.

    Hooks around its step may do anything, so they count as writers.
    """
    return (
        type(optimizer) in KNOWN.values()
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and not _global_optimizer_pre_hooks
        and not _global_optimizer_post_hooks
        and not any(group.get("differentiable") for group in optimizer.param_groups)
    )


def step_with(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    present: int | None,
    step: Callable[[], object],
) -> None:
    """Call `step` while each p.grad is the given one, or None where its bit is 0.

    Afterwards every parameter has the gradient back that it had before, so that a later
    zero_grad(set_to_none=False) never writes into lent memory; unless somebody dropped the lent
    one in between (zero_grad in a hook), which then holds for its own one as well.
    """
    kept = [p.grad for p in parameters]
    lent = [gradient if present is None or present >> n & 1 else None for n, gradient in enumerate(gradients)]
    try:
        for p, gradient in zip(parameters, lent, strict=True):
            p.grad = gradient
        step()
    finally:
        for p, gradient, own in zip(parameters, lent, kept, strict=True):
            p.grad = None if gradient is not None and p.grad is None else own


def rates_of(optimizer: Optimizer) -> list[float]:
    """The learning rate of each group, 0 for a group that has none."""
    return [float(group.get("lr", 0.0)) for group in optimizer.param_groups]


def set_rates(optimizer: Optimizer, rates: Sequence[float]) -> None:
    """Give each group its learning rate; one that is a tensor stays that tensor."""
    if len(rates) != len(optimizer.param_groups):
        raise UsageError(
            f"{len(rates)} learning rates for {len(optimizer.param_groups)} parameter groups; "
            "pass one per group."
        )
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group.get("lr"), Tensor):
            group["lr"].fill_(rate)
        elif "lr" in group:
            group["lr"] = rate


@contextmanager
def at_rates(optimizer: Optimizer, rates: Sequence[float] | None) -> Iterator[None]:
    """Inside, the groups have these learning rates; None for their own."""
    if rates is None:
        yield
        return
    before = rates_of(optimizer)
    set_rates(optimizer, rates)
    try:
        yield
    finally:
        set_rates(optimizer, before)


def cloned(value: Any) -> Any:
    """The same nested data, sharing no tensor with it."""
    match value:
        case Tensor():
            return value.detach().clone()
        case dict():
            return {key: cloned(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(cloned(item) for item in value)
        case _:
            return value
