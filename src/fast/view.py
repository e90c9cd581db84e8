"""Plain values that every room may use: who is in, and what is inside a flat tensor."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

ALIGN_BYTES = 64
"""Every parameter starts at a multiple of this: slices cut there change no optimizer's bits,
and other frameworks can alias them."""


@dataclass(frozen=True)
class View:
    """The numbered set of live peers. Ids never change; an index is a place among the workers."""

    number: int
    workers: tuple[int, ...]
    servers: tuple[int, ...] = ()

    def index(self, worker: int) -> int:
        """The place of this worker in the view, for topologies."""
        return self.workers.index(worker)

    def without(self, gone: Iterable[int]) -> View:
        """The next view, after these have left."""
        out = frozenset(gone)
        return View(
            self.number + 1,
            tuple(w for w in self.workers if w not in out),
            tuple(s for s in self.servers if s not in out),
        )


@dataclass(frozen=True)
class Segment:
    """One parameter's place in a flat tensor. `start` and `size` count elements."""

    name: str
    shape: tuple[int, ...]
    start: int
    size: int

    def of(self, flat: Tensor) -> Tensor:
        """This parameter's view into `flat`."""
        return flat[self.start : self.start + self.size].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """The shapes inside a flat tensor: segments in order, each padded to 64 bytes."""

    dtype: torch.dtype
    segments: tuple[Segment, ...]

    @staticmethod
    def of(named: Iterable[tuple[str, Sequence[int]]], dtype: torch.dtype) -> Layout:
        """Lay out tensors of these names and shapes one after another."""
        step = ALIGN_BYTES // dtype.itemsize
        segments, start = [], 0
        for name, shape in named:
            size = math.prod(shape)
            segments.append(Segment(name, tuple(shape), start, size))
            start += -(-size // step) * step
        return Layout(dtype, tuple(segments))

    @cached_property
    def size(self) -> int:
        """Elements in the flat tensor, padding included."""
        if not self.segments:
            return 0
        step = ALIGN_BYTES // self.dtype.itemsize
        last = self.segments[-1]
        return last.start + -(-last.size // step) * step

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @cached_property
    def everything(self) -> int:
        """The presence bitmap in which every segment has a gradient: one bit per segment."""
        return (1 << len(self.segments)) - 1

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view into `flat` per segment, with the segment's shape."""
        return [segment.of(flat) for segment in self.segments]

    def describe(self) -> dict[str, object]:
        """As plain data, to be compared between peers or sent to a server."""
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "segments": [[s.name, list(s.shape)] for s in self.segments],
        }

    @staticmethod
    def from_description(data: dict[str, object]) -> Layout:
        dtype = getattr(torch, str(data["dtype"]))
        named = [(str(name), [int(n) for n in shape]) for name, shape in data["segments"]]  # type: ignore[attr-defined]
        return Layout.of(named, dtype)

    @cached_property
    def fingerprint(self) -> str:
        """Equal on two peers if and only if their flat tensors mean the same."""
        return hashlib.sha256(repr(self.describe()).encode()).hexdigest()[:16]
