"""What becomes of letters: cuts, delays and mishaps, in a stream or as datagrams.

In a stream, as with TCP, nothing is lost and nothing changes its order: a letter that is lost is sent
again after the resend time, again and again until it gets through; one that is sent while there is no
way waits until there is one, and then for the next time that it is sent again. A datagram that is lost
or finds no way is gone, and each takes its own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from fast.sim.faults.chance import Chances, Luck
from fast.sim.faults.deeds import Mishap
from fast.sim.faults.scenario import Scenario
from fast.sim.faults.ways import Ways, ways_of
from fast.sim.interference import UNHARMED, Fate

DETOUR_NS = 200_000_000
"""A datagram that is overtaken, or the second copy of one that is doubled, takes up to so much longer."""
MOST_RESENDS = 1000
"""After so many the next one gets through, whatever its chance."""

LOST = Fate(())
ALONE = Fate((0,), ordered=False)
"""A datagram that nothing happens to: it doesn't wait for those before it."""
_NONE = Luck(0)
"""Where nothing is left to chance."""


@final
class Letters:
    """Answers what becomes of each letter, and of the letters of a round."""

    def __init__(self, scenario: Scenario, seed: int, workers: int) -> None:
        self.ways: Ways = ways_of(scenario, workers)
        self._lost = self.ways.accidents[Mishap.LOST]
        self._datagrams, self._resend_ns = scenario.datagrams, scenario.resend_ns
        self._letters, self._rounds = Chances(seed, "letters"), Chances(seed, "rounds")
        self.harmless = not self.ways and not self._datagrams

    def fate(self, sender: int, to: int, now_ns: int) -> Fate:
        luck = self._letters.next((sender, to)) if self.ways.drawn else _NONE
        return (self._as_datagram if self._datagrams else self._in_a_stream)(sender, to, now_ns, luck)

    # In a stream

    def _in_a_stream(self, sender: int, to: int, now_ns: int, luck: Luck) -> Fate:
        late_ns = self._delay_ns(sender, to, now_ns, luck)
        for accident in self._lost:
            if accident.way.covers(sender, to, now_ns):
                late_ns += self._resend_ns * _resends(luck.draw(accident.purpose), accident.share)
        if self.ways.cuts:
            left_ns = self._through_cuts(sender, to, now_ns)
            if left_ns is None:
                return LOST
            late_ns += left_ns - now_ns
        return Fate((late_ns,)) if late_ns else UNHARMED

    def _through_cuts(self, sender: int, to: int, now_ns: int) -> int | None:
        """When this letter finds a way: at once, or when it is sent again after a cut; None for never."""
        for cut in self.ways.cuts:
            if cut.covers(sender, to, now_ns):
                healed_ns = cut.window.closed_ns
                if healed_ns is None:
                    return None
                return self._through_cuts(sender, to, healed_ns + self._resend_ns)
        return now_ns

    # As datagrams

    def _as_datagram(self, sender: int, to: int, now_ns: int, luck: Luck) -> Fate:
        if any(cut.covers(sender, to, now_ns) for cut in self.ways.cuts):
            return LOST
        if self._detours(Mishap.LOST, sender, to, now_ns, luck):
            return LOST
        late_ns = self._delay_ns(sender, to, now_ns, luck)
        late_ns += sum(self._detours(Mishap.OVERTAKEN, sender, to, now_ns, luck))
        again = self._detours(Mishap.DOUBLED, sender, to, now_ns, luck)
        if not again and not late_ns:
            return ALONE
        return Fate((late_ns, *(late_ns + detour_ns for detour_ns in again)), ordered=False)

    def _detours(self, mishap: Mishap, sender: int, to: int, now_ns: int, luck: Luck) -> list[int]:
        """One for each clause whose chance hits this letter, 1 ns at least."""
        return [
            1 + int(luck.draw(accident.purpose, 1) * DETOUR_NS)
            for accident in self.ways.accidents[mishap]
            if luck.draw(accident.purpose) < accident.share and accident.way.covers(sender, to, now_ns)
        ]

    # In both

    def _delay_ns(self, sender: int, to: int, now_ns: int, luck: Luck) -> int:
        late_ns = 0
        for delay in self.ways.delays:
            if delay.way.covers(sender, to, now_ns):
                late_ns += int(luck.draw(delay.purpose) * delay.by_ns) if delay.up_to else delay.by_ns
        return late_ns

    # Rounds: everybody sends to everybody, twice, and the slowest letter sets the pace

    def held_ns(self, members: Sequence[int], now_ns: int) -> int:
        """How much longer a round among these takes whose values begin to move now. They go out and come
        back, and each time the last letter is waited for. Rounds go in streams in any case."""
        if len(members) < 2:
            return 0
        group, luck = frozenset(members), self._rounds.next(tuple(members))
        ends_ns = now_ns
        for phase in range(2):
            ends_ns = self._all_through_cuts(group, ends_ns)
            ends_ns += self._slowest_ns(group, now_ns, luck, phase) + self._lost_ns(
                group, now_ns, luck, phase
            )
        return ends_ns - now_ns

    def _all_through_cuts(self, group: frozenset[int], now_ns: int) -> int:
        """When every pair has found a way. A cut that is never healed holds nobody up for ever: no
        strategy that needs all letters is given one."""
        cuts = (cut.window.closed_ns for cut in self.ways.cuts if cut.pairs(group, now_ns))
        healed_ns = max((healed_ns for healed_ns in cuts if healed_ns is not None), default=None)
        return now_ns if healed_ns is None else self._all_through_cuts(group, healed_ns + self._resend_ns)

    def _slowest_ns(self, group: frozenset[int], now_ns: int, luck: Luck, phase: int) -> int:
        late_ns = 0
        for delay in self.ways.delays:
            pairs = delay.way.pairs(group, now_ns)
            if pairs:  # the largest of n uniform numbers is distributed like the n-th root of one
                share = luck.draw(delay.purpose, phase) ** (1 / pairs) if delay.up_to else 1.0
                late_ns += int(share * delay.by_ns)
        return late_ns

    def _lost_ns(self, group: frozenset[int], now_ns: int, luck: Luck, phase: int) -> int:
        count = 0
        for accident in self._lost:
            pairs = accident.way.pairs(group, now_ns)
            count += _resends(luck.draw(accident.purpose, phase), accident.share, pairs) if pairs else 0
        return count * self._resend_ns


def _resends(drawn: float, share: float, letters: int = 1) -> int:
    """How often the unluckiest of so many letters is lost before it gets through: the least k with
    (1 - share^(k+1))^letters above the number that was drawn, since that is the chance of k at most."""
    k, lost = 0, share
    while (1 - lost) ** letters <= drawn and k < MOST_RESENDS:
        k, lost = k + 1, lost * share
    return k
