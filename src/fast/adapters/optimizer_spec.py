"""An optimizer as plain data, so that a server can build it without running anybody's script."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from fast.errors import UsageError
from fast.view import Layout

KNOWN: Mapping[str, type[Optimizer]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            optim.SGD,
            optim.Adam,
            optim.AdamW,
            optim.NAdam,
            optim.RAdam,
            optim.Adamax,
            optim.Adadelta,
            optim.Adagrad,
            optim.RMSprop,
            optim.Rprop,
            optim.ASGD,
            optim.Adafactor,
            optim.Muon,
        )
    }
)
"""The optimizers that a server builds. All of them only read p.grad, in every variant (tested)."""

ELEMENT_WISE = frozenset(
    ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "Rprop", "ASGD")
)
"""Those that move each value by its own gradient and state alone: they may run on any slice that is cut at a
multiple of 64 bytes. Others (Adafactor, Muon) look at rows and columns, and need whole parameters."""

_ONLY_HERE = ("capturable", "differentiable")
"""Options that change how a step is recorded, not what it computes; servers leave them out."""


def describe(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """Name, defaults and groups as plain data. `names` gives a parameter's segment by its `id`."""
    kind = type(optimizer)
    if KNOWN.get(kind.__name__) is not kind:
        raise UsageError(
            f"a server can't build {kind.__name__}: it takes only optimizers of torch.optim by name "
            f"({', '.join(KNOWN)}). Use one of them, or a strategy without servers."
        )
    return {
        "name": kind.__name__,
        "defaults": _plain(optimizer.defaults),
        "groups": [
            {
                "options": _plain({key: group[key] for key in optimizer.defaults if key in group}),
                "segments": [names[id(p)] for p in group["params"] if id(p) in names],
            }
            for group in optimizer.param_groups
        ],
    }


def shards_of(spec: Mapping[str, Any], layout: Layout, count: int) -> list[slice]:
    """The flat tensor of this layout in slices on which servers may each run this optimizer."""
    return layout.shards(count, whole_parameters=spec["name"] not in ELEMENT_WISE)


def build(spec: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> Optimizer:
    """The optimizer of this description, over those of its segments that are in `parameters`.

    Groups that have none of them stay, empty, so that learning rates keep their places.
    """
    kind = KNOWN.get(spec["name"])
    if kind is None:
        raise UsageError(f"there is no optimizer {spec['name']!r} to build; known are {', '.join(KNOWN)}.")
    accepted = inspect.signature(kind).parameters
    defaults = {key: value for key, value in _unplain(spec["defaults"]).items() if key in accepted}
    groups = [
        {
            "params": [parameters[name] for name in group["segments"] if name in parameters],
            **_unplain(group["options"]),
        }
        for group in spec["groups"]
    ]
    return kind(groups, **defaults)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain_value(key, value) for key, value in options.items() if key not in _ONLY_HERE}


def _plain_value(key: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain_value(key, item) for item in value]
        case Tensor() if value.numel() == 1:
            return {"tensor": value.item(), "dtype": str(value.dtype).removeprefix("torch.")}
        case _:
            raise UsageError(
                f"the optimizer's option {key}={value!r} is a {type(value).__name__}, which can't be sent to "
                "a server; use numbers, strings, booleans or tuples of them."
            )


def _unplain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _unplain_value(value) for key, value in options.items()}


def _unplain_value(value: Any) -> Any:
    match value:
        case list() | tuple():
            return tuple(_unplain_value(item) for item in value)
        case {"tensor": number, "dtype": name}:
            return torch.tensor(number, dtype=getattr(torch, name))
        case _:
            return value
