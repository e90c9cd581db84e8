"""A letter as a frame: its header for the wire, and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fast.core.letter import Letter
from fast.errors import WireError
from fast.wire import Header


def header_of(letter: Letter) -> Header:
    """All that the wire says about a letter; its values travel beside it."""
    present = letter.present
    return Header(
        sender=letter.sender,
        tag=letter.tag,
        dtype=str(letter.tensor.dtype).removeprefix("torch."),
        shape=tuple(letter.tensor.shape),
        steps=letter.steps,
        view=letter.view,
        version=letter.version,
        weight=letter.weight,
        note=letter.note,
        present=None if present is None else present.to_bytes(present.bit_length() // 8 + 1, "little"),
    )


def letter_of(header: Header, payload: Tensor) -> Letter:
    """A letter whose tensor reads `payload` in place."""
    dtype = getattr(torch, header.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise WireError(f"a letter of dtype {header.dtype!r}, which torch doesn't know")
    nbytes = math.prod(header.shape) * dtype.itemsize
    if nbytes != payload.numel():
        raise WireError(f"a letter announces {nbytes} bytes and brings {payload.numel()}")
    return Letter(
        sender=header.sender,
        tag=header.tag,
        tensor=payload.view(dtype).view(header.shape),
        steps=header.steps,
        view=header.view,
        version=header.version,
        weight=header.weight,
        note=header.note,
        present=None if header.present is None else int.from_bytes(header.present, "little"),
    )
