"""Plain values that every room may use: who is in, and what is inside a flat tensor."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from fast.errors import WireError

ALIGN_BYTES = 64
"""Every parameter starts at a multiple of this: slices cut there change no optimizer's bits,
and other frameworks can alias them."""

_DTYPES = MappingProxyType(
    {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
)


Groups = tuple[tuple[int, ...], ...]
"""Workers whose tensors are added up among each other first, each group ascending; () for one group of all."""


@dataclass(frozen=True)
class View:
    """The numbered set of live peers. Ids never change; an index is a place among the workers."""

    number: int
    workers: tuple[int, ...]
    servers: tuple[int, ...] = ()
    groups: Groups = ()
    """In which order sums are made. The groups are those of the start, whoever has left since."""

    def index(self, worker: int) -> int:
        """The place of this worker in the view, for topologies."""
        place = bisect_left(self.workers, worker)  # ids ascend, and views of thousands come by the thousand
        if place == len(self.workers) or self.workers[place] != worker:
            raise ValueError(f"worker {worker} is not in view {self.number}")
        return place

    @cached_property
    def everybody(self) -> frozenset[int]:
        """Workers and servers. One set for all who hold this view, however many they are."""
        return frozenset(self.workers + self.servers)

    @cached_property
    def owners(self) -> frozenset[int]:
        """The servers, to look somebody up among."""
        return frozenset(self.servers)

    def without(self, gone: Iterable[int]) -> View:
        """The next view, after these have left."""
        out = frozenset(gone)
        return View(
            self.number + 1,
            tuple(w for w in self.workers if w not in out),
            tuple(s for s in self.servers if s not in out),
            self.groups,
        )


def grouped(members: Sequence[int], groups: Groups) -> Groups:
    """The members of each group among these ascending members, in the order of their lowest. A member that is in
    no group is one by itself.

    >>> grouped((0, 1, 3, 4, 6), ((0, 3), (1, 2), (4, 5)))
    ((0, 3), (1,), (4,), (6,))
    """
    if not groups:
        return (tuple(members),)
    number_of = {member: number for number, group in enumerate(groups) for member in group}
    found: dict[int, list[int]] = {}
    for member in members:
        found.setdefault(number_of.get(member, -1 - member), []).append(member)
    return tuple(map(tuple, found.values()))


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

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns as a matrix: one row per output unit, which torch keeps in one piece.
        What has one dimension or none is a single row."""
        if len(self.shape) < 2 or self.size == 0:
            return 1, self.size
        return self.shape[0], self.size // self.shape[0]


