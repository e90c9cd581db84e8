"""Deep gradient compression: sparse gradients with a momentum of their own (Lin et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, final

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.arguments import check_flag
from fast.parts.codecs.arguments import check_integer, check_positive, check_ratio, check_share
from fast.parts.codecs.base import State, Workspace, check_size, sections
from fast.parts.codecs.sampling import how_many, most_sampled, sampled
from fast.parts.codecs.sparse import PLACE_BYTES, Sparse, Stream
from fast.parts.codecs.transformations import clipping
from fast.parts.kernels.selecting import clear
from fast.view import Layout, Segment

WARM_UP = (0.25, 0.0625, 0.015625, 0.00390625)
"""The ratios of the first encodings, each for a quarter of the warm-up."""
MOST_STEPS = (1 << 63) - 1


@final
@dataclass(frozen=True, repr=False)
class Dgc(Sparse):
    """The largest of what has accumulated, with momentum.

        g clipped to clip · workers^(−1/2)
        u = momentum · u + g,  v = v + u        (nesterov: u = momentum · (u + g), v = v + u + g)
        send v where |v| is among the largest, and set v = u = 0 there

    The update that is applied is then a plain SGD step, because the momentum is inside. The largest
    are chosen in each parameter by itself, as in the paper: gradients of different layers differ by
    orders of magnitude, and one threshold for all would leave some layers unsent for long.
    Parameters of one dimension, and those with fewer than `dense_below` values, travel whole, and u
    of them is what is sent. During `warm_up` encodings the ratio falls from 25 % in four stages.

    Bytes: itemsize per dense value, and 4 + itemsize for each of the others. It remembers by itself
    what it didn't send: no error feedback is needed around it.
    """

    ratio: float = 0.001
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    workers: int | None = None
    warm_up: int = 0
    dense_below: int = 1024
    name: ClassVar[str] = "dgc"
    remembers = True
    has_momentum = True

    def __post_init__(self) -> None:
        check_ratio(self.name, self.ratio)
        check_share(self.name, momentum=self.momentum)
        check_flag(self.name, "nesterov", self.nesterov)
        check_integer(self.name, 0, MOST_STEPS, warm_up=self.warm_up, dense_below=self.dense_below)
        if self.workers is not None:
            check_integer(self.name, 1, MOST_STEPS, workers=self.workers)
        if self.clip is not None:
            check_positive(self.name, clip=self.clip)
            if self.workers is None:
                raise UsageError(
                    f"dgc(clip={self.clip}) clips to clip / sqrt(workers), and workers isn't given. Say how many "
                    "there are, or put clip(norm) before it in a chain."
                )

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        state, kind = super().begin(layout, seed, device), _accumulating(layout.dtype)
        for name in ("u", "v"):
            state.tensors[name] = torch.zeros(layout.size, dtype=kind, device=device)
        return state

    # Sizes

    def ratio_at(self, step: int) -> float:
        """The ratio of this encoding, counted from 0."""
        return max(self.ratio, WARM_UP[4 * step // self.warm_up]) if step < self.warm_up else self.ratio

    def _is_dense(self, segment: Segment) -> bool:
        return len(segment.shape) < 2 or segment.size < self.dense_below

    def _dense(self, layout: Layout) -> list[Segment]:
        return [segment for segment in layout.segments if self._is_dense(segment)]

    def _numbers(self, layout: Layout, ratio: float) -> Iterator[tuple[Segment, int]]:
        """The sparse segments, each with its k."""
        for segment in layout.segments:
            if not self._is_dense(segment):
                yield segment, how_many(ratio, segment.size)

    def _most(self, layout: Layout, ratio: float) -> int:
        return sum(most_sampled(k) for _, k in self._numbers(layout, ratio))

    def _dense_size(self, layout: Layout) -> int:
        return sum(segment.size for segment in self._dense(layout))

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        """`sent` counts the values of sparse parameters."""
        if sent is None:
            sent = sum(min(s.size, most_sampled(k)) for s, k in self._numbers(layout, self.ratio_at(0)))
        return sent * PLACE_BYTES + (self._dense_size(layout) + sent) * layout.dtype.itemsize

    def expected(self, layout: Layout, step: int) -> int:
        """Of k values in each sparse parameter: what is aimed at."""
        return self.nbytes(layout, sum(k for _, k in self._numbers(layout, self.ratio_at(step))))

    def sent(self, packed: Tensor, layout: Layout) -> int | None:
        left = packed.numel() - self._dense_size(layout) * layout.dtype.itemsize
        return max(0, left) // (PLACE_BYTES + layout.dtype.itemsize)

    # Encoding

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        u, v = state.tensors["u"], state.tensors["v"]
        self._accumulate(values, u, v, work)
        indices, chosen = self._choose(v, layout, self.ratio_at(state.steps), work)
        packed = self._packed(indices, chosen, v, layout, work)
        clear(u, indices)
        clear(v, indices)
        for segment in self._dense(layout):
            v[segment.start : segment.stop].zero_()
            u[segment.start : segment.stop].nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return packed

    def _accumulate(self, values: Tensor, u: Tensor, v: Tensor, work: Workspace) -> None:
        factor = 1.0
        if self.clip is not None and self.workers is not None:
            factor = clipping(values, self.clip / sqrt(self.workers))
        if factor < 1:
            clipped = work.take("dgc.clipped", values.numel(), u.dtype, values.device)
            values = torch.mul(values, factor, out=clipped)
        if self.nesterov:
            u.add_(values).mul_(self.momentum)
            v.add_(u).add_(values)
        else:
            u.mul_(self.momentum).add_(values)
            v.add_(u)

    def _choose(self, v: Tensor, layout: Layout, ratio: float, work: Workspace) -> Stream:
        room, found = self._most(layout, ratio), 0
        indices = work.take("sparse.indices", room, torch.int32, v.device)
        chosen = work.take("sparse.chosen", room, v.dtype, v.device)
        for segment, k in self._numbers(layout, ratio):
            part = v[segment.start : segment.stop]
            count = sampled(part, k, indices[found:], chosen[found:], work)
            indices[found : found + count].add_(segment.start)
            found += count
        return indices[:found], chosen[:found]

    # Bytes

    def _packed(self, indices: Tensor, chosen: Tensor, v: Tensor, layout: Layout, work: Workspace) -> Tensor:
        count = chosen.numel()
        packed = work.take("sparse.packed", self.nbytes(layout, count), torch.uint8, v.device)
        places, numbers = self._open(packed, count, layout)
        places.copy_(indices)
        at = 0
        for segment in self._dense(layout):
            numbers[at : at + segment.size] = v[segment.start : segment.stop]
            at += segment.size
        numbers[at:] = chosen
        return packed

    def _open(self, packed: Tensor, count: int, layout: Layout) -> Stream:
        """Places of the sparse values; and all values, dense ones first. The wider ones come first."""
        places, numbers = (torch.int32, count), (layout.dtype, self._dense_size(layout) + count)
        if layout.dtype.itemsize < PLACE_BYTES:
            first, second = sections(packed, places, numbers)
            return first, second
        first, second = sections(packed, numbers, places)
        return second, first

    def stream(self, packed: Tensor, layout: Layout, work: Workspace | None = None) -> Stream:
        """Dense values have their places here, too."""
        count = min(self.sent(packed, layout) or 0, layout.size)
        check_size(self, packed, self.nbytes(layout, count))
        places, numbers = self._open(packed, count, layout)
        self.check_indices(places, layout)
        if numbers.numel() == count:
            return places, numbers
        return self._merged(places, numbers, layout, work or Workspace())

    def _merged(self, places: Tensor, numbers: Tensor, layout: Layout, work: Workspace) -> Stream:
        """In the order of the flat tensor. A place that is named twice is refused."""
        total, device = numbers.numel(), numbers.device
        mixed = work.take("sparse.mixed", total, torch.int32, device)
        at = 0
        for segment in self._dense(layout):
            torch.arange(segment.start, segment.stop, out=mixed[at : at + segment.size])
            at += segment.size
        mixed[at:] = places
        indices = work.take("sparse.indices", total, torch.int32, device)
        order = work.take("sparse.order", total, torch.int64, device)
        torch.sort(mixed, out=(indices, order))
        self.check_indices(indices, layout)
        values = work.take("sparse.chosen", total, layout.dtype, device)
        return indices, torch.index_select(numbers, 0, order, out=values)


def _accumulating(dtype: torch.dtype) -> torch.dtype:
    """In 16 bits small gradients would vanish beside what has accumulated."""
    return torch.float32 if dtype.itemsize < 4 else dtype
