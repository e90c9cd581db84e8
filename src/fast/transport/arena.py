"""Shared memory that grows, behind one inherited file descriptor.

The file has no name (`memfd_create`), so nothing is left behind whoever is killed, and the size
of /dev/shm doesn't matter. Only the owner grows it; peers map a region once they are told where
it is, which is always after it exists. Nobody can make it smaller, not even its owner: reading a
page that has gone would kill the reader. What takes memory is not the file's size but the pages
that somebody has written to; the owner can give those back.

A file is mapped as a whole, and again when it has at least doubled: mappings are few, and they need
no descriptors beside the file's own.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile

import torch
from torch import Tensor

from fast.core.framing import lies_flat
from fast.errors import WireError

PAGE = mmap.PAGESIZE


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


def room_for(nbytes: int) -> int:
    """The size of memory that is used again for what may be larger next time: pages, to a power of two.

    Memory that grows by these sizes has never taken more than twice its last size altogether. Pages
    that nobody writes to cost nothing.
    """
    return max(PAGE, 1 << (nbytes - 1).bit_length())


class Arena:
    """One participant's shared memory, as its owner or as a peer sees it."""

    def __init__(self, fd: int, owner: int = 0) -> None:
        self.fd, self.owner = fd, owner
        self._view = memoryview(b"")
        """All of the file that is mapped; older mappings stay as long as somebody reads them."""
        self._end: int | None = None
        self._owned: list[tuple[int, int, memoryview]] = []

    def map(self, offset: int, nbytes: int) -> memoryview:
        """The bytes at this place, where a page begins."""
        if offset % PAGE:
            raise self._outside(offset, nbytes)
        return self._at(offset, nbytes)

    def read(self, offset: int, nbytes: int) -> Tensor:
        """The bytes at any offset, also in the middle of a page."""
        return flat(self._at(offset, nbytes))

    def _at(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > len(self._view):
            self._view = self._mapped(offset, nbytes)
        return self._view[offset : offset + nbytes]

    def _mapped(self, offset: int, nbytes: int) -> memoryview:
        """Where it is comes from its owner, who may lie, and may make its file as large as it likes."""
        size = os.fstat(self.fd).st_size
        if offset + nbytes > size:
            raise self._outside(offset, nbytes)
        try:
            return _map(self.fd, min(size, room_for(offset + nbytes)))
        except (OSError, RuntimeError) as error:
            raise WireError(f"{nbytes} bytes of participant {self.owner} can't be mapped: {error}") from error

    def _outside(self, offset: int, nbytes: int) -> WireError:
        return WireError(
            f"participant {self.owner} says that {nbytes} bytes lie at {offset} of its shared memory, "
            f"which has {os.fstat(self.fd).st_size}"
        )

    def allocate(self, nbytes: int) -> tuple[int, Tensor]:
        """Whole pages behind all others; returns their offset and the bytes. For the owner only."""
        size = os.fstat(self.fd).st_size
        offset = size if self._end is None else self._end
        self._end = offset + round_up(nbytes)
        if self._end > size:
            os.ftruncate(self.fd, room_for(self._end))
        memory = self.read(offset, nbytes)
        self._own(memory)
        return offset, memory

    def _own(self, memory: Tensor) -> None:
        """Mappings with memory of ours stay: an address in one of them says where in the file it is."""
        if not self._owned or self._owned[-1][2] is not self._view:
            start = self.read(0, 1).data_ptr()
            self._owned.append((start, len(self._view), self._view))

    def where(self, tensor: Tensor) -> int | None:
        """The offset of a tensor that lies in our memory, or None."""
        if not lies_flat(tensor):
            return None
        address, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        for start, size, _ in self._owned:
            if start <= address and address + nbytes <= start + size:
                return address - start
        return None

    def give_back(self, offset: int, nbytes: int) -> None:
        """These pages hold zeros from now on and take no memory, until somebody writes there again."""
        if hasattr(mmap, "MADV_REMOVE"):  # elsewhere than on Linux they stay
            with mmap.mmap(self.fd, round_up(nbytes), offset=offset) as pages:
                pages.madvise(mmap.MADV_REMOVE)


def flat(memory: memoryview) -> Tensor:
    """These bytes as a tensor of its own: slices of one tensor would share the count of its changes."""
    return torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8)


def _map(fd: int, nbytes: int) -> memoryview:
    """By way of torch, which closes what it opens; `mmap` keeps a descriptor for every mapping."""
    mapped = torch.from_file(f"/dev/fd/{fd}", shared=True, size=nbytes, dtype=torch.uint8)
    return memoryview(mapped.numpy())  # type: ignore[arg-type]
