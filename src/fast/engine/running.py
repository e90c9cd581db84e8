"""One run, as the host sees it: its participants from their start to their end."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

from fast.engine.forking import Body, Kept, fork
from fast.engine.limits import raise_limits
from fast.engine.messages import Failure, Job, Outcome
from fast.engine.participant import Participant
from fast.engine.process import run_server, run_worker
from fast.engine.rows import Rows
from fast.runtime.rendezvous import ended_before_join
from fast.transport import Phase, ShmTransport, create_arenas

_LAST_WORDS_S = 2.0
"""How long output may still come after the last participant has ended."""
_READ_BYTES = 1 << 16


class Surroundings(NamedTuple):
    """What a run gets from its host."""

    tell: Callable[[dict[str, Any]], None]
    selector: selectors.BaseSelector
    outputs: selectors.BaseSelector
    """For the output of participants, which is not read while the engine is behind."""
    kept: Kept


class _Ending(NamedTuple):
    """The participants have been asked to end."""

    why: str
    grace_s: float
    at_s: float
    """When those are killed that still run."""


@final
class Run:
    """Between `start` and `finish`."""

    def __init__(self, job: Job, around: Surroundings, body: Callable[[], Any] | None = None) -> None:
        self._job, self._around, self._tell, self._body = job, around, around.tell, body
        self._participants: dict[int, Participant] = {}
        self._arenas: list[int] = []
        self._watch: ShmTransport | None = None
        self._failure: Failure | None = None
        self._ending: _Ending | None = None
        self._overdue: list[str] = []
        """Who had to be killed after it had been asked to end."""
        self._steps_told: list[int] = []
        self._bars_told: list[str] = []
        self._ended_at = time.monotonic()

    # Starting

    def start(self) -> None:
        job = self._job
        try:
            raise_limits(job.workers)
            self._arenas = create_arenas(job.size)
            self._watch = ShmTransport(len(self._arenas) - 1, self._arenas)
        except OSError as error:
            self._fail(
                Failure("the run", f"there is no shared memory for {job.workers} workers: {error.strerror}")
            )
        for id in job.here:
            self._fork(
                id, f"worker {id}", lambda id, channel: run_worker(id, job, self._arenas, channel, self._body)
            )
        self._tell({"event": "started", "pids": [p.pid for p in self._participants.values()]})

    def _start_servers(self, count: int, call: str, meeting: dict[str, Any] | None = None) -> None:
        job = self._job
        for number in range(count):
            self._fork(
                job.workers + number,
                f"server {number}",
                lambda id, channel: run_server(id, job, self._arenas, channel, call, meeting),
            )

    def _fork(self, id: int, name: str, body: Body) -> None:
        if self._failure is not None:
            return
        try:
            forked = fork(id, name, body, self._around.kept)
        except OSError as error:
            self._fail(
                Failure(
                    name,
                    f"{name} could not be started: {error.strerror}. Is there memory for so many, and do "
                    "`ulimit -u` and `ulimit -n` allow them?",
                )
            )
            return
        assert self._watch is not None
        self._watch.vouch(id)  # from here on silence counts
        participant = self._participants[id] = Participant(id, name, forked.pid, forked.channel)
        self._around.selector.register(
            forked.channel, selectors.EVENT_READ, partial(self._on_message, participant)
        )
        for stream, reader in forked.readers.items():
            participant.output[reader] = Rows(partial(self._take, participant, stream))
            self._around.outputs.register(
                reader, selectors.EVENT_READ, partial(self._on_output, participant, reader)
            )

    # Watching

    def _take(self, participant: Participant, stream: int, text: str, bar: bool) -> None:
        """One line of output. After a failure that ends the run, only those of who failed are of interest."""
        failure = self._failure
        if failure is None or self._ending is not None or failure.who == participant.name:
            self._tell({"event": "line", "who": participant.name, "stream": stream, "text": text, "bar": bar})

    def _on_output(self, participant: Participant, reader: int) -> None:
        data = os.read(reader, _READ_BYTES)
        if data:
            participant.output[reader].feed(data)
        else:
            self._end_output(participant, reader)

    def _end_output(self, participant: Participant, reader: int) -> None:
        self._around.outputs.unregister(reader)
        os.close(reader)
        participant.output.pop(reader).end()

    def _on_message(self, participant: Participant) -> None:
        if not participant.connected:  # an event from before it was closed
            return
        messages = participant.channel.read(wait=False)
        if messages is None:
            self._disconnect(participant)
            return
        for message in messages:
            match message.pop("event"):
                case "say":
                    self._tell({"event": "say", "who": participant.name, "text": message["text"]})
                case "start servers" if self._failure is None:
                    self._start_servers(**message)
                case "result":
                    participant.result, participant.returned = message["value"], True
                case "failed":
                    self._fail(Failure(participant.name, **message))

    def _disconnect(self, participant: Participant) -> None:
        if participant.connected:
            participant.connected = False
            self._around.selector.unregister(participant.channel)
            participant.channel.close()

    def look(self) -> None:
        """Some child has ended, or has been stopped or continued."""
        for participant in list(self._participants.values()):
            if participant.look():
                self._ended_at = time.monotonic()
                self._on_exit(participant)

    def _on_exit(self, participant: Participant) -> None:
        while participant.connected and participant.channel.has_more():
            self._on_message(participant)  # its last words came before its end
        participant.kill_group()
        asked = self._ending is not None and participant.killed_by == signal.SIGTERM
        why = participant.why_ended(self._phase(participant), self._steps(participant.id))
        if why and not asked:
            self._fail(Failure(participant.name, f"{participant.name} {why}"))

    def _phase(self, participant: Participant) -> Phase:
        return Phase.STARTING if self._watch is None else self._watch.phase(participant.id)

    def _steps(self, id: int) -> int:
        return self._watch.status(id).steps if self._watch else 0

    def tick(self) -> None:
        """Every now and then."""
        self._vouch()
        self._check_all_came()
        for participant in self._participants.values():
            for rows in participant.output.values():
                rows.settle()
        self._tell_progress()
        if self._ending is not None:
            self._ask_to_end(self._ending)

    def _vouch(self) -> None:
        """Who loads data for an hour before it joins is alive. A process that a signal has stopped is silent."""
        for participant in self._participants.values():
            alive = participant.status is None and not participant.stopped
            if alive and self._watch is not None and self._phase(participant) == Phase.STARTING:
                self._watch.vouch(participant.id)

    def _check_all_came(self) -> None:
        """Somebody may have ended well before it joined, and the others have joined and wait for it."""
        everybody = self._participants.values()
        if all(
            self._phase(participant) < Phase.JOINED for participant in everybody if participant.status is None
        ):
            return
        for participant in everybody:
            if participant.status == 0 and self._phase(participant) == Phase.STARTING:
                self._fail(Failure(participant.name, ended_before_join(participant.name)))

    def _tell_progress(self) -> None:
        steps = [self._steps(worker) for worker in self._job.here]
        if steps != self._steps_told:
            self._steps_told = steps
            self._tell({"event": "progress", "steps": steps})
        first = self._participants.get(0)
        bars = [bar for rows in first.output.values() for bar in rows.bars()] if first else []
        if bars != self._bars_told:  # the others' would be the same
            self._bars_told = bars
            self._tell({"event": "bars", "who": "worker 0", "bars": bars})

    # Ending

    def stop(self, why: str) -> None:
        self._fail(Failure("the run", why))
        self.kill_all()

    def end_soon(self, why: str, grace_s: float) -> None:
        """Ask all workers to finish their step and leave; kill those that have not left after `grace_s`."""
        if self._ending is None:
            self._ending = _Ending(why, grace_s, time.monotonic() + grace_s)
            how = (
                "every worker finishes its step and leaves"
                if self._trains()
                else "the workers are told to end"
            )
            words = f"{why}: {how}; those that still run after {grace_s:g} s are killed"
            self._tell({"event": "say", "who": "the run", "text": words})
            self._ask_to_end(self._ending)

    def _workers(self) -> list[Participant]:
        return [self._participants[id] for id in self._job.here if id in self._participants]

    def _trains(self) -> bool:
        """Whether the workers have met; from then on each knows how to leave the others."""
        workers = self._workers()
        return self._job.workers > 1 and all(self._phase(worker) >= Phase.READY for worker in workers)

    def _ask_to_end(self, ending: _Ending) -> None:
        """Servers end by themselves when all workers have left."""
        trains = self._trains()
        for worker in self._workers():
            worker.ask_to_end(trains=trains)
        if time.monotonic() >= ending.at_s and not self._overdue:
            self._overdue = [p.name for p in self._participants.values() if p.status is None]
            self.kill_all()

    def _fail(self, failure: Failure) -> None:
        """The first failure ends the run; what follows from it is not news."""
        if self._failure is None and not self._overdue:
            self._failure = failure
            if self._ending is None:
                self.kill_all()

    def kill_all(self) -> None:
        for participant in self._participants.values():
            participant.kill()

    def is_over(self, *, congested: bool) -> bool:
        """Whether all have ended, and what they wrote has been read."""
        if any(p.status is None for p in self._participants.values()):
            return False
        last_words = congested or time.monotonic() < self._ended_at + _LAST_WORDS_S
        return not (last_words and any(p.output for p in self._participants.values()))

    def finish(self) -> Outcome:
        for participant in self._participants.values():
            self._disconnect(participant)
            for reader in list(participant.output):  # held by something that outlived its group
                self._end_output(participant, reader)
        self._tell_progress()
        for fd in self._arenas:
            os.close(fd)
        failure = self._failure or self._stopped()
        if failure is not None:
            return Outcome(failure=failure)
        results = [self._participants[id].result for id in sorted(self._participants)]
        return Outcome(results[: len(self._job.here)], None, results[len(self._job.here) :])

    def _stopped(self) -> Failure | None:
        if self._ending is None:
            return None
        words = f"the run was stopped by {self._ending.why}; all workers have ended"
        if self._overdue:
            late = ", ".join(self._overdue)
            words += f". Not within {self._ending.grace_s:g} s, and therefore killed: {late}"
        return Failure("the run", words)

    def close(self) -> None:
        """In a participant: what is the host's own."""
        for participant in self._participants.values():
            if participant.connected:
                participant.channel.close()
            for reader in participant.output:
                os.close(reader)
