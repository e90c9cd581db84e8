"""Which few values are sent: the largest, random ones, or all beyond a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, final

import torch
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.parts.arguments import check_flag
from fast.parts.codecs.arguments import check_integer, check_positive, check_ratio
from fast.parts.codecs.base import NonFinite, State, Workspace, check_size, sections
from fast.parts.codecs.sampling import how_many, largest, most_sampled, sampled
from fast.parts.codecs.sparse import PLACE_BYTES, Pairs, Sparse, Stream, subtract
from fast.parts.kernels.hashing import keys_of
from fast.parts.kernels.selecting import draw, gather, key_of, number_of, put, select
from fast.view import Layout


@final
@dataclass(frozen=True, repr=False)
class TopK(Pairs):
    """The k = ceil(ratio · d) largest values by absolute value, exactly.

    They are chosen over the whole flat tensor. NaN counts as largest; of equal ones those with the
    lowest places are sent. 8 k bytes in float32. What is left out has at most (1 − k/d) of the
    squared norm.
    """

    ratio: float
    name: ClassVar[str] = "top_k"

    def __post_init__(self) -> None:
        check_ratio(self.name, self.ratio)

    def most(self, layout: Layout) -> int:
        return how_many(self.ratio, layout.size)

    def choose(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Stream:
        k = self.most(layout)
        indices = work.take("sparse.indices", k, torch.int32, values.device)
        chosen = work.take("sparse.chosen", k, values.dtype, values.device)
        largest(values, k, indices, chosen, work)
        return indices, chosen


@final
@dataclass(frozen=True, repr=False)
class SampledTopK(Pairs):
    """About k = ceil(ratio · d) of the largest values, in one pass (Lin et al., 2018).

    A sample suggests a threshold. It is moved by 1.3 or 0.8, at most ten times, until it finds
    0.8 k to 1.3 k values; where none does because many are equal, the exact k are sent. Where
    fewer values differ from 0, only those are. 8 bytes per value in float32.
    """

    ratio: float
    name: ClassVar[str] = "sampled_top_k"
    fixed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ratio(self.name, self.ratio)

    def most(self, layout: Layout) -> int:
        return min(layout.size, most_sampled(how_many(self.ratio, layout.size)))

    def choose(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Stream:
        k = how_many(self.ratio, layout.size)
        indices = work.take("sparse.indices", most_sampled(k), torch.int32, values.device)
        chosen = work.take("sparse.chosen", most_sampled(k), values.dtype, values.device)
        found = sampled(values, k, indices, chosen, work)
        return indices[:found], chosen[:found]

    def expected(self, layout: Layout, step: int) -> int:
        """Of k values: what is aimed at, and what is found in tensors too small for a sample."""
        return self.nbytes(layout, how_many(self.ratio, layout.size))


@final
@dataclass(frozen=True, repr=False)
class RandomK(Pairs):
    """k = ceil(ratio · d) values at random places, times d/k, which makes it unbiased.

    Shared: all workers draw the same places, from `seed` and the number of the step, and the
    receiver draws them again. Only these two numbers travel with the values, 16 + itemsize · k
    bytes, and the values of several workers can be added. Otherwise each worker draws its own
    places, which travel: (4 + itemsize) k bytes. Without `scaled` the values are sent as they are;
    error feedback needs it so, because times d/k the rest would grow at every step.
    """

    ratio: float
    shared: bool = True
    seed: int = 0
    scaled: bool = True
    name: ClassVar[str] = "random_k"

    def __post_init__(self) -> None:
        check_ratio(self.name, self.ratio)
        check_flag(self.name, "shared", self.shared)
        check_flag(self.name, "scaled", self.scaled)
        check_integer(self.name, 0, (1 << 63) - 1, seed=self.seed)
        object.__setattr__(self, "unbiased", self.scaled)
        object.__setattr__(self, "summable", self.shared)

    def most(self, layout: Layout) -> int:
        return how_many(self.ratio, layout.size)

    def section(self, count: int) -> tuple[torch.dtype, int]:
        return (torch.int64, 2) if self.shared else (torch.int32, count)

    def choose(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Stream:
        k, seed = self.most(layout), self.seed if self.shared else state.seed
        indices = self._drawn(k, seed, state.steps, layout, work, values.device)
        chosen = work.take("sparse.chosen", k, values.dtype, values.device)
        gather(values, indices, chosen)
        if self.scaled and k:
            chosen.mul_(layout.size / k)
        if not self.shared:
            return indices, chosen
        places = work.take("sparse.places", 2, torch.int64, values.device)
        places[0], places[1] = seed, state.steps
        return places, chosen

    def leave_rest(self, values: Tensor, indices: Tensor, chosen: Tensor, work: Workspace) -> None:
        if self.scaled:
            subtract(values, indices, chosen, work)
        else:
            super().leave_rest(values, indices, chosen, work)

    def indices(self, places: Tensor, count: int, layout: Layout, work: Workspace) -> Tensor:
        if not self.shared:
            return places
        seed, step = (int(number) for number in places)
        if seed != self.seed or step < 0:
            raise WireError(f"{self!r} got places that were drawn with seed {seed} in step {step}")
        return self._drawn(count, seed, step, layout, work, places.device)

    def summands(self, packed: Tensor, layout: Layout) -> Tensor:
        if not self.shared:
            return super().summands(packed, layout)
        return self._open(packed, self._count(packed, layout), layout.dtype)[1]

    @staticmethod
    def _drawn(k: int, seed: int, step: int, layout: Layout, work: Workspace, device: torch.device) -> Tensor:
        indices = work.take("sparse.indices", k, torch.int32, device)
        draw(indices, layout.size, keys_of(seed, step))
        return indices


@final
@dataclass(frozen=True, repr=False)
class Threshold(Sparse):
    """θ for each value above θ, and −θ for each below −θ (Strom, 2015).

    At most one θ per element and call; with error feedback the rest comes later. One word of 32
    bits each: 31 bits of place, one of sign. θ is rounded to the dtype of the tensor. NaN is not
    sent, an infinity counts as anything beyond θ, and neither is remembered.
    """

    threshold: float
    name: ClassVar[str] = "threshold"
    non_finite = NonFinite.DROPPED

    def __post_init__(self) -> None:
        check_positive(self.name, threshold=self.threshold)

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        if not 0 < self._theta(layout.dtype) < inf:
            raise UsageError(
                f"{self!r}: in {layout.dtype} this is {self._theta(layout.dtype)}. Choose another."
            )
        return super().begin(layout, seed, device)

    def _theta(self, dtype: torch.dtype) -> float:
        return number_of(key_of(self.threshold, dtype), dtype)

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        """4 per value that is sent."""
        return PLACE_BYTES * (layout.size if sent is None else sent)

    def expected(self, layout: Layout, step: int) -> int:
        raise UsageError(
            f"{self!r} sends as many values as lie beyond its threshold, and nobody knows the values where only sizes "
            "are simulated. Take top_k with the share that you expect, or simulate with values."
        )

    def sent(self, packed: Tensor, layout: Layout) -> int | None:
        return packed.numel() // PLACE_BYTES

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        return self._words(*self._beyond(values, layout, work), work)

    def encode_rest(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        indices, beyond = self._beyond(values, layout, work)
        packed = self._words(indices, beyond, work)
        signs = work.take("sparse.rest", beyond.numel(), beyond.dtype, beyond.device)
        beyond.sub_(torch.sign(beyond, out=signs), alpha=self._theta(layout.dtype))
        put(values, indices, beyond.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0))
        return packed

    def _beyond(self, values: Tensor, layout: Layout, work: Workspace) -> Stream:
        """All whose absolute value is above θ, and NaN."""
        indices = work.take("sparse.indices", layout.size, torch.int32, values.device)
        beyond = work.take("sparse.chosen", layout.size, values.dtype, values.device)
        found = select(values, key_of(self.threshold, values.dtype) + 1, indices, beyond)
        return indices[:found], beyond[:found]

    def _words(self, indices: Tensor, beyond: Tensor, work: Workspace) -> Tensor:
        flags = work.take("sparse.flags", beyond.numel(), torch.bool, beyond.device)
        if bool(torch.ne(beyond, beyond, out=flags).any()):
            numbers = ~flags
            indices, beyond, flags = indices[numbers], beyond[numbers], flags[numbers]
        words = work.take("sparse.words", indices.numel(), torch.int32, indices.device)
        words.copy_(torch.signbit(beyond, out=flags)).mul_(-(1 << 31)).add_(indices)
        return words.view(torch.uint8)

    def stream(self, packed: Tensor, layout: Layout, work: Workspace | None = None) -> Stream:
        work, count = work or Workspace(), min(packed.numel() // PLACE_BYTES, layout.size)
        check_size(self, packed, self.nbytes(layout, count))
        words = sections(packed, (torch.int32, count))[0]
        indices = work.take("sparse.indices", count, torch.int32, packed.device)
        torch.bitwise_and(words, (1 << 31) - 1, out=indices)
        self.check_indices(indices, layout)
        theta, values = (
            self._theta(layout.dtype),
            work.take("sparse.chosen", count, layout.dtype, packed.device),
        )
        negative = torch.lt(words, 0, out=work.take("sparse.flags", count, torch.bool, packed.device))
        return indices, values.fill_(theta).masked_fill_(negative, -theta)
