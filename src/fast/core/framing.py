"""A letter as a frame: its header for the wire, and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fast.core.letter import Letter
from fast.errors import WireError
from fast.wire import Header

_RUNS = 200
"""Of so many the header keeps track; they fit beside a note."""


def header_of(letter: Letter) -> Header:
    """All that the wire says about a letter; its values travel beside it."""
    present = letter.present
    return Header(
        sender=letter.sender,
        tag=letter.tag,
        dtype=str(letter.tensor.dtype).removeprefix("torch."),
        shape=tuple(letter.tensor.shape),
        steps=_runs(letter.steps),
        view=letter.view,
        version=letter.version,
        weight=letter.weight,
        note=letter.note,
        present=None if present is None else present.to_bytes(present.bit_length() // 8 + 1, "little"),
    )


def _runs(steps: tuple[int, ...]) -> list[tuple[int, int]]:
    """Runs of consecutive steps. A letter into which thousands were folded keeps their number, and
    which they were as far as it fits: the oldest count as one run."""
    runs: list[tuple[int, int]] = []
    for step in steps:
        if runs and step == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((step, 1))
    if len(runs) > _RUNS:
        old = runs[: 1 - _RUNS]
        runs = [(old[0][0], sum(count for _, count in old)), *runs[1 - _RUNS :]]
    return runs


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
        steps=tuple(first + k for first, count in header.steps for k in range(count)),
        view=header.view,
        version=header.version,
        weight=header.weight,
        note=header.note,
        present=None if header.present is None else int.from_bytes(header.present, "little"),
    )
