"""Flat memory: where it comes from, and views into it that are made once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fast.errors import UsageError
from fast.view import ALIGN_BYTES, Layout

Allocate = Callable[[int], Tensor]
"""Takes a number of bytes and gives that much memory as an uint8 tensor, 64-byte aligned."""


def flat_tensor(layout: Layout, device: torch.device, allocate: Allocate | None) -> Tensor:
    """A zeroed flat tensor for this layout, in memory of `allocate` or in plain memory on `device`."""
    if allocate is None:
        return torch.zeros(layout.size, dtype=layout.dtype, device=device)
    memory = allocate(layout.nbytes)
    aligned = memory.data_ptr() % ALIGN_BYTES == 0
    if memory.dtype != torch.uint8 or memory.numel() != layout.nbytes or not aligned:
        raise UsageError(
            f"allocate({layout.nbytes}) gave {memory.numel()} elements of {memory.dtype} at address "
            f"{memory.data_ptr():#x}; it must give that many of torch.uint8 at a multiple of {ALIGN_BYTES}."
        )
    return memory.view(layout.dtype).zero_()


class Views:
    """The parameters' views into flat gradients, made once per tensor object.

    A world hands over the same result tensor step after step, so nothing is allocated after the
    first. The views are taken from `flat.data`: they neither keep `flat` alive once its owner
    drops it, nor count as changes of it.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def of(self, flat: Tensor) -> list[Tensor]:
        views: list[Tensor] | None = self._known.get(flat)  # type: ignore[no-untyped-call]
        if views is None:
            self._check(flat)
            views = self._known[flat] = self.layout.views(flat.data)
        return views

    def _check(self, flat: Tensor) -> None:
        fits = flat.dtype == self.layout.dtype and tuple(flat.shape) == (self.layout.size,)
        if not fits or not flat.is_contiguous():
            raise UsageError(
                f"apply() got {'' if flat.is_contiguous() else 'non-contiguous '}{flat.dtype} of shape "
                f"{tuple(flat.shape)}; it needs a contiguous flat gradient like me.gradient, "
                f"{self.layout.dtype} of shape ({self.layout.size},)."
            )
