"""Encoded letters of strangers: what they claim is bounded by what they bring."""

from __future__ import annotations

import pytest
import torch

from fast.codecs import top_k
from fast.core import Letter
from fast.core.coding import opened
from fast.errors import WireError
from fast.view import Layout

FLAT = Layout.of([("w", (300, 300))], torch.float32)


def claiming(*shape: int) -> Letter:
    """Eight bytes, one value with its place, that claim to be a whole tensor."""
    packed = torch.zeros(8, dtype=torch.uint8)
    spec = top_k(1e-9).spec()
    return Letter(3, "x", packed, steps=(0,), codec=spec, dtype=torch.float32, shape=shape)


def test_few_bytes_do_not_become_all_memory() -> None:
    with pytest.raises(WireError, match="peer 3 sent 8 bytes that would become"):
        opened(claiming(1 << 20, 1 << 20), FLAT)


def test_a_tensor_like_the_models_own_is_taken_however_sparse() -> None:
    assert opened(claiming(FLAT.size), FLAT).tensor.numel() == FLAT.size
    assert opened(claiming(100, 100), FLAT).tensor.shape == (100, 100)
