"""One name for a kernel that is written twice: torch operations, and a compiled loop for the CPU."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast, final

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


@final
class Kernel(Generic[P, R]):
    """Called with a tensor first, on whose device it depends which of the two does the work."""

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        """Torch operations, for any device."""
        functools.update_wrapper(cast("Callable[..., Any]", self), reference)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        work = self.compiled if cast(Tensor, args[0]).device.type == "cpu" else self.reference
        return work(*args, **kwargs)

    @functools.cached_property
    def compiled(self) -> Callable[P, R]:
        """The function of the same name in the module beside, `..._numba`; imported on first use."""
        beside = importlib.import_module(f"{self.reference.__module__}_numba")
        return cast("Callable[P, R]", getattr(beside, self.reference.__name__))


def kernel(reference: Callable[P, R]) -> Kernel[P, R]:
    """Make a kernel of its torch version: as a decorator in `theme.py`, with a function of the same
    name and arguments in `theme_numba.py`."""
    return Kernel(reference)
