"""Shared memory that grows, behind one inherited file descriptor.

The file has no name (`memfd_create`), so nothing is left behind whoever is killed, and the size
of /dev/shm doesn't matter. Only the owner grows it; peers map a region once they are told where
it is, which is always after it exists. Nobody can make it smaller, not even its owner: reading a
page that has gone would kill the reader.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from bisect import bisect_right

import torch
from torch import Tensor

from fast.core.framing import lies_flat
from fast.errors import WireError

PAGE = mmap.PAGESIZE
_REGIONS = 1024
"""Of so many a mapping is kept, whatever places a peer names."""


def create_arena(name: str, nbytes: int) -> int:
    """A new nameless file of shared memory; returns its descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    else:  # not Linux: an unlinked temporary file does the same, through the page cache
        handle, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
        fd = handle
    os.ftruncate(fd, round_up(nbytes))
    return fd


def round_up(nbytes: int) -> int:
    """To whole pages, at least one."""
    return -(-max(nbytes, 1) // PAGE) * PAGE


class Arena:
    """One participant's shared memory, as its owner or as a peer sees it."""

    def __init__(self, fd: int, owner: int = 0) -> None:
        self.fd, self.owner = fd, owner
        self._maps: dict[int, Tensor] = {}
        self._owned: list[tuple[int, int, int]] = []
        self._regions: list[Tensor] = []

    def map(self, offset: int, nbytes: int) -> Tensor:
        """The bytes at this place. Mapped once; `offset` is a multiple of the page size."""
        mapped = self._maps.get(offset)
        if mapped is None or mapped.numel() < nbytes:
            mapped = self._keep(offset, self._mapped(offset, nbytes))
        return mapped[:nbytes]

    def _mapped(self, offset: int, nbytes: int) -> Tensor:
        """Where it is comes from its owner, who may lie."""
        size = os.fstat(self.fd).st_size
        if offset % PAGE or offset + round_up(nbytes) > size:
            raise WireError(
                f"participant {self.owner} says that {nbytes} bytes lie at {offset} of its shared memory, "
                f"which has {size}"
            )
        try:
            return _map(self.fd, offset, round_up(nbytes))
        except (OSError, ValueError) as error:
            raise WireError(f"{nbytes} bytes of participant {self.owner} can't be mapped: {error}") from error

    def _keep(self, offset: int, mapped: Tensor) -> Tensor:
        """The oldest mapping goes; it stays as long as somebody reads it."""
        if len(self._maps) >= _REGIONS and offset not in self._maps:
            del self._maps[next(iter(self._maps))]
        self._maps[offset] = mapped
        return mapped

    def allocate(self, nbytes: int) -> tuple[int, Tensor]:
        """Grow by whole pages; returns the new region's offset and its bytes. For the owner only."""
        offset = os.fstat(self.fd).st_size
        os.ftruncate(self.fd, offset + round_up(nbytes))
        region = self._keep(offset, _map(self.fd, offset, round_up(nbytes)))
        self._regions.append(region)  # never unmapped: its address says whose it is
        self._owned.append((region.data_ptr(), region.numel(), offset))
        self._owned.sort()
        return offset, region[:nbytes]

    def where(self, tensor: Tensor) -> int | None:
        """The offset of a tensor that lies in a region of ours, or None."""
        if not lies_flat(tensor):
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


def _map(fd: int, offset: int, nbytes: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(fd, nbytes, offset=offset), dtype=torch.uint8)
