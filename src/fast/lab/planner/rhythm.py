"""What is seen of a simulation that goes on until enough has been seen: beat by beat of its first worker."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from fast.lab.tally import Tally
from fast.trace import Included, Record, Reduced, Sent, Stepped

REPEATS, SLOW_REPEATS, SLOW = 3, 2, 64
"""So often a pattern is seen before it is believed; one of so many steps and more, if everybody follows it."""
_EVEN = 0.05
"""By so much less than the largest may all workers together have sent in one of these periods."""
_FILLING = 0.2
"""Of what was seen the first part doesn't count, where there is more: queues and servers fill."""
_TIMES = 5
"""Who has spoken in fewer beats may do something else most of the time."""
_OFTEN = (40, 600)
"""So often worker 0 and all workers have spoken when what they send is right in the mean, within some per cent."""
_GROWTH = 1.2
"""A look at everything after so many times the beats of the look before."""


@dataclass
class Beat:
    """What all participants did between two steps of worker 0."""

    ends_ns: int = 0
    own_bytes: int = 0
    """Sent by worker 0."""
    sent_bytes: int = 0
    """By all workers; likewise by the servers."""
    server_bytes: int = 0
    computed_ns: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    """Of each worker."""
    traffic: Counter[int] = field(default_factory=Counter)
    """Bytes that each participant sent and received."""
    staleness: Counter[int] = field(default_factory=Counter)


def together(beats: Sequence[Beat]) -> Beat:
    """All of them as one."""
    steps, traffic, staleness = Counter[int](), Counter[int](), Counter[int]()
    for beat in beats:
        steps.update(beat.steps)
        traffic.update(beat.traffic)
        staleness.update(beat.staleness)
    return Beat(
        beats[-1].ends_ns,
        sum(beat.own_bytes for beat in beats),
        sum(beat.sent_bytes for beat in beats),
        sum(beat.server_bytes for beat in beats),
        sum(beat.computed_ns for beat in beats),
        steps,
        traffic,
        staleness,
    )


