"""A letter: an update on its way. And a tag: what letters of one kind carry and how they fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fast.parts.codecs.base import Codec

Note = dict[str, Any]
"""Small typed data beside the tensor: numbers, strings, booleans and lists of them."""

GRADIENT = "gradient"
WEIGHTS = "weights"
OTHER = "other"


@dataclass(slots=True)
class Letter:
    """An update with its sender and its history. It holds the values at the moment of `send`.

    `steps` has the sender's step count for each update inside: one for a plain letter, several
    for a letter that was folded while it waited. `weight` counts samples, so that
    `tensor / count` is the mean of the updates inside, weighted by samples.
    """

    sender: int
    tag: str
    tensor: Tensor
    steps: tuple[int, ...]
    view: int = 0
    version: int = 0
    weight: float = 1.0
    note: Note = field(default_factory=dict)
    present: int | None = None
    """Which parameters have a gradient, one bit each; None for all (or not a gradient)."""
    private: bool = False
    """Whether the tensor's memory belongs to the reader, so that folding may write into it."""
    codec: list[Any] | None = None
    """Of an encoded letter, whose tensor is bytes: the codec as plain data, as its `spec` gives it."""
    dtype: torch.dtype | None = None
    """Of an encoded letter: what the values are once they are decoded. Likewise their shape."""
    shape: tuple[int, ...] | None = None
    part: tuple[int, int, int] | None = None
    """Of a letter that travels in pieces: (start, stop, total) of this piece in the flat tensor."""
    letters: int = 1
    """How many letters became this one while they waited; mailboxes count."""
    age: float = 0.0
    """How late its updates are, in the mean: how many steps the reader was ahead of them when it read it, or on a
    server how many updates had been applied since the weights that they were computed on."""

    @property
    def whole(self) -> bool:
        """Whether no further piece of it follows; they come from the end."""
        return self.part is None or self.part[0] == 0

    @property
    def count(self) -> int:
        return len(self.steps)


Fold = Callable[[Letter, Letter], Letter]
"""Makes one letter of two waiting ones of the same sender, the older one first."""


@dataclass(frozen=True)
class Tag:
    """What letters of one name carry, and how those of one sender fold while they wait.

    With `fold=None` every letter is read one by one; then the strategy itself must keep the
    number of waiting letters small (a mailbox takes `capacity` per sender and then refuses).
    """

    name: str
    carries: str = OTHER
    fold: Fold | None = None
    capacity: int = 64
    codec: Codec | None = None
    """How its letters are encoded on their way, unless `send` says otherwise."""


def fold_newest(older: Letter, newer: Letter) -> Letter:
    """Weights: the newest says it all."""
    return newer


def fold_sum(older: Letter, newer: Letter) -> Letter:
    """Gradients: nothing is lost. Equal weights add up exactly; unequal ones keep the mean right."""
    if newer.weight == 0 or older.weight == 0:  # a step that doesn't count has nothing to add
        return older if newer.weight == 0 else newer
    older_share, newer_share = older.weight / older.count, newer.weight / newer.count
    count, weight = older.count + newer.count, older.weight + newer.weight
    if older_share == newer_share:
        tensor = older.tensor.add_(newer.tensor) if older.private else older.tensor + newer.tensor
    else:
        tensor = older.tensor * (older_share * count / weight) + newer.tensor * (newer_share * count / weight)
    return Letter(
        sender=newer.sender,
        tag=newer.tag,
        tensor=tensor,
        steps=older.steps + newer.steps,
        view=newer.view,
        version=newer.version,
        weight=weight,
        note=newer.note,
        present=union(older.present, newer.present),
        private=True,
    )


def union(a: int | None, b: int | None) -> int | None:
    """Of two presence bitmaps; None means that everything is there."""
    return None if a is None or b is None else a | b
