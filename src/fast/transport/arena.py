"""Shared memory that grows, behind one inherited file descriptor.

The file has no name (`memfd_create`), so nothing is left behind whoever is killed, and the size
of /dev/shm doesn't matter. Only the owner grows it; peers map a region once they are told where
it is, which is always after it exists.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import bisect_right

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE


def create_arena(name: str, nbytes: int) -> int:
    """A new nameless file of shared memory; returns its descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, 0)
    else:  # not Linux: an unlinked temporary file does the same, through the page cache
        handle, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
        fd = handle
    os.ftruncate(fd, round_up(nbytes))
    return fd


def round_up(nbytes: int) -> int:
    """To whole pages."""
    return -(-nbytes // PAGE) * PAGE


class Arena:
    """One participant's shared memory, as its owner or as a peer sees it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._maps: dict[int, Tensor] = {}
        self._owned: list[tuple[int, int, int]] = []

    def map(self, offset: int, nbytes: int) -> Tensor:
        """The bytes at this place. Mapped once; `offset` is a multiple of the page size."""
        mapped = self._maps.get(offset)
        if mapped is None or mapped.numel() < nbytes:
            memory = mmap.mmap(self.fd, round_up(nbytes), offset=offset)
            mapped = torch.frombuffer(memory, dtype=torch.uint8)
            self._maps[offset] = mapped
        return mapped[:nbytes]

    def allocate(self, nbytes: int) -> tuple[int, Tensor]:
        """Grow by whole pages; returns the new region's offset and its bytes. For the owner only."""
        offset = os.fstat(self.fd).st_size
        os.ftruncate(self.fd, offset + round_up(max(nbytes, 1)))
        region = self.map(offset, round_up(max(nbytes, 1)))
        self._owned.append((region.data_ptr(), region.numel(), offset))
        self._owned.sort()
        return offset, region[:nbytes]

    def where(self, tensor: Tensor) -> int | None:
        """The offset of a tensor that lies in a region of ours, or None."""
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            return None
        address, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        place = bisect_right(self._owned, (address, 2**63, 2**63)) - 1
        if place < 0:
            return None
        start, size, offset = self._owned[place]
        return offset + address - start if address + nbytes <= start + size else None

    def read(self, offset: int, nbytes: int) -> Tensor:
        """The bytes at any offset, also in the middle of a page."""
        first = offset // PAGE * PAGE
        return self.map(first, offset - first + nbytes)[offset - first :]
