"""Agreement: who is in, and who took part in a round."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

from fast.sim.checkers.base import Checker, Takers
from fast.trace import Record, Reduced, Sent, Stepped, Turned
from fast.view import View


@final
class ViewsAgree(Checker):
    """Views with the same number have the same members, and nobody's view goes back to an older one."""

    promise = "participants with the same view must agree on who is in it"

    def __init__(self) -> None:
        self._members: dict[int, tuple[View, int]] = {}
        """Each view, and who was seen with it first."""
        self._number: dict[int, int] = {}
        self._seen: set[int] = set()
        """Whose turns made records since the last event, and may have changed their view."""

    def takers(self) -> Takers:
        return {Sent: self._notice, Stepped: self._notice, Turned: self._notice}

    def _notice(self, record: Record) -> None:
        self._seen.add(record.who)

    def after_event(self) -> None:
        for who in sorted(self._seen):
            if self.participant(who).alive:  # whoever has left keeps a view in which it is still there
                self._check(who, self.me(who).view)
        self._seen.clear()

    def _check(self, who: int, view: View) -> None:
        before = self._number.get(who, view.number)
        if view.number < before:
            raise self.violated(f"the view of {self.name(who)} went back from {before} to {view.number}")
        self._number[who] = view.number
        other, first = self._members.setdefault(view.number, (view, who))
        if (other.workers, other.servers) != (view.workers, view.servers):
            raise self.violated(
                f"in view {view.number} {self.name(first)} sees workers {other.workers} and servers "
                f"{other.servers}, and {self.name(who)} sees workers {view.workers} and servers {view.servers}"
            )


@dataclass
class _Round:
    """The n-th round of these members: what the first of them has said about it."""

    step: int
    first: int
    done: set[int] = field(default_factory=set)


@final
class RoundsAgree(Checker):
    """Each member of a round says the same about who took part; in lock-step, also in which step."""

    promise = "all members of a round must agree on who took part in it"

    def __init__(self, *, synchronous: bool) -> None:
        self._synchronous = synchronous
        self._count: Counter[tuple[tuple[int, ...], int]] = Counter()
        self._open: dict[tuple[tuple[int, ...], int], _Round] = {}
        self._excused: set[int] = set()
        """Who has died or come in between, and was not there for all rounds of its groups."""

    def takers(self) -> Takers:
        return {Reduced: self._check}

    def died(self, who: int) -> None:
        self._excused.add(who)

    def came(self, who: int) -> None:
        self._excused.add(who)

    def _check(self, record: Reduced) -> None:
        who, members = record.who, record.members
        if who not in members:
            raise self.violated(f"{self.name(who)} ended a round of {self.names(members)}, in which it isn't")
        self._count[members, who] += 1
        key, step = (members, self._count[members, who]), self.me(who).steps
        round_ = self._open.setdefault(key, _Round(step, who))
        if self._synchronous and step != round_.step and not self._excused.intersection(members):
            raise self.violated(
                f"{self.name(who)} ended round {key[1]} of {self.names(members)} in step {step}, and "
                f"{self.name(round_.first)} the same round in step {round_.step}"
            )
        round_.done.add(who)
        if len(round_.done) == len(members):
            del self._open[key]

    def finish(self) -> None:
        for (members, number), round_ in self._open.items():
            if self._excused.intersection(members):
                continue
            missing = min(who for who in members if who not in round_.done)
            raise self.violated(
                f"{self.name(round_.first)} ended round {number} of {self.names(members)} in step "
                f"{round_.step}, and {self.name(missing)} never was in such a round"
            )
