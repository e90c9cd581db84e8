"""Kernels for memory that several participants change at once, without a lock.

A change is from `before` to `after`, component by component. Where they are equal nothing is read or
written, so changes of different components never touch each other. Where the memory still is
`before` it becomes `after`, to the bit; elsewhere somebody else was there, and the difference is added.

`amend` reads a component and writes it afterwards: what somebody else writes in between is lost.
`amend_atomically` writes it only if it is still what was read, and else begins anew: nothing is lost. That
is one instruction of the processor (compare and swap), which no torch operation offers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fast.parts.kernels.choosing import kernel

SWAPPED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""What a processor compares and swaps."""


@kernel
def amend(memory: Tensor, before: Tensor, after: Tensor) -> None:
    """Change flat memory that others change too."""
    places = (after != before).nonzero().view(-1)
    now = memory[places]
    memory[places] = amended(now, before[places], after[places])


def amended(now: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """What components become that are `now`."""
    return torch.where(now == before, after, now + (after - before))


@kernel
def amend_atomically(memory: Tensor, before: Tensor, after: Tensor) -> None:
    """The same, and no change of anybody is lost. On a device that isn't shared nobody can disturb."""
    amend.reference(memory, before, after)


def prepare(dtype: torch.dtype) -> None:
    """Load the compiled loops, which takes a second, before somebody's step has to wait for it."""
    for kind in (dtype, torch.int64):
        nothing = torch.zeros(0, dtype=kind)
        amend(nothing, nothing, nothing)
        if kind in SWAPPED:
            amend_atomically(nothing, nothing, nothing)
