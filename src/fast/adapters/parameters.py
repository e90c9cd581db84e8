"""Which parameters take part, and whether they are still the ones that did at the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fast.errors import UsageError

Named = tuple[str, Tensor]


def choose(model: nn.Module, optimizer: Optimizer) -> list[Named]:
    """The trainable parameters of the optimizer's groups, each once.

    Those of the model come in its own order, then those that only the optimizer knows.
    """
    wanted = {id(p): p for p in grouped(optimizer) if p.requires_grad}
    chosen: list[Named] = [(plain_name(name), p) for name, p in model.named_parameters() if id(p) in wanted]
    inside = {id(p) for _, p in chosen}
    strays = enumerate(grouped(optimizer))
    chosen += [(f"optimizer.{n}", p) for n, p in strays if id(p) in wanted and id(p) not in inside]
    if not chosen:
        raise UsageError(
            "the optimizer has no trainable parameter, so there is nothing to train. "
            "Pass it parameters with requires_grad=True, e.g. torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    for name, p in chosen:
        _check_parameter(name, p)
    _check_separate(chosen)
    return chosen


def others(model: nn.Module, optimizer: Optimizer, chosen: Sequence[Named]) -> list[Named]:
    """Parameters of the model or the optimizer that don't take part: frozen, or in no group."""
    taken = {id(p) for _, p in chosen}
    rest: list[Named] = [(plain_name(name), p) for name, p in model.named_parameters() if id(p) not in taken]
    taken |= {id(p) for _, p in rest}
    strays = enumerate(grouped(optimizer))
    return rest + [(f"optimizer.{n}", p) for n, p in strays if id(p) not in taken]


def grouped(optimizer: Optimizer) -> Iterator[Tensor]:
    """All parameters of the optimizer, group after group."""
    return (p for group in optimizer.param_groups for p in group["params"])


def plain_name(name: str) -> str:
    """Without the prefix of torch.compile, so that compiled and plain models mean the same."""
    return name.replace("_orig_mod.", "")


def widest(parameters: Sequence[Tensor]) -> torch.dtype:
    """The smallest dtype that holds the values of all of them."""
    return reduce(torch.promote_types, (p.dtype for p in parameters))


def _check_parameter(name: str, p: Tensor) -> None:
    if isinstance(p, nn.UninitializedParameter):
        raise UsageError(
            f"parameter {name!r} has no shape yet (a lazy module); run one batch through the model first."
        )
    if not p.is_leaf:
        raise UsageError(
            f"parameter {name!r} of the optimizer is the result of a computation, not a leaf. "
            "Give the optimizer the tensors that it was computed from."
        )
    if p.layout != torch.strided or not p.is_floating_point():
        raise UsageError(
            f"parameter {name!r} is {p.dtype} with layout {p.layout}; parameters must be dense, real, "
            "floating point. Keep a complex one as its real view (torch.view_as_real) and convert it "
            "in forward()."
        )


def _check_separate(chosen: Sequence[Named]) -> None:
    seen: dict[int, str] = {}
    for name, p in chosen:
        at = p.data_ptr()
        if at and seen.setdefault(at, name) != name:
            raise UsageError(
                f"parameters {seen[at]!r} and {name!r} are two objects on one memory. Tie them by assigning "
                "one Parameter to both modules (b.weight = a.weight)."
            )


class Census:
    """Remembers who took part, to refuse what would make the replica train something else."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, chosen: Sequence[Named]) -> None:
        self._optimizer = optimizer
        self._chosen = [(name, p, p.dtype, p.device) for name, p in chosen]
        names = {id(p): name for name, p in chosen}
        self._count = sum(1 for _ in grouped(optimizer))
        self._frozen = [p for p in grouped(optimizer) if id(p) not in names]
        self._places = [
            (module._parameters, slot, p, names[id(p)])
            for module in model.modules()
            for slot, p in module._parameters.items()
            if p is not None and id(p) in names
        ]

    def check(self) -> None:
        for table, slot, p, name in self._places:
            if table.get(slot) is not p:
                raise UsageError(
                    f"parameter {name!r} of the model was replaced by another object, so the optimizer "
                    "trains one that the model no longer uses. Do load_state_dict(assign=True) and the like "
                    "before joining."
                )
        for name, chosen, dtype, device in self._chosen:
            if not chosen.requires_grad:
                raise self._refusal(f"parameter {name!r} was trainable and is frozen now")
            if chosen.dtype != dtype or chosen.device != device:
                raise UsageError(
                    f"parameter {name!r} was {dtype} on {device} and is {chosen.dtype} on {chosen.device} "
                    "now. Convert or move the model before joining."
                )
        if any(p.requires_grad for p in self._frozen):
            raise self._refusal("a parameter of the optimizer was frozen and is trainable now")
        if sum(len(group["params"]) for group in self._optimizer.param_groups) != self._count:
            raise self._refusal("the optimizer's groups have other parameters now")

    @staticmethod
    def _refusal(found: str) -> UsageError:
        return UsageError(
            f"{found}. All workers exchange the parameters that were trainable when they joined; freeze, "
            "unfreeze and add them before that. To hold one still for a while, leave its gradient None or "
            "its rate 0."
        )
