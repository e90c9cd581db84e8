"""The stage: the programs that are under way, and the loop that lets the events happen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, final

from fast.errors import Deadlock, FastError, PeerSilent
from fast.sim.events import Events
from fast.sim.participant import Participant
from fast.sim.programs import Computing, Program
from fast.sim.waiting import Waiting, picture
from fast.view import View

_AT_ONCE = 100_000
"""So many events at one time, and a hundredth of it more for each participant, are too many."""


@final
class Stage:
    """Plays the lives of participants until nothing happens any more."""

    def __init__(self, events: Events, participants: Sequence[Participant], view: View) -> None:
        self.events = events
        self.busy = False
        """A play is under way, or ended in an error."""
        self._participants, self._view = participants, view
        self._programs: list[Program] = []
        self._at_ns = -1
        self._patience = _AT_ONCE + _AT_ONCE // 100 * len(participants)
        self._look_at_event = 0

    def enter(self, p: Participant, life: Coroutine[Any, Any, None]) -> None:
        """Let this participant's program begin now."""
        p.program = Program(p.me.id, life)
        if p.frozen_until_ns or p.lost_ns:  # since a run before this one
            p.program.postpone = self._postpone
        self._programs.append(p.program)
        self.events.soon(p.program.resume)

    def play(self, on: Callable[[Participant], bool], after_event: Callable[[], None] | None) -> None:
        """Until all programs have ended; `on` says whether a worker still has something to do."""
        self.busy, events = True, self.events
        try:
            while events.ahead > events.background or (events and self._needed(on)):
                events.run_next()
                if events.happened > self._look_at_event:
                    self._check_time_passes()
                if after_event is not None:
                    after_event()
            stuck = self._needed(on)
            if stuck:
                raise self._deadlock(stuck)
        finally:
            for program in self._programs:
                self._participants[program.who].world.inbox.waiting = None
                program.close()
            self._programs.clear()
        self.busy = False

    def _check_time_passes(self) -> None:
        """A look now and then is enough: whether it is still the time that it was so many events ago."""
        if self.events.now_ns == self._at_ns:
            raise FastError(
                f"virtual time stands still at {self._at_ns / 1e9:g} s: {self._patience} events and no end. Does a "
                "program wait again and again for something that is there at once?"
            )
        self._at_ns, self._look_at_event = self.events.now_ns, self.events.happened + self._patience

    def _needed(self, on: Callable[[Participant], bool]) -> list[Program]:
        """Programs that must still go on. A server that waits for work may be given up where no worker
        is left that could bring any."""
        unfinished = [program for program in self._programs if not program.finished]
        working = any(p.worker is not None and on(p) for p in self._participants)
        return [program for program in unfinished if working or not self._is_idle(program)]

    def _is_idle(self, program: Program) -> bool:
        p = self._participants[program.who]
        return p.worker is None and not p.world.touched and not isinstance(program.waits_for, Computing)

    def _deadlock(self, stuck: Sequence[Program]) -> Deadlock:
        waits = {program.who: self._waiting(program) for program in stuck}
        return Deadlock(picture(waits, self._view), peers=tuple(waits))

    def _waiting(self, program: Program) -> Waiting:
        p, request = self._participants[program.who], program.waits_for
        whom, what = (request.whom(), request.describe()) if request is not None else ((), "nothing")
        return Waiting(p.name, p.me.steps, whom, what)

    # Who is frozen

    def freeze(self, p: Participant, for_ns: int, deadline_ns: int) -> None:
        """It does nothing for so long; what it was computing takes that much longer."""
        if p.program is not None:
            p.program.postpone = self._postpone
        now_ns = self.events.now_ns
        until_ns = now_ns + for_ns
        if p.silent_until_ns <= now_ns:
            p.silent_since_ns = now_ns
        if p.program is not None and isinstance(p.program.waits_for, Computing):
            p.lost_ns += max(0, until_ns - max(now_ns, p.silent_until_ns))
        else:
            p.frozen_until_ns = max(p.frozen_until_ns, until_ns)
        p.silent_until_ns = max(p.silent_until_ns, until_ns)
        give_up_ns = p.silent_since_ns + deadline_ns
        if p.silent_until_ns > give_up_ns >= now_ns:
            self.events.at(give_up_ns, lambda: self._give_up(p, deadline_ns), background=True)

    def _postpone(self, program: Program) -> bool:
        """Whether who is frozen goes on later."""
        p, now_ns = self._participants[program.who], self.events.now_ns
        if p.frozen_until_ns > now_ns:
            self.events.at(p.frozen_until_ns, program.resume)
            return True
        if p.lost_ns and isinstance(program.waits_for, Computing):
            self.events.at(now_ns + p.lost_ns, program.resume)
            p.lost_ns = 0
            return True
        return False

    def _give_up(self, frozen: Participant, deadline_ns: int) -> None:
        """Who waits for one that has been silent for the whole deadline says so."""
        if not self._is_silent(frozen.me.id) or not frozen.alive:
            return
        for program in list(self._programs):
            request = program.waits_for
            if (
                request is not None
                and frozen.me.id in request.whom()
                and request.is_hopeless(self._is_silent)
            ):
                program.fail(
                    PeerSilent(
                        f"{frozen.name} has given no sign of life for {deadline_ns / 1e9:g} s; it had done "
                        f"{frozen.me.steps} steps, and participant {program.who} waits for "
                        f"{request.describe()}. A longer deadline waits longer.",
                        peers=(frozen.me.id,),
                    )
                )

    def _is_silent(self, who: int) -> bool:
        return self._participants[who].silent_until_ns > self.events.now_ns
