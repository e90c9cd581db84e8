"""From a case that fails to the smallest one that still does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from fast.sim.faults.deeds import Clause, Cut, Freezes, Late, Lies, Mishaps, Moves, Notices, Resends
from fast.sim.faults.parties import EVERYWHERE, START, Group, Route, Span, Step, Time, When
from fast.sim.faults.scenario import Scenario

Case = TypeVar("Case", bound=Hashable)
Part = TypeVar("Part")


def shrink(
    case: Case,
    simpler: Callable[[Case], Iterator[Case]],
    fails: Callable[[Case], bool],
    *,
    tries: int = 500,
) -> Case:
    """Go to the first simpler case that still fails, again and again, until none does.

    `case` must fail. `fails` is asked at most `tries` times, and never twice about the same case. What
    can't be doesn't fail: answer False for it.
    """
    tried: set[Case] = set()
    while True:
        smaller = _first(case, simpler, fails, tried, tries)
        if smaller is None:
            return case
        case = smaller


def _first(
    case: Case,
    simpler: Callable[[Case], Iterator[Case]],
    fails: Callable[[Case], bool],
    tried: set[Case],
    tries: int,
) -> Case | None:
    for candidate in simpler(case):
        if len(tried) >= tries:
            return None
        if candidate not in tried:
            tried.add(candidate)
            if fails(candidate):
                return candidate
    return None


def simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Candidates, simplest first: without anything, with half the clauses, with one less, with one that
    is simpler itself. Each is smaller in some way and larger in none, so this comes to an end."""
    for clauses in _fewer(scenario.clauses):
        yield Scenario(clauses)
    for number, clause in enumerate(scenario.clauses):
        for candidate in simpler_clauses(clause):
            yield Scenario(tuple(_put(scenario.clauses, number, candidate)))


def _put(clauses: Sequence[Clause], number: int, clause: Clause) -> Iterator[Clause]:
    return chain(clauses[:number], (clause,), clauses[number + 1 :])


def _fewer(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    """None, each half, each without one."""
    if parts:
        yield ()
    if len(parts) > 2:
        yield parts[: len(parts) // 2]
        yield parts[len(parts) // 2 :]
    if len(parts) > 1:
        for number in range(len(parts)):
            yield parts[:number] + parts[number + 1 :]


def simpler_clauses(clause: Clause) -> Iterator[Clause]:
    """One thing simpler at a time: whom, when, how long, how much."""
    match clause:
        case Moves(who=who, when=when):
            yield from (replace(clause, who=each) for each in _groups(who))
            yield from (replace(clause, when=each) for each in _whens(when))
        case Freezes(who=who, when=when, for_ns=for_ns):
            yield from (replace(clause, who=each) for each in _groups(who))
            yield from (replace(clause, when=each) for each in _whens(when))
            yield from (replace(clause, for_ns=each) for each in _smaller(for_ns, 1))
        case Lies(who=who, span=span):
            yield from (replace(clause, who=each) for each in _groups(who))
            yield from (replace(clause, span=each) for each in _spans(span))
        case Cut(one=one, other=other, span=span):
            yield from (replace(clause, one=each) for each in _groups(one) if not each.overlaps(other))
            yield from (replace(clause, other=each) for each in _groups(other) if not each.overlaps(one))
            yield from (replace(clause, span=each) for each in _spans(span))
        case Late(by_ns=by_ns, route=route, span=span):
            yield from (replace(clause, route=each) for each in _routes(route))
            yield from (replace(clause, span=each) for each in _spans(span))
            yield from (replace(clause, by_ns=each) for each in _smaller(by_ns, 1))
        case Mishaps(percent=percent, route=route, span=span):
            yield from (replace(clause, route=each) for each in _routes(route))
            yield from (replace(clause, span=each) for each in _spans(span))
            yield from (replace(clause, percent=each) for each in _percents(percent))
        case Resends(after_ns=after_ns):
            yield from (replace(clause, after_ns=each) for each in _smaller(after_ns, 1))
        case Notices(after_ns=after_ns):
            yield from (replace(clause, after_ns=each) for each in _smaller(after_ns, 0))


# The parts of a clause


def _groups(group: Group) -> Iterator[Group]:
    """Fewer of them, and lower numbers."""
    for workers in _fewer(group.workers):
        if workers or group.servers:
            yield Group(workers, group.servers)
    for servers in _fewer(group.servers):
        if group.workers or servers:
            yield Group(group.workers, servers)
    lowest = tuple(range(len(group.workers)))
    if lowest != group.workers:
        yield Group(lowest, group.servers)
    for number, worker in enumerate(group.workers):
        for lower in sorted({*range(worker)} - {*group.workers})[:3]:
            yield Group((*group.workers[:number], lower, *group.workers[number + 1 :]), group.servers)


def _routes(route: Route) -> Iterator[Route]:
    """Every letter is said in fewer words than some; else fewer of them."""
    if route != EVERYWHERE:
        yield EVERYWHERE
    if route.senders is not None and route.receivers is not None:
        yield replace(route, receivers=None)
        yield replace(route, senders=None)
    if route.senders is not None:
        yield from (replace(route, senders=each) for each in _groups(route.senders))
    if route.receivers is not None:
        yield from (replace(route, receivers=each) for each in _groups(route.receivers))


def _spans(span: Span) -> Iterator[Span]:
    """From the start, earlier, shorter. To the end is said in fewer words, but may never end."""
    if span.start != START and not isinstance(span.length, Step):
        yield Span(START, span.length)
    yield from (Span(each, span.length) for each in _whens(span.start))
    if span.length is not None:
        least: When = Time(1) if isinstance(span.length, Time) else Step(1)
        yield from (Span(span.start, each) for each in _whens(span.length) if _size(each) >= _size(least))


def _whens(when: When) -> Iterator[When]:
    match when:
        case Time(ns):
            yield from (Time(each) for each in _smaller(ns, 0))
        case Step(number):
            yield from (Step(each) for each in _smaller(number, 0))


def _size(when: When) -> int:
    return when.ns if isinstance(when, Time) else when.number


def _smaller(value: int, least: int) -> Iterator[int]:
    """The least, then about a half, then itself with fewer digits, then the next round one below."""
    seen: set[int] = set()
    for candidate in (least, _cut(value // 2, 1), _cut(value, 1), _cut(value, 2), _below(value)):
        if least <= candidate < value and candidate not in seen:
            seen.add(candidate)
            yield candidate


def _cut(value: int, digits: int) -> int:
    """Rounded down to so many digits and noughts."""
    unit: int = 10 ** max(0, len(str(value)) - digits)
    return value // unit * unit


def _below(value: int) -> int:
    """One less in its first digit."""
    unit: int = 10 ** (len(str(value)) - 1)
    return _cut(value, 1) - unit


def _percents(percent: float) -> Iterator[float]:
    """In thousandths of a percent, rounded down."""
    yield from (each / 1000 for each in _smaller(int(percent * 1000), 1))
