"""What can't be is refused before the run: by who is there, by the stories of the workers, by the strategy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fast.core import Strategy
from fast.errors import UsageError
from fast.sim.faults.deeds import (
    Clause,
    Cut,
    Datagrams,
    Deed,
    Freezes,
    Late,
    Lies,
    Mishap,
    Mishaps,
    Moves,
    Notices,
    Resends,
)
from fast.sim.faults.parties import Group, Step, Time
from fast.sim.faults.quantities import show_ids, show_time

LEAVES = (Deed.STOP, Deed.DIE)
COMES = (Deed.RETURN, Deed.JOIN)


@dataclass(frozen=True)
class Cast:
    """Who takes part, and how long a death stays unknown."""

    workers: int
    servers: int
    notice_ns: int


def check(clauses: Sequence[Clause], strategy: Strategy, cast: Cast) -> None:
    """Raise a UsageError that says what was found, what is needed and what to try."""
    for clause in clauses:
        _check_known(clause, cast)
        _check_servers(clause)
        _check_stood(clause, strategy)
    _check_once(clauses)
    _check_letters(clauses, strategy)
    for worker in range(cast.workers):
        _check_story(worker, story(clauses, worker), cast.notice_ns)
    _check_somebody_stays(clauses, cast)
    _check_somebody_is_honest(clauses, cast)


def groups(clause: Clause) -> tuple[Group, ...]:
    """Whom a clause names."""
    match clause:
        case Moves(who=who) | Freezes(who=who) | Lies(who=who):
            return (who,)
        case Cut(one=one, other=other):
            return (one, other)
        case Late(route=route) | Mishaps(route=route):
            return route.named
    return ()


# Who is there


def _check_known(clause: Clause, cast: Cast) -> None:
    for group in groups(clause):
        for noun, ids, there in (
            ("worker", group.workers, cast.workers),
            ("server", group.servers, cast.servers),
        ):
            strangers = [number for number in ids if number >= there]
            if strangers:
                raise UsageError(
                    f"`{clause}`: there is no {noun} {show_ids(strangers)}; {_there(noun, there)}"
                )


def _there(noun: str, count: int) -> str:
    if not count:
        return f"this run has no {noun}s"
    return f"there are {count}, from 0 to {count - 1}" if count > 1 else f"there is only {noun} 0"


def _check_servers(clause: Clause) -> None:
    match clause:
        case Moves(who=who) | Lies(who=who) if who.servers:
            raise UsageError(
                f"`{clause}`: a server owns the weights, and no worker could train without it or against it. "
                f"Let it freeze, `server {who.servers[0]} freezes at 2s for 1s`, or let workers do it."
            )


def _check_stood(clause: Clause, strategy: Strategy) -> None:
    """What the strategy itself says about comings and deaths."""
    if isinstance(clause, Moves) and clause.deed is Deed.DIE and not strategy.survives_death:
        raise UsageError(
            f"`{clause}`: {strategy!r} can't go on when a worker dies in the middle of its turn. Let it leave in "
            f"order, `{clause.who} {Deed.STOP.value[clause.who.several]} at {clause.when}`, or let it freeze."
        )
    if isinstance(clause, Moves) and clause.deed in COMES and not strategy.admits:
        raise UsageError(
            f"`{clause}`: {strategy!r} doesn't take workers in while others train. Use a strategy that "
            "declares `admits`, or let the worker freeze instead."
        )


def _check_once(clauses: Sequence[Clause]) -> None:
    for kind in (Datagrams, Resends, Notices):
        said = [clause for clause in clauses if isinstance(clause, kind)]
        if len(said) > 1:
            raise UsageError(f"`{said[0]}` and `{said[1]}`: this holds for the whole run; say it once")


# Letters


def _check_letters(clauses: Sequence[Clause], strategy: Strategy) -> None:
    datagrams = next((clause for clause in clauses if isinstance(clause, Datagrams)), None)
    if datagrams is not None and not strategy.survives_loss:
        raise UsageError(
            f"`{datagrams}`: {strategy!r} waits for letters, and a datagram may never come. Leave it out, then a "
            "lost letter only comes later; or use a strategy that declares `survives_loss`."
        )
    for clause in clauses:
        match clause:
            case Cut(span=span) if span.length is None and not strategy.survives_loss:
                raise UsageError(
                    f"`{clause}`: {strategy!r} waits for letters, and this cut is never healed. Say for how long, "
                    "such as `for 1s`."
                )
            case Mishaps() if datagrams is None:
                _check_in_a_stream(clause)
            case Resends() if datagrams is not None:
                raise UsageError(f"`{clause}`: datagrams are never sent again. Leave out one of the two.")


def _check_in_a_stream(clause: Mishaps) -> None:
    if clause.mishap is not Mishap.LOST:
        does = "drops doubles" if clause.mishap is Mishap.DOUBLED else "keeps the order"
        raise UsageError(
            f"`{clause}`: letters travel in a stream, which {does}, so nothing would happen. Add "
            "`letters travel as datagrams`."
        )
    if clause.percent == 100:
        raise UsageError(f"`{clause}`: a stream would send them again for ever. Let fewer be lost.")


# The story of each worker


def story(clauses: Iterable[Clause], worker: int) -> list[Moves]:
    """What this worker does, by time; where steps are among it, in the order in which it is written."""
    own = [clause for clause in clauses if isinstance(clause, Moves) and worker in clause.who.workers]
    times = [clause.when.ns for clause in own if isinstance(clause.when, Time)]
    if len(times) < len(own):
        return own
    return [clause for _, clause in sorted(zip(times, own, strict=True), key=lambda pair: pair[0])]


def _check_story(worker: int, deeds: Sequence[Moves], notice_ns: int) -> None:
    gone: Moves | None = None
    for number, clause in enumerate(deeds):
        if clause.deed is Deed.JOIN and number > 0:
            raise UsageError(
                f"`{clause}`: a worker that joins wasn't there before, and worker {worker} was: `{deeds[0]}`. "
                f"Write `worker {worker} returns at ...`."
            )
        if clause.deed is Deed.RETURN and gone is None:
            raise UsageError(
                f"`{clause}`: worker {worker} is still there. Only a worker that has stopped or died can return; "
                f"write before it `worker {worker} dies at ...`."
            )
        if clause.deed in LEAVES and gone is not None:
            raise UsageError(f"`{clause}`: worker {worker} has left before: `{gone}`. Let it return first.")
        if clause.deed is Deed.RETURN and gone is not None:
            _check_noticed(clause, gone, notice_ns)
        gone = clause if clause.deed in LEAVES else None


def _check_noticed(comes: Moves, gone: Moves, notice_ns: int) -> None:
    if not isinstance(comes.when, Time) or not isinstance(gone.when, Time):
        return
    unknown_ns = notice_ns if gone.deed is Deed.DIE else 0
    if comes.when.ns < gone.when.ns + unknown_ns:
        raise UsageError(
            f"`{comes}`: `{gone}`, and that is noticed at {show_time(gone.when.ns + unknown_ns)}. Let it return "
            "after that, or say `deaths are noticed after 100ms`."
        )


def _check_somebody_stays(clauses: Sequence[Clause], cast: Cast) -> None:
    """At every moment somebody must be there for certain: whose comings and goings have times."""
    stories = [story(clauses, worker) for worker in range(cast.workers)]
    certain = [deeds for deeds in stories if not any(isinstance(deed.when, Step) for deed in deeds)]
    moments = {0, *(deed.when.ns for deeds in certain for deed in deeds if isinstance(deed.when, Time))}
    for moment in sorted(moments):
        if not any(_is_there(deeds, moment) for deeds in certain):
            when = f"from {show_time(moment)} on" if moment else "at the start"
            raise UsageError(
                f"`{'; '.join(map(str, clauses))}`: {when} it isn't certain that anybody would be there to train. "
                "Leave at least one worker in at every moment."
            )


def _is_there(deeds: Sequence[Moves], moment_ns: int) -> bool:
    there = not (deeds and deeds[0].deed is Deed.JOIN)
    for deed in deeds:
        if isinstance(deed.when, Time) and deed.when.ns <= moment_ns:
            there = deed.deed in COMES
    return there


def _check_somebody_is_honest(clauses: Sequence[Clause], cast: Cast) -> None:
    lies = [clause for clause in clauses if isinstance(clause, Lies)]
    starts = {0, *(lie.span.start.ns for lie in lies if isinstance(lie.span.start, Time))}
    for moment in starts:
        hostile = {worker for lie in lies if _may_cover(lie, moment) for worker in lie.who.workers}
        if len(hostile) == cast.workers:
            raise UsageError(
                f"`{'; '.join(map(str, lies))}`: all {cast.workers} workers would be hostile at the same time. "
                "Leave at least one honest."
            )


def _may_cover(lie: Lies, moment_ns: int) -> bool:
    """Steps may come at any time."""
    if isinstance(lie.span.start, Step):
        return True
    length = lie.span.length
    ends_ns = lie.span.start.ns + length.ns if isinstance(length, Time) else moment_ns + 1
    return lie.span.start.ns <= moment_ns < ends_ns
