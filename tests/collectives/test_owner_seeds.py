"""Who adds up a slice rounds it with other random numbers than it rounded its own term with."""

from __future__ import annotations

import torch

from fast.codecs import qsgd
from fast.parts.codecs import Coder
from fast.view import Layout

ROUNDS = 1500


def test_a_compressed_mean_is_unbiased() -> None:
    """Both stages round at random; if they drew the same numbers, an owner's errors would add up."""
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))
    coder = Coder(qsgd(levels=3), Layout.single((64,), torch.float32), seed=5)
    (first,), (owner,) = coder.pieces(1), coder.pieces(1, "owner")
    found = torch.stack(
        [
            owner.decode(owner.encode(first.decode(first.encode(values)).clone())).clone()
            for _ in range(ROUNDS)
        ]
    )
    z = (found.double().mean(0) - values) / (found.double().std(0) / ROUNDS**0.5).clamp_min(1e-9)
    assert float(z.square().mean()) < 2
    assert float(z.abs().max()) < 5
