"""The part of the kit for transports about what they hold on to: memory and descriptors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from fast.core import Letter
from fast.transport import Transport

_LETTERS, _LARGEST_BYTES = 300, 1 << 20
_ALLOWED_BYTES, _ALLOWED_DESCRIPTORS = 32 << 20, 8
"""A fifth of what these letters hold together; a transport with one descriptor per letter needs hundreds."""


def check_growth(ends: Sequence[Transport]) -> None:
    """Letters that are larger each time take the memory of those that are under way, not that of all."""
    first, last = ends[0], ends[-1]
    resident_bytes, descriptors = _resident_bytes(), _descriptors()
    for number in range(_LETTERS):
        tensor = torch.full((_LARGEST_BYTES * (number + 1) // _LETTERS,), number % 251, dtype=torch.uint8)
        assert first.post([last.id], Letter(first.id, "kit", tensor, steps=(number,)), 2) == (), (
            f"letter {number}, of {tensor.numel()} bytes, found no room"
        )
        arrived = last.arrivals()
        assert len(arrived) == 1 and torch.equal(arrived[0].tensor, tensor), (
            f"letter {number}, of {tensor.numel()} bytes, arrived with other values"
        )
        last.release(arrived)
    more_bytes, more_descriptors = _resident_bytes() - resident_bytes, _descriptors() - descriptors
    assert more_bytes < _ALLOWED_BYTES, (
        f"after {_LETTERS} letters of up to {_LARGEST_BYTES} bytes, each released, {more_bytes} bytes are still held"
    )
    assert more_descriptors <= _ALLOWED_DESCRIPTORS, (
        f"after {_LETTERS} letters, each released, {more_descriptors} more descriptors are open"
    )


def _resident_bytes() -> int:
    """The memory of this process, shared memory included; elsewhere than on Linux nobody knows."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def _descriptors() -> int:
    path = Path("/proc/self/fd")
    return len(list(path.iterdir())) if path.exists() else 0
