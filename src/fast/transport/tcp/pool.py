"""Memory for letters that come and go: what was used once is used again, because first touch is slow."""

from __future__ import annotations

from collections import defaultdict
from threading import Lock
from typing import final

import torch
from torch import Tensor

_WORTH_BYTES = 64 << 10
"""Smaller memory comes from the allocator at no cost worth saving."""


@final
class Pool:
    """Flat bytes by size. It keeps at most `limit_bytes` that nobody uses."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._kept_bytes = limit_bytes, 0
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._lock = Lock()

    def take(self, nbytes: int) -> Tensor:
        with self._lock:
            free = self._free.get(nbytes)
            if free:
                self._kept_bytes -= nbytes
                return free.pop()
        return torch.empty(nbytes, dtype=torch.uint8)

    def give(self, memory: Tensor) -> None:
        nbytes = memory.numel()
        with self._lock:
            if nbytes < _WORTH_BYTES or nbytes > self._limit_bytes:
                return
            if self._kept_bytes + nbytes > self._limit_bytes:  # sizes have changed: begin anew
                self._free.clear()
                self._kept_bytes = 0
            self._free[nbytes].append(memory)
            self._kept_bytes += nbytes
