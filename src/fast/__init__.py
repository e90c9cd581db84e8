"""FAST: Flexible (A)synchronous Scalable Training.

One model, many workers, any way for them to talk:

    model, optimizer = fast.join(model, optimizer, strategy="torus")
    for x, y in fast.shard(loader):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(); optimizer.zero_grad()
    final = fast.consolidate(model)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from fast.errors import FastError, PeerError, PeerLost, UsageError, WireError

if TYPE_CHECKING:
    from fast.core import GRADIENT, WEIGHTS, Letter, Me, Strategy, Tag, Task, fold_newest, fold_sum
    from fast.loop import (
        LargeBatch,
        SyncBatchNorm,
        Worker,
        consolidate,
        final_backward,
        is_main,
        join,
        launch,
        log,
        own,
        policies,
        shard,
        snapshot,
        whoami,
    )
    from fast.parts import rules
    from fast.parts import staleness as corrections
    from fast.parts import topology as topologies
    from fast.parts.codecs import calls as codecs
    from fast.strategies import presets

__version__ = "0.1.0"

_NAMES = MappingProxyType(
    {
        "fast.core": (
            "GRADIENT",
            "WEIGHTS",
            "Letter",
            "Me",
            "Strategy",
            "Tag",
            "Task",
            "fold_newest",
            "fold_sum",
        ),
        "fast.loop": (
            "LargeBatch",
            "SyncBatchNorm",
            "Worker",
            "consolidate",
            "final_backward",
            "is_main",
            "join",
            "launch",
            "log",
            "own",
            "shard",
            "snapshot",
            "whoami",
        ),
    }
)
"""Which module each public name is in. It is imported when the name is used for the first time: importing torch takes
longer than a command takes that only shows its help."""

_ROOMS = MappingProxyType(
    {
        "codecs": "fast.parts.codecs.calls",
        "corrections": "fast.parts.staleness",
        "policies": "fast.loop.policies",
        "presets": "fast.strategies.presets",
        "rules": "fast.parts.rules",
        "topologies": "fast.parts.topology",
    }
)
"""Modules under another name."""


class _Room(ModuleType):
    """Stands for a module until something in it is used, so that `from fast.topologies import Ring` works."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # the machinery of imports asks for its own
            raise AttributeError(name)
        return getattr(_opened(self.__name__.rpartition(".")[2]), name)


def _opened(room: str) -> ModuleType:
    module = sys.modules[f"{__name__}.{room}"] = import_module(_ROOMS[room])
    globals()[room] = module
    return module


sys.modules.update({f"{__name__}.{name}": _Room(f"{__name__}.{name}") for name in _ROOMS})


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return _opened(name)
    for module, names in _NAMES.items():
        if name in names:
            globals()[name] = found = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module 'fast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "GRADIENT",
    "WEIGHTS",
    "FastError",
    "LargeBatch",
    "Letter",
    "Me",
    "PeerError",
    "PeerLost",
    "Strategy",
    "SyncBatchNorm",
    "Tag",
    "Task",
    "UsageError",
    "WireError",
    "Worker",
    "codecs",
    "consolidate",
    "corrections",
    "final_backward",
    "fold_newest",
    "fold_sum",
    "is_main",
    "join",
    "launch",
    "log",
    "own",
    "policies",
    "presets",
    "rules",
    "shard",
    "snapshot",
    "topologies",
    "whoami",
]
