"""The views of all participants: worked out once for everybody, and kept up to date."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from fast.membership import Change, Why, patience_of, view_now
from fast.view import View

_NOBODY = -1
_KEPT = 8
"""So many views of lock-step workers are kept: of workers that are a few steps apart."""


@final
class Views:
    """Which view holds for those who are there, given the list of who came and left as it grows.

    `fast.membership.view_now` says what is right; here thousands of participants ask in each of
    their turns, and thousands leave one after another.
    """

    def __init__(self, start: View, changes: Sequence[Change]) -> None:
        self._start, self._changes = start, changes
        self._there, self._told = list(start.workers), 0
        self._latest = start
        self._effective: list[int] = []
        self._at_count: dict[int, View] = {}

    def now(self) -> View:
        """For those who hear of everything at once."""
        if self._told < len(self._changes):
            for change in self._changes[self._told :]:
                self._take(change)
            self._told = len(self._changes)
            number = self._start.number + self._told
            self._latest = replace(self._start, number=number, workers=tuple(self._there))
        return self._latest

    def _take(self, change: Change) -> None:
        place = bisect_left(self._there, change.who)
        known = place < len(self._there) and self._there[place] == change.who
        if change.why is Why.CAME and not known:
            self._there.insert(place, change.who)
        elif change.why is not Why.CAME and known:
            del self._there[place]

    def at(self, step: int, period: int) -> View:
        """For workers in lock-step, at this step."""
        patience = patience_of(self._start, period)
        if len(self._effective) < len(self._changes):
            for change in self._changes[len(self._effective) :]:
                insort(self._effective, change.counts_from(patience))
            self._at_count.clear()  # a later change may count earlier
        counted = bisect_right(self._effective, step)
        if not counted:
            return self._start
        if counted not in self._at_count:
            if len(self._at_count) >= _KEPT:
                self._at_count.clear()
            self._at_count[counted] = view_now(
                self._start, self._changes, keep=_NOBODY, step=step, period=period
            )
        return self._at_count[counted]
