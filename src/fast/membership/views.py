"""Who came and who left in, view out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from fast.view import View


class Why(Enum):
    """What changed somebody's membership."""

    LEFT = "left"
    """Or died; `step` is how many steps it had done."""
    CAME = "came"
    """For the first time or back; `step` is the first one that it takes with the others."""
    ABSENT = "absent"
    """Not there at the start."""


@dataclass(frozen=True, slots=True)
class Change:
    """Somebody's coming or going."""

    who: int
    step: int
    why: Why = Why.LEFT

    def counts_from(self, patience: int) -> int:
        """The step at which lock-step workers change their view."""
        return self.step + patience if self.why is Why.LEFT else self.step


def view_now(start: View, changes: Sequence[Change], *, keep: int, step: int | None, period: int = 1) -> View:
    """The view that holds for participant `keep`, given who came and left.

    Without `step`, whoever is known to have left is out at once.

    With `step` (synchronous strategies) a departure counts from step `last + P * period` on. Until
    then the leaver's neighbours simply get nothing from it. The reason: neighbours learn of a
    departure before strangers do, and two workers that disagree about the view would wait for
    each other's letters for ever. News of it travels at least one edge in each `period` of steps,
    in which the links join all workers, so after P of them everybody who can be that far has
    heard, and all of them change their view at the same step.
    """
    patience = patience_of(start, period)
    known = [each for each in changes if step is None or step >= each.counts_from(patience)]
    gone = _gone(known)
    counted = len(known) - (keep in gone)  # nobody sees itself leave
    if not counted:
        return start
    gone.discard(keep)
    return View(
        start.number + counted,
        tuple(worker for worker in start.workers if worker not in gone),
        tuple(server for server in start.servers if server not in gone),
        start.groups,
    )


def patience_of(start: View, period: int) -> int:
    """After so many steps everybody who goes in lock-step has heard of a departure."""
    return len(start.workers) * period


def _gone(changes: Iterable[Change]) -> set[int]:
    gone: set[int] = set()
    for change in changes:
        (gone.discard if change.why is Why.CAME else gone.add)(change.who)
    return gone
