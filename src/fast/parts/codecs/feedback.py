"""Error feedback: what a codec couldn't say this time is said later (Seide et al., 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fast.errors import UsageError
from fast.parts.codecs.base import Codec, State, Workspace
from fast.parts.codecs.chains import Transformed
from fast.parts.codecs.low_rank import InRounds, Mean
from fast.parts.codecs.qsgd import Qsgd
from fast.parts.codecs.quantized import Quantized
from fast.parts.codecs.selections import RandomK
from fast.parts.codecs.ternary import TernGrad
from fast.view import Layout


@final
@dataclass(frozen=True, repr=False)
class ErrorFeedback(Codec):
    """Encode p = g + e, and remember e = p − decode(bytes) for the next time.

    So what was sent, and the rest that is remembered, always add up to all that came in.
    """

    codec: Codec
    name: ClassVar[str] = "error_feedback"
    remembers = True

    def __post_init__(self) -> None:
        _check(self.codec)
        for name in ("summable", "sparse", "non_finite", "rounds"):
            object.__setattr__(self, name, getattr(self.codec, name))

    @property
    def decoder(self) -> Codec:
        return self.codec.decoder

    def begin(self, layout: Layout, seed: int, device: torch.device) -> State:
        residual = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        return State(seed, tensors={"residual": residual}, inner=[self.codec.begin(layout, seed, device)])

    def nbytes(self, layout: Layout, sent: int | None = None) -> int:
        return self.codec.nbytes(layout, sent)

    def sent(self, packed: Tensor, layout: Layout) -> int | None:
        return self.codec.sent(packed, layout)

    def expected(self, layout: Layout, step: int) -> int:
        return self.codec.expected(layout, step)

    def encode(self, values: Tensor, layout: Layout, state: State, work: Workspace) -> Tensor:
        residual, inner = state.tensors["residual"], state.inner[0]
        packed = self.codec.encode_rest(residual.add_(values), layout, inner, work)
        inner.steps += 1
        return packed

    def decode(self, packed: Tensor, layout: Layout, out: Tensor, work: Workspace) -> None:
        self.codec.decode(packed, layout, out, work)

    def summands(self, packed: Tensor, layout: Layout) -> Tensor:
        return self.codec.summands(packed, layout)

    def round_sizes(self, layout: Layout) -> Sequence[int]:
        return self.codec.round_sizes(layout) if isinstance(self.codec, InRounds) else ()

    async def mean_rounds(
        self, values: Tensor, layout: Layout, state: State, work: Workspace, mean: Mean, out: Tensor
    ) -> None:
        """The mean of everybody's p, in the rounds of the codec inside; e is p minus that mean."""
        if not isinstance(self.codec, InRounds):
            raise UsageError(f"{self!r} has no rounds: {self.codec!r} says everything at once")
        residual, inner = state.tensors["residual"], state.inner[0]
        await self.codec.mean_rounds_rest(residual.add_(values), layout, inner, work, mean, out)
        inner.steps += 1


def _check(codec: Codec) -> None:
    if not isinstance(codec, Codec):
        raise UsageError(f"error_feedback needs a codec, such as top_k(0.01), and got {codec!r}")
    if codec.remembers:
        raise UsageError(
            f"error_feedback({codec!r}): the codec inside already remembers what it didn't send, and it "
            "would be sent twice. Leave the outer error_feedback away."
        )
    if isinstance(codec, Transformed) and codec.rounds:
        raise UsageError(
            f"error_feedback({codec!r}): what is clipped after a rest was added can't be told from the rest. "
            f"Write chain({', '.join(map(repr, codec.transformations))}, error_feedback({codec.codec!r}))."
        )
    why = _growing(codec)
    if why:
        raise UsageError(f"error_feedback({codec!r}): {why}")


def _growing(codec: Codec) -> str:
    """Why the rest would grow from step to step: an unbiased codec whose noise is larger than its input."""
    match codec:
        case RandomK(scaled=True):
            return (
                "values times d/k leave a rest that grows at every step. Write "
                f"random_k({codec.ratio}, scaled=False), which sends them as they are."
            )
        case Qsgd() if codec.levels**2 <= codec.bucket:
            return (
                f"the noise of {codec.levels} levels in buckets of {codec.bucket} is larger than what is rounded, so "
                "the rest would grow at every step. It is unbiased and needs no feedback; or take more levels than the "
                "square root of the bucket."
            )
        case TernGrad():
            return (
                "its noise is larger than what is rounded, so the rest would grow at every step. It is unbiased "
                "(up to clipping) and needs no feedback."
            )
        case Transformed() | Quantized():
            return _growing(codec.codec) or (
                _growing(codec.quantizer) if isinstance(codec, Quantized) else ""
            )
    return ""