@dataclass(frozen=True)
class Layout:
    """The shapes inside a flat tensor: segments in order, a model's each padded to 64 bytes."""

    dtype: torch.dtype
    segments: tuple[Segment, ...]
    size: int
    """Elements in the flat tensor, padding included."""

    @staticmethod
    def of(named: Iterable[tuple[str, Sequence[int]]], dtype: torch.dtype) -> Layout:
        """Lay out tensors of these names and shapes one after another."""
        step = ALIGN_BYTES // dtype.itemsize
        segments, start = [], 0
        for name, shape in named:
            size = math.prod(shape)
            segments.append(Segment(name, tuple(shape), start, size))
            start += -(-size // step) * step
        return Layout(dtype, tuple(segments), start)

    @staticmethod
    def single(shape: Sequence[int], dtype: torch.dtype) -> Layout:
        """Of one tensor on its own, without padding."""
        size = math.prod(shape)
        return Layout(dtype, (Segment("", tuple(shape), 0, size),), size)

    def part(self, start: int, stop: int) -> Layout:
        """Of the slice [start, stop): segments that are cut keep their whole rows as a matrix."""
        inside = self.within(start, stop)
        cut = tuple(_cut(segment, start, stop) for segment in self.segments[inside.start : inside.stop])
        return Layout(self.dtype, cut, stop - start)

    def within(self, start: int, stop: int) -> range:
        """The numbers of the segments of which something lies in the slice [start, stop)."""
        first = bisect_right(self._stops, start)
        return range(first, max(first, bisect_left(self._starts, stop)))

    def shards(self, count: int, *, whole_parameters: bool) -> list[slice]:
        """`count` slices for as many servers, as equal in bytes as can be; some may be empty.

        They are cut at multiples of 64 bytes, which changes no bit of an element-wise optimizer. With
        `whole_parameters` only where a parameter begins: then the largest is as small as that allows.
        """
        if whole_parameters:
            return _whole_shards(sorted({*self._starts, self.size}), count)
        unit = ALIGN_BYTES // self.dtype.itemsize
        units = -(-self.size // unit)
        edges = [min(units * k // count * unit, self.size) for k in range(count + 1)]
        return [slice(a, b) for a, b in pairwise(edges)]

    def cuts(self, count: int) -> list[slice]:
        """`count` slices, as equal as row ends and 64-byte boundaries allow; some may be empty."""
        edges = [0, *(self._edge_near(self.size * k // count) for k in range(1, count)), self.size]
        return [slice(a, b) for a, b in pairwise(accumulate(edges, max))]

    def _edge_near(self, place: int) -> int:
        """The last place up to this one where a cut goes through no row and no cache line."""
        unit = ALIGN_BYTES // self.dtype.itemsize
        at = bisect_right(self._starts, place) - 1
        segment = self.segments[at] if at >= 0 else None
        if segment is None or place >= segment.stop or len(segment.shape) < 2:
            return place // unit * unit
        columns = segment.matrix[1]
        return segment.start + (place - segment.start) // columns * columns

    @cached_property
    def _starts(self) -> list[int]:
        return [segment.start for segment in self.segments]

    @cached_property
    def _stops(self) -> list[int]:
        return [segment.stop for segment in self.segments]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Of all segments, once: layouts are looked up by in every step."""
        return hash((self.dtype, self.segments, self.size))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @cached_property
    def places(self) -> Mapping[str, slice]:
        """By the name of a segment, the slice of a flat tensor that it is."""
        return MappingProxyType({each.name: slice(each.start, each.stop) for each in self.segments})

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
        if data["dtype"] not in _DTYPES:
            raise WireError(f"a layout of {data['dtype']!r}; parameters are {', '.join(_DTYPES)}")
        dtype = _DTYPES[str(data["dtype"])]
        named = [(str(name), [int(n) for n in shape]) for name, shape in data["segments"]]  # type: ignore[attr-defined]
        return Layout.of(named, dtype)

    @cached_property
    def fingerprint(self) -> str:
        """Equal on two peers if and only if their flat tensors mean the same."""
        return hashlib.sha256(repr(self.describe()).encode()).hexdigest()[:16]


def _cut(segment: Segment, start: int, stop: int) -> Segment:
    """What of this segment lies in [start, stop), at its place in that slice."""
    first, last = max(segment.start, start), min(segment.stop, stop)
    shape: tuple[int, ...] = segment.shape
    if last - first < segment.size:
        columns = segment.matrix[1]
        whole = (first - segment.start) % columns == 0 and (last - first) % columns == 0
        shape = ((last - first) // columns, columns) if whole and len(shape) > 1 else (last - first,)
    return Segment(segment.name, shape, first - start, last - first)


def _whole_shards(borders: Sequence[int], count: int) -> list[slice]:
    """Cut at borders, so that the largest slice is as small as can be; beyond that each edge lies as near
    to its share of the whole as it may."""
    limit, total = _least_limit(borders, count), borders[-1]
    earliest = _earliest_edges(borders, count, limit)
    edges = [0]
    for number in range(1, count):
        low = bisect_left(borders, max(edges[-1], earliest[number]))
        high = bisect_right(borders, edges[-1] + limit)
        edges.append(min(borders[low:high], key=lambda at: abs(at - total * number / count)))
    return [slice(a, b) for a, b in pairwise([*edges, total])]


def _least_limit(borders: Sequence[int], count: int) -> int:
    """The smallest size that the largest of `count` slices can have."""
    low = max((b - a for a, b in pairwise(borders)), default=0)
    high = borders[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _slices_needed(borders, middle) <= count else (middle + 1, high)
    return low


def _slices_needed(borders: Sequence[int], limit: int) -> int:
    """So many slices of at most this size it takes."""
    needed, at = 0, 0
    while at < borders[-1]:
        at = borders[bisect_right(borders, at + limit) - 1]
        needed += 1
    return needed


def _earliest_edges(borders: Sequence[int], count: int, limit: int) -> list[int]:
    """Where the slices may begin at the earliest, so that what follows fits into the slices that are left."""
    edges, at = [], borders[-1]
    for _ in range(count):
        at = borders[bisect_left(borders, at - limit)]
        edges.append(at)
    return edges[::-1]
