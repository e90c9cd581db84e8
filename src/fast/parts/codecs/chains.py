"""Parts behind one another: transformations, and then a codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard, final

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.codecs.base import Codec, State, Workspace
from fast.parts.codecs.low_rank import Mean
from fast.parts.codecs.quantized import Quantized
from fast.parts.codecs.sparse import Sparse, subtract
from fast.parts.codecs.transformations import Chain, Transformation
from fast.view import Layout

RULE = (
    "A chain is any number of transformations (clip), and then a codec, or a sparse codec and a dense one "
    "for its values: chain(clip(1.0), top_k(0.01), int8())"
)


def chain(*parts: Transformation | Codec) -> Codec:
    """These parts behind one another, as one codec."""
    count = sum(isinstance(part, Transformation) for part in parts)
    first, codecs = parts[:count], parts[count:]
    if not _are_transformations(first) or not _are_codecs(codecs) or not 1 <= len(codecs) <= 2:
        raise UsageError(f"chain({', '.join(map(repr, parts))}) can't be built. {RULE}.")
    codec = codecs[0] if len(codecs) == 1 else Quantized(*codecs)  # type: ignore[arg-type]
    return Transformed(first, codec) if first else codec


def _are_transformations(parts: tuple[object, ...]) -> TypeGuard[tuple[Transformation, ...]]:
    return all(isinstance(part, Transformation) for part in parts)


def _are_codecs(parts: tuple[object, ...]) -> TypeGuard[tuple[Codec, ...]]:
    return all(isinstance(part, Codec) for part in parts)


@final
@dataclass(frozen=True, repr=False)
class Transformed(Chain):
    """A codec behind transformations. A receiver sees the codec only."""

    transformations: tuple[Transformation, ...]
    codec: Codec

    def __post_init__(self) -> None:
        for name in ("summable", "sparse", "non_finite", "rounds", "remembers", "has_momentum"):
            object.__setattr__(self, name, getattr(self.codec, name))

    @property
    def parts(self) -> tuple[Transformation | Codec, ...]:
        inner = self.codec.parts if isinstance(self.codec, Chain) else (self.codec,)
        return (*self.transformations, *inner)

    @property
    def decoder(self) -> Codec:
        return self.codec.decoder

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        return State(seed, inner=[self.codec.begin(layout, seed, device)])

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        return self.codec.nbytes(layout, sent)

    def sent(self, packed: Tensor, layout: Layout) -> int | None:
        return self.codec.sent(packed, layout)

    def expected(self, layout: Layout, step: int) -> int:
        return self.codec.expected(layout, step)

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        packed = self.codec.encode(self._transformed(values, work), layout, state.inner[0], work)
        state.inner[0].steps += 1
        return packed

    def encode_rest(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        """What the transformations took away is a part of the rest."""
        decoder = self.decoder
        if not isinstance(decoder, Sparse):
            return super().encode_rest(values, layout, state, work)
        packed = self.encode(values, layout, state, work)
        subtract(values, *decoder.stream(packed, layout, work), work)
        return packed

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        self.codec.decode(packed, layout, out, work)

    def summands(self, packed: Tensor, layout: Layout) -> Tensor:
        return self.codec.summands(packed, layout)

    def round_sizes(self, layout: Layout) -> Sequence[int]:
        return self.codec.round_sizes(layout) if self.rounds else ()  # type: ignore[attr-defined]

    async def mean_rounds(
        self, values: Tensor, layout: Layout, state: State, work: Workspace, mean: Mean, out: Tensor
    ) -> None:
        """The mean of everybody's transformed values, in the rounds of the codec inside."""
        if not self.rounds:
            raise UsageError(f"{self!r} has no rounds: {self.codec!r} says everything at once")
        inner, values = state.inner[0], self._transformed(values, work)
        await self.codec.mean_rounds(values, layout, inner, work, mean, out)  # type: ignore[attr-defined]
        inner.steps += 1

    def _transformed(self, values: Tensor, work: Workspace) -> Tensor:
        for transformation in self.transformations:
            values = transformation.transform(values, work)
        return values
