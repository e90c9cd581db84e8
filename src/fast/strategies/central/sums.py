"""Sums of gradients that pass through several hands on their way to a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from fast.core import Letter, fold_sum


def opened(letter: Letter) -> Letter:
    """As if the updates in a sum had been folded while it waited, so that a mean stays a mean.

    Whoever passes a sum on says in its note how many `updates` and how many `samples` are inside.
    """
    return replace(letter, steps=letter.steps * letter.note["updates"], weight=letter.note["samples"])


def summed(letters: Iterable[Letter]) -> Letter:
    """In the order given: its tensor divided by its count is the mean, weighted by samples."""
    return reduce(fold_sum, letters)
