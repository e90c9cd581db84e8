"""What hostile workers send instead of what they have."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from fast.core.seeds import stream_seed
from fast.sim.faults.deeds import Flip, Lie, Noise, NotANumber, Scale


@final
class Liar:
    """One hostile worker: its lies are the same for the same seed, however often others lie."""

    def __init__(self, seed: int, worker: int) -> None:
        self._seed, self._worker, self._count = seed, worker, 0

    def told(self, tensor: Tensor, lie: Lie) -> Tensor:
        """The values that are sent instead, in memory of their own.

        Numbers with a sign and a fraction are lied about. Whole numbers (the bytes of a codec, indices,
        counters) go as they are: changed at random they would be no lie but a broken letter, which
        every receiver refuses. Tensors without values have nothing to lie about.
        """
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
            return tensor
        match lie:
            case Flip():
                return -tensor
            case Scale(by):
                return tensor * by
            case NotANumber():
                return torch.full_like(tensor, torch.nan)
            case Noise(of):
                return tensor + of * self._normal(tensor)

    def _normal(self, tensor: Tensor) -> Tensor:
        """Drawn in full precision, from a stream of its own for every tensor that is sent."""
        generator = torch.Generator().manual_seed(stream_seed(self._seed, "noise", self._worker, self._count))
        self._count += 1
        dtype = torch.complex128 if tensor.is_complex() else torch.float64
        drawn = torch.randn(tensor.shape, generator=generator, dtype=dtype)
        return drawn.to(device=tensor.device, dtype=tensor.dtype)
