"""Small codes side by side in bytes: 1, 2, 4 or 8 bits each, the first in the lowest bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pack(codes: Tensor, bits: int) -> Tensor:
    """Bytes for these codes, uint8 below 2^bits. What is left of the last byte is 0."""
    apart = 8 // bits
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    lanes = functional.pad(codes, (0, -codes.numel() % apart)).view(-1, apart)
    return (lanes << shifts).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes in these bytes."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]


def signed(codes: Tensor, bits: int) -> Tensor:
    """Codes as numbers in two's complement, int8."""
    half = 1 << (bits - 1)
    return ((codes.to(torch.int16) ^ half) - half).to(torch.int8)
