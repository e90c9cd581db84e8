"""Memory that participants let each other read and change: slice by slice, at virtual times of their own.

What is published is there at once. A read takes time, and what is written meanwhile tears it. A change goes through
the memory like a loop on a processor: each cache line is read and, an instant later, written. Who is at the
same line in that instant overwrites what the other has written, unless the change is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from fast.core.seeds import stream_seed
from fast.parts.kernels.amending import amended
from fast.sim.cluster import NS_PER_S, Traffic

if TYPE_CHECKING:
    from fast.sim.world import SimWorld

SLICES = 8
"""Each of so many slices is read or changed at a time of its own."""
_LINE_BYTES = 64

Windows = dict[tuple[int, str], Tensor]
"""What participants have published, by their ids and its name."""


@final
class Memory:
    """One participant's way to it."""

    def __init__(self, world: SimWorld, windows: Windows, traffic: Traffic) -> None:
        self._world, self._windows, self._traffic = world, windows, traffic
        self._random: Random | None = None

    def publish(self, name: str, tensor: Tensor) -> Tensor:
        self._windows[self._world.id, name] = tensor
        return tensor

    def as_it_is(self, peer: int, name: str) -> Tensor | None:
        """What has been published, when nobody writes any more."""
        return self._windows.get((peer, name))

    async def read(self, peer: int, name: str) -> Tensor | None:
        """A copy, each of whose slices is what was there when it was its turn."""
        window = self._windows.get((peer, name))
        if window is None:
            return None
        copy = torch.empty_like(window)
        await self._world.compute(2 * self._latency_ns(peer))
        for slice_, source in zip(copy.view(-1).chunk(SLICES), _slices(window), strict=True):
            slice_.copy_(source)
            await self._world.compute(self._passing_ns(peer, _nbytes(slice_)))
        return copy

    async def amend(self, peer: int, name: str, before: Tensor, after: Tensor, *, atomic: bool) -> bool:
        """No two begin at the same instant, as no two processors do, although all may be in step here."""
        window = self._windows.get((peer, name))
        if window is None:
            return False
        compute = self._world.compute
        slices = list(zip(_slices(window), _slices(before), _slices(after), strict=True))
        await compute(self._latency_ns(peer))
        await compute(round(self._uniform() * self._passing_ns(peer, _nbytes(slices[0][0]))))
        for memory, old, new in slices:
            nbytes = _nbytes(memory)
            line_ns = self._passing_ns(peer, min(nbytes, _LINE_BYTES))
            await compute(self._passing_ns(peer, nbytes) - line_ns)
            seen = memory if atomic else self._aside(memory.clone)
            await compute(line_ns)
            self._aside(partial(_write, memory, seen, old, new))
        return True

    def _latency_ns(self, peer: int) -> int:
        """Inside a host memory answers at once; a letter's latency is that of waking somebody up."""
        here, host = self._world.id, self._traffic.network.host
        return 0 if host(peer) == host(here) else self._traffic.latency_ns(here, peer)

    def _passing_ns(self, peer: int, nbytes: int) -> int:
        return round(nbytes / self._traffic.link(peer, self._world.id).rate_bytes_per_s * NS_PER_S)

    def _uniform(self) -> float:
        if self._random is None:
            self._random = Random(stream_seed(self._world.seed, "memory", self._world.id))
        return self._random.random()

    def _aside(self, work: Callable[[], Any]) -> Any:
        """What the model of the memory does is none of the strategy's own operations."""
        self._world.effort.pause()
        result = work()
        self._world.effort.resume()
        return result


def _slices(tensor: Tensor) -> Iterator[Tensor]:
    yield from tensor.reshape(-1).chunk(SLICES)


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _write(memory: Tensor, seen: Tensor, before: Tensor, after: Tensor) -> None:
    """A change of memory that was `seen`, where there is one."""
    if not memory.is_meta:
        memory.copy_(torch.where(after != before, amended(seen, before, after), memory))
