"""Memory for letters that come and go: what was used once is used again, because first touch is slow."""

from __future__ import annotations

from collections import defaultdict
from threading import Lock
from typing import final

import torch
from torch import Tensor, UntypedStorage

_WORTH_BYTES = 64 << 10
"""Smaller memory comes from the allocator at no cost worth saving."""
_KEPT = 4
"""Number of pieces of one size that are kept while nobody uses them."""


@final
class Pool:
    """Flat bytes in sizes of powers of two, so that letters of changing sizes need few of them."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[UntypedStorage]] = defaultdict(list)
        self._lock = Lock()

    def take(self, nbytes: int) -> Tensor:
        if nbytes < _WORTH_BYTES:
            return torch.empty(nbytes, dtype=torch.uint8)
        room = 1 << (nbytes - 1).bit_length()
        with self._lock:
            free = self._free[room]
            storage = free.pop() if free else None
        if storage is None:
            storage = torch.empty(room, dtype=torch.uint8).untyped_storage()
        return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,), (1,))

    def give(self, memory: Tensor) -> None:
        """Nobody reads it any more. Of each size a few pieces are kept."""
        storage = memory.untyped_storage()
        with self._lock:
            if memory.numel() >= _WORTH_BYTES and len(self._free[storage.nbytes()]) < _KEPT:
                self._free[storage.nbytes()].append(storage)
