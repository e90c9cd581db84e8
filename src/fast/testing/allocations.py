"""Sees the memory that torch's operations take, for kits that forbid it."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@final
class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered: the largest tensor that an operation made in memory of its own, in bytes, and
    which operation that was."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self.by = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {_place(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and _place(each) not in known and _nbytes(each) > self.largest:
                self.largest, self.by = _nbytes(each), str(func)
        return result


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _nbytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