@final
class Watch:
    """An observer, to be told of records before `tally` is.

    A beat ends with all that happens at the time of worker 0's step: in lock-step the others' steps are part of it,
    whoever comes first.
    """

    def __init__(self, workers: int, tally: Tally, least: int) -> None:
        self.beats: list[Beat] = []
        self.begun: int | None = None
        """The beat from which on every worker had taken its first step."""
        self.period: int | None = None
        """After so many steps worker 0 does the same again, by what it sends; None if that isn't seen (yet)."""
        self._workers, self._tally, self._least = workers, tally, least
        self._beat, self._computed_ns, self._look = Beat(), 0, least
        self._ends_ns = -1
        """When worker 0 ended the step under way; below 0 as long as it hasn't."""
        self._speakers, self._spoken = set[int](), [0, 0]
        """Who has sent something in the beat under way; and how often worker 0 and all workers have."""
        self._known, self._alike = list[int](), True
        """What worker 0 sent in each beat since then, and whether that was always the same."""
        self._sent, self._marks = [0] * workers, [list[int]() for _ in range(workers)]
        """What each worker has sent so far, and had at each of its steps since then."""
        self._new = set(range(workers))
        """Who has not taken a step yet."""
        self._takers: dict[type[Record], Callable[[Any], None]] = {
            Sent: self._take_sent,
            Reduced: self._take_reduced,
            Included: self._take_included,
            Stepped: self._take_stepped,
        }

    def __call__(self, record: Record) -> None:
        if 0 <= self._ends_ns < record.at_ns:
            self._end_beat()
        taker = self._takers.get(type(record))
        if taker is not None:
            taker(record)

    def _take_sent(self, record: Sent) -> None:
        self._count(record.who, record.nbytes)
        each = record.nbytes // len(record.to)
        for peer in record.to:
            self._beat.traffic[peer] += each

    def _take_reduced(self, record: Reduced) -> None:
        """Who takes part in a round receives as much as it sends."""
        self._count(record.who, record.nbytes)
        self._beat.traffic[record.who] += record.nbytes

    def _count(self, who: int, nbytes: int) -> None:
        beat = self._beat
        beat.traffic[who] += nbytes
        if who >= self._workers:
            beat.server_bytes += nbytes
            return
        beat.sent_bytes += nbytes
        self._sent[who] += nbytes
        self._speakers.add(who)
        if who == 0:
            beat.own_bytes += nbytes

    def _take_included(self, record: Included) -> None:
        self._beat.staleness[record.staleness] += 1

    def _take_stepped(self, record: Stepped) -> None:
        self._beat.steps[record.who] += 1
        self._new.discard(record.who)
        if self.begun is not None:
            self._marks[record.who].append(self._sent[record.who])
        if record.who == 0:
            self._ends_ns = record.at_ns

    def _end_beat(self) -> None:
        beat, total_ns = self._beat, self._tally.computed_ns
        beat.ends_ns, beat.computed_ns = self._ends_ns, total_ns - self._computed_ns
        self.beats.append(beat)
        self._beat, self._computed_ns, self._ends_ns = Beat(), total_ns, -1
        if self.begun is None:
            self.begun = None if self._new else len(self.beats)
            return
        self._spoken[0] += 0 in self._speakers
        self._spoken[1] += len(self._speakers)
        self._speakers.clear()
        self._known.append(beat.own_bytes)
        self._alike = self._alike and beat.own_bytes == self._known[0] > 0
        if len(self._known) >= self._look:
            self._look = int(len(self._known) * _GROWTH) + 1
            self.period = self._find_period()

    def _find_period(self) -> int | None:
        """What the first worker does again and again is a rhythm if it makes no difference to all in which of its
        periods they are looked at. A slow one is believed sooner, if everybody's bytes follow it to the beat."""
        sent = [beat.sent_bytes for beat in self.beats[-len(self._known) :]]
        found = period_of(self._known, self._least)
        if found is not None and _is_fair(sent[-REPEATS * found :], found):
            return found
        slow = period_of(sent, SLOW_REPEATS * SLOW, SLOW_REPEATS)
        return slow if slow is not None and slow >= SLOW else None

    def knows(self, beats: int) -> bool:
        """Whether what was heard is enough: a rhythm, or the same in each of so many steps, or so much that a mean
        is right, of which a rhythm would have been noticed."""
        chance = self._spoken[0] >= _OFTEN[0] and self._spoken[1] >= _OFTEN[1]
        return self.period is not None or chance or self._is_even(beats)

    def _is_even(self, beats: int) -> bool:
        """Whether worker 0 has sent the same in each of at least so many steps: every step is an exchange."""
        return self._alike and len(self._known) >= beats

    @property
    def counts(self) -> int:
        """So many beats that count have been seen."""
        return len(self._known)

    @property
    def seldom(self) -> bool:
        """Whether everybody is silent in most beats, and so far somebody has spoken in a few of them only."""
        spoken = sum(1 for beat in self.beats[-len(self._known) :] if beat.sent_bytes)
        return spoken < min(len(self._known), _TIMES)

    def close(self) -> None:
        """Nothing more will be seen."""
        if self.period is None:
            self.period = 1 if self._is_even(1) else self._find_period()

    def sent_per_step(self, beats: int) -> float:
        """By a worker in its last steps, at most so many: from each one's own step to its own step, so that it
        doesn't matter whose step ends a beat; whole periods, where there are any. 0 if nobody has taken as many."""
        period, sent, steps = self.period or 1, 0, 0
        for marks in self._marks:
            count = min(beats, len(marks) - 1) // period * period
            if count > 0:
                sent, steps = sent + marks[-1] - marks[-1 - count], steps + count
        return sent / steps if steps else 0.0

    def window(self) -> tuple[int, list[Beat]]:
        """What counts, and when it began: whole periods, where there are any."""
        last, known = len(self.beats), self._known
        count = math.ceil((1 - _FILLING) * len(known))
        if self.period is not None:
            like = _periodic(known, self.period)
            pause = self._pause(min(self.period, like - self.period))
            last, count = last - pause, max(1, min(count, like - pause) // self.period) * self.period
        first = last - count
        return self.beats[first - 1].ends_ns if first else 0, self.beats[first:last]

    def _pause(self, most: int) -> int:
        """So many of the last beats are better left out: where all are silent it doesn't matter who comes a little
        before or after the end."""
        sent = [beat.sent_bytes for beat in self.beats] + [0]

        def around(left_out: int) -> int:
            last = len(self.beats) - left_out
            return sum(sent[last - 2 : last + 1])

        return min(range(most), key=around, default=0)


def period_of(sent: Sequence[int], least: int, repeats: int = REPEATS) -> int | None:
    """The smallest number of steps after which the last ones of these repeat themselves: so often, and in at least
    so many steps. None if there is none, or if nothing was sent.

    >>> period_of([7, 0, 0, 5, 0, 0, 5, 0, 0, 5], 6), period_of([0, 0, 0, 0], 3)
    (3, None)
    """
    if not any(sent):
        return None
    for period in range(1, len(sent) // repeats + 1):
        seen = max(repeats * period, least)
        if seen <= len(sent) and _repeats(sent[-seen:], period) and any(sent[-seen:]):
            return period
    return None


def _is_fair(sent: Sequence[int], period: int) -> bool:
    """Whether about as much was sent in each period."""
    totals = [sum(sent[first : first + period]) for first in range(0, len(sent), period)]
    return min(totals) >= (1 - _EVEN) * max(totals)


def _repeats(sent: Sequence[int], period: int) -> bool:
    return sent[period:] == sent[:-period]


def _periodic(sent: Sequence[int], period: int) -> int:
    """For how many of the last steps that holds."""
    count = period
    while count < len(sent) and sent[-count - 1] == sent[-count - 1 + period]:
        count += 1
    return count
