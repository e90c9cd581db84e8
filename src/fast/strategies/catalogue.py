"""Presets: functions that carry a paper's name, with their place in the taxonomy."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from fast.core import Strategy
from fast.errors import UsageError
from fast.strategies.decentral.moments import POLICIES

_SCHEDULING = ("synchronous", "bounded", "unbounded")
"""How the scheduling of a preset begins."""


@dataclass(frozen=True)
class Place:
    """A preset's place in the taxonomy of distributed training (Langer et al., 2020)."""

    system: str
    parallelism: str
    optimization: str
    scheduling: str
    exchange: str
    topology: str
    reference: str
    moments: str = "the servers', or the same on all workers"
    """What becomes of the optimizer's moments, unless an argument says otherwise."""


class Preset:
    """A function that configures a family. Calling it gives a Strategy that knows its own call."""

    def __init__(self, build: Callable[..., Strategy], place: Place) -> None:
        self.build, self.place, self.name = build, place, build.__name__
        self.signature = inspect.signature(build)
        functools.update_wrapper(self, build)

    def __call__(self, *args: Any, **kwargs: Any) -> Strategy:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        strategy = self.build(*bound.args, **bound.kwargs)
        strategy.call = canonical_call(self.name, bound.arguments)
        return strategy

    @property
    def moments(self) -> tuple[str, ...]:
        """The policies for the optimizer's moments that one can choose from; none where there is no such choice."""
        return tuple(policy for policy in POLICIES if self._takes(moments=policy))

    def _takes(self, **arguments: Any) -> bool:
        if not arguments.keys() <= self.signature.parameters.keys():
            return False
        with suppress(UsageError):
            self(**arguments)
            return True
        return False

    def row(self) -> dict[str, str]:
        """One row of the table that `fast strategies` prints."""
        return {"name": self.name, **asdict(self.place)}

    def __repr__(self) -> str:
        return f"<preset {self.name}{self.signature}>"


def preset(**place: str) -> Callable[[Callable[..., Strategy]], Preset]:
    """Make a preset of a function, at this place of the taxonomy."""
    return lambda build: Preset(build, Place(**place))


def canonical_call(name: str, arguments: Mapping[str, Any]) -> str:
    """The call with all its arguments, as the command line would read it."""
    return f"{name}({', '.join(f'{key}={_text(value)}' for key, value in arguments.items())})"


def _text(value: object) -> str:
    return str(getattr(value, "__name__", None) or repr(value)).rstrip("_")


def catalogue() -> dict[str, Preset]:
    """All presets by name, along the taxonomy: central before decentral, lock-step before delay."""
    presets = importlib.import_module("fast.strategies.presets")  # which itself needs this module
    found = [value for value in vars(presets).values() if isinstance(value, Preset)]
    return {preset.name: preset for preset in sorted(found, key=_along_the_taxonomy)}


def _along_the_taxonomy(preset: Preset) -> tuple[str, int, str]:
    place = preset.place
    late = next(n for n, word in enumerate((*_SCHEDULING, "")) if place.scheduling.startswith(word))
    return place.optimization, late, place.scheduling


def find(name: str) -> Preset:
    """The preset of this name, or UsageError with the nearest right names."""
    known = catalogue()
    if name not in known:
        near = get_close_matches(name, known, n=2, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
        raise UsageError(f"there is no strategy {name!r}. {hint} `fast strategies --all` lists them.")
    return known[name]
