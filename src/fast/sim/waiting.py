"""Who waits for whom: the picture in the message about a deadlock.

First the circle that nobody can leave, or, if there is none, the chain that ends at somebody who waits
for nobody; then what each of them waits for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fast.view import View

SHOWN = 12
"""So many participants are drawn and listed; of more than that the rest is counted."""
_ADVICE = (
    "Every letter that is waited for must be sent to the one who waits, under the same tag, and all members of "
    "a mean must come to it."
)
Waits = Mapping[int, "Waiting"]


@dataclass(frozen=True)
class Waiting:
    """One participant that waits: its name, its steps, who could end it, and for what, in words."""

    name: str
    steps: int
    whom: tuple[int, ...]
    what: str

    @property
    def subject(self) -> str:
        """What it waits for, without from whom."""
        return re.split(r" from |, to which ", self.what)[0]


def picture(waits: Waits, view: View) -> str:
    """Of those who still wait when nothing can happen any more, among all who were there at the start."""
    circle = find_circle(waits)
    path = circle or longest_chain(waits)
    lines = ["nothing can happen any more, and somebody still waits:"]
    lines += [f"  {line}" for line in _headline(path, waits, view, closed=bool(circle))]
    lines += [f"  {line}" for line in _drawing(path, waits, closed=bool(circle))]
    lines += [f"  {line}" for line in _list(path, waits)]
    free = [worker for worker in view.workers if worker not in waits]
    if free:
        lines.append(f"workers {_some(free)} have left or paused.")
    return "\n".join([*lines, _ADVICE])


# Finding it


def find_circle(waits: Waits) -> list[int]:
    """Participants that each wait for the next, and the last for the first; [] if there is no circle.

    Two who wait for each other are the plainest picture there is, so they are looked for first.
    """
    for who, waiting in sorted(waits.items()):
        for other in waiting.whom:
            if other != who and other in waits and who in waits[other].whom:
                return [who, other]
    finished: set[int] = set()
    for who in sorted(waits):
        circle = _circle_from(who, waits, finished)
        if circle:
            return circle
    return []


def _circle_from(start: int, waits: Waits, finished: set[int]) -> list[int]:
    """Follow every wait, the lowest first, until somebody is met again. Without recursion: chains are long."""
    path, position, todo = [start], {start: 0}, [iter(waits[start].whom)]
    while path:
        other = next((peer for peer in todo[-1] if peer in waits and peer not in finished), None)
        if other is None:
            finished.add(path[-1])
            del position[path.pop()]
            todo.pop()
        elif other in position:
            circle = path[position[other] :]
            lowest = circle.index(min(circle))
            return circle[lowest:] + circle[:lowest]
        else:
            position[other] = len(path)
            path.append(other)
            todo.append(iter(waits[other].whom))
    return []


def longest_chain(waits: Waits) -> list[int]:
    """Where there is no circle: the longest way along the waits. It ends with somebody who waits for nobody."""
    length: dict[int, int] = {}
    following: dict[int, int] = {}
    for start in sorted(waits):
        stack = [start]
        while stack:
            who = stack[-1]
            ahead = waits[who].whom if who in waits else ()
            unknown = [peer for peer in ahead if peer not in length]
            if unknown:
                stack += unknown
                continue
            stack.pop()
            length[who] = 1 + max((length[peer] for peer in ahead), default=0)
            if ahead:
                following[who] = max(ahead, key=lambda peer: (length[peer], -peer))
    chain = [max(waits, key=lambda who: (length[who], -who))] if waits else []
    while chain and chain[-1] in following:
        chain.append(following[chain[-1]])
    return chain


# Showing it


def _headline(path: Sequence[int], waits: Waits, view: View, *, closed: bool) -> list[str]:
    if len(path) < 2 and not closed:
        return []
    names = [_name(who, waits, view) for who in path]
    shown = names if len(path) <= SHOWN else [*names[:3], "...", names[-1]]
    arrows = " -> ".join([*shown, names[0]] if closed else shown)
    subjects = {waits[who].subject for who in path if who in waits}
    each = f", each for {subjects.pop()}" if len(subjects) == 1 else ""
    many = f" ({len(path)} of them)" if len(path) > SHOWN else ""
    end = "" if closed or path[-1] in waits else f"; {names[-1]} doesn't wait"
    return [f"{arrows}{many}{each}{end}"]


def _drawing(path: Sequence[int], waits: Waits, *, closed: bool) -> list[str]:
    """The circle or chain as arrows between ids, and under it who hangs on to it."""
    if (len(path) < 2 and not closed) or len(waits) > SHOWN:
        return []
    row = " --> ".join(map(str, path))
    lines = [f"+-> {row} -+", f"+{'-' * (len(row) + 5)}+"] if closed else [f"    {row}"]
    others = [who for who in sorted(waits) if who not in path and waits[who].whom]
    return [*lines, *(f"    {who} --> {', '.join(map(str, waits[who].whom))}" for who in others)]


def _list(path: Sequence[int], waits: Waits) -> list[str]:
    """What each waits for, those of the circle or chain first."""
    inside = set(path)
    order = [*(who for who in path if who in waits), *(who for who in sorted(waits) if who not in inside)]
    first = order[:SHOWN]
    lines = [f"{waits[who].name} (step {waits[who].steps}) waits for {_short(waits[who])}" for who in first]
    rest = Counter(waits[who].subject for who in order[SHOWN:])
    if rest:
        counted = ", ".join(f"{count} for {subject}" for subject, count in rest.most_common(4))
        lines.append(f"and {rest.total()} more wait: {counted}{', ...' if len(rest) > 4 else ''}")
    return lines


def _short(waiting: Waiting) -> str:
    """What it waits for; of very many peers only the first."""
    if len(waiting.whom) <= SHOWN:
        return waiting.what
    return f"{waiting.subject} of {_some(waiting.whom)}"


def _some(whose: Iterable[int]) -> str:
    ids = list(whose)
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(map(str, ids[:SHOWN])) + more


def _name(who: int, waits: Waits, view: View) -> str:
    if who in waits:
        return waits[who].name
    return f"{'server' if who in view.servers else 'worker'} {who}"
