"""Departures in, view out."""

from __future__ import annotations

from collections.abc import Mapping

from fast.view import View


def view_now(
    start: View, departures: Mapping[int, int], *, keep: int, step: int | None, period: int = 1
) -> View:
    """The view that holds for participant `keep`, given who left after how many steps.

    Without `step`, whoever is known to have left is out at once.

    With `step` (synchronous strategies) a departure counts from step `last + P * period` on. Until
    then the leaver's neighbours simply get nothing from it. The reason: neighbours learn of a
    departure before strangers do, and two workers that disagree about the view would wait for
    each other's letters for ever. News of it travels at least one edge in each `period` of steps,
    in which the links join all workers, so after P of them everybody who can be that far has
    heard, and all of them change their view at the same step.
    """
    patience = len(start.workers) * period
    gone = [
        peer
        for peer, last in departures.items()
        if peer != keep and (step is None or step >= last + patience)
    ]
    if not gone:
        return start
    next_view = start.without(gone)
    return View(start.number + len(gone), next_view.workers, next_view.servers)
