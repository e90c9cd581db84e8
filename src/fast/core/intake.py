"""What happens to a letter before it waits in a mailbox: pieces become one, and what folds is decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from fast.core.coding import opened
from fast.core.letter import Letter, Tag, fold_newest, union
from fast.errors import WireError
from fast.view import Layout


@dataclass
class _Unfinished:
    """A letter of which some pieces have come."""

    tensor: Tensor
    missing: int
    """So many values, from the first on: pieces come from the end."""
    present: int | None = 0


@final
class Intake:
    """One participant's. Letters of one sender and tag come in order, so at most one of each is unfinished."""

    def __init__(self, tags: Mapping[str, Tag], layout: Callable[[int], Layout | None]) -> None:
        self._tags, self._layout = tags, layout  # of the flat tensors that a sender's letters hold
        self._unfinished: dict[tuple[str, int], _Unfinished] = {}

    def take(self, letter: Letter) -> Letter | None:
        """The letter as it may wait; None while pieces of it are missing."""
        if letter.part is not None:
            return self._with_piece(letter)
        tag = self._tags.get(letter.tag)
        if letter.codec is not None and tag is not None and tag.fold not in (None, fold_newest):
            return opened(letter, self._layout(letter.sender))
        return letter

    def _with_piece(self, letter: Letter) -> Letter | None:
        assert letter.part is not None
        start, stop, total = letter.part
        piece, key = opened(letter, self._layout(letter.sender)), (letter.tag, letter.sender)
        if key not in self._unfinished:
            self._unfinished[key] = _Unfinished(self._memory(letter.sender, total, piece.tensor), total)
        whole = self._unfinished[key]
        fits = 0 <= start <= stop == whole.missing and total == whole.tensor.numel()
        if not fits or piece.tensor.numel() != stop - start or piece.tensor.dtype != whole.tensor.dtype:
            raise WireError(
                f"peer {letter.sender} sent a piece of letter {letter.tag!r} that doesn't fit the others"
            )
        whole.tensor[start:stop] = piece.tensor.reshape(-1)
        whole.missing = start
        whole.present = union(whole.present, letter.present)
        if whole.missing:
            return None
        del self._unfinished[key]
        return replace(
            piece,
            tensor=whole.tensor,
            present=self._all_or(letter.sender, whole.present),
            part=None,
            private=True,
        )

    def _all_or(self, sender: int, present: int | None) -> int | None:
        """None if every parameter has a gradient: the bitmap that all others compare with."""
        layout = self._layout(sender)
        return None if layout is None or present == layout.everything else present

    def _memory(self, sender: int, total: int, like: Tensor) -> Tensor:
        layout = self._layout(sender)
        if layout is None or total != layout.size:
            raise WireError(
                f"a letter in pieces of {total} values, and flat tensors here have {layout and layout.size}"
            )
        return torch.empty(total, dtype=like.dtype, device=like.device)
