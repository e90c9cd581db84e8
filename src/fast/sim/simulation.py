"""The simulation: participants, their lives, and the loop that lets the events happen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from fast.core import Letter, Me, Replica, Strategy, end_turn, serve_turn, start, step_turn
from fast.core.buckets import bucket_cuts, ended_too_early, ready_shares
from fast.errors import Deadlock, FastError, UsageError
from fast.runtime import seed_gradient
from fast.sim import checkpoint
from fast.sim.compute import ComputeModel
from fast.sim.events import Events
from fast.sim.inbox import Inbox
from fast.sim.network import Network
from fast.sim.participant import Participant, SimWorker
from fast.sim.post import Post
from fast.sim.programs import Program
from fast.sim.rounds import Rounds
from fast.sim.world import SimWorld, Surroundings
from fast.trace import Dropped, Observer
from fast.view import View

_NO_BATCH = object()
FORWARD_SHARE = 1 / 3
"""Of a step's computing: backward makes about twice as many multiplications as forward."""


@dataclass(frozen=True)
class Until:
    """How far a run goes, and who is told about its steps."""

    stop: Callable[[Simulation], bool] | None = None
    on_step: Callable[[Me, int], None] | None = None
    pause_after: int | None = None

    def paused(self, steps: int) -> bool:
        return self.pause_after is not None and steps >= self.pause_after


@final
class Simulation:
    """One strategy on simulated workers: the same programs as in the real world, in virtual time.

    Workers have the ids 0 to P-1, servers follow. A worker's life is: take a batch, let the time
    of the computation pass, compute the real gradient, take the strategy's turn. It leaves when
    its batches end or when `stop` says so. Same arguments and same seed: same trace.
    """

    def __init__(
        self,
        strategy: Strategy,
        workers: Sequence[SimWorker],
        *,
        server_replicas: Sequence[Replica] = (),
        network: Network,
        compute: ComputeModel,
        seed: int = 0,
        observers: Sequence[Observer] = (),
        seed_torch: bool = True,
    ) -> None:
        size = len(workers)
        _check(strategy, size, len(server_replicas))
        view = View(0, tuple(range(size)), tuple(range(size, size + len(server_replicas))))
        self.strategy, self.seed, self.total_samples = strategy, seed, 0
        self._compute, self._seed_torch = compute, seed_torch
        self._events = Events()
        inboxes = {who: Inbox(self._events, strategy.tags) for who in (*view.workers, *view.servers)}
        self._post = Post(self._events, network, inboxes)
        self._rounds = Rounds(self._events, network, self._post.departures)
        around = Surroundings(view, seed, self._events, self._post, self._rounds, tuple(observers), {})
        replicas = [*(worker.replica for worker in workers), *server_replicas]
        makers = [*workers, *(None for _ in server_replicas)]
        self.participants = tuple(
            _participant(SimWorld(who, around, inbox), replicas[who], strategy, makers[who])
            for who, inbox in inboxes.items()
        )
        self.workers, self.servers = self.participants[:size], self.participants[size:]
        self._busy = self._ended = False

    # What can be seen from outside

    @property
    def now_ns(self) -> int:
        return self._events.now_ns

    def me(self, who: int) -> Me:
        return self.participants[who].me

    def on_the_way(self) -> Iterator[tuple[int, Letter]]:
        """Letters that have not arrived yet, with their receivers; for checkers."""
        return self._post.on_the_way()

    def unread(self, who: int) -> list[Letter]:
        """Letters that have arrived at this participant and wait to be read; for checkers."""
        return self.participants[who].world.inbox.mailbox.letters()

    # Running

    def run(
        self,
        *,
        stop: Callable[[Simulation], bool] | None = None,
        on_step: Callable[[Me, int], None] | None = None,
        pause_after: int | None = None,
        after_event: Callable[[Simulation], None] | None = None,
    ) -> None:
        """Until every worker has left, or (`pause_after`) until each has done that many steps.

        `stop` is asked at every step boundary; the worker that hears True leaves. `after_event`
        is called after every event, for checkers. After a pause all letters have arrived and
        nobody is inside a turn: then `checkpoint` may be taken, and `run` goes on.
        """
        self._check_idle()
        until = Until(stop, on_step, pause_after)
        lives = [(p, self._life(p, until)) for p in self.participants if not p.left and not self._ended]
        self._play(lives, after_event)
        if not self._ended and all(p.left for p in self.workers):
            self._ended = True
            self._play([(p, end_turn(p.me)) for p in self.workers], after_event)
            self._report_unread()

    def _play(
        self,
        lives: Sequence[tuple[Participant, Coroutine[Any, Any, None]]],
        after_event: Callable[[Simulation], None] | None,
    ) -> None:
        programs = [Program(p.me.id, life) for p, life in lives]
        for program in programs:
            self._events.soon(program.resume)
        self._busy = True
        try:
            while self._events:
                self._events.run_next()
                if after_event is not None:
                    after_event(self)
            self._give_up_idle_turns(programs)
        finally:
            for program in programs:
                program.close()
        self._busy = False

    def _give_up_idle_turns(self, programs: Sequence[Program]) -> None:
        """Nothing happens any more. A server that waits for work may; everybody else is stuck."""
        waiting = [program for program in programs if not program.finished]
        stuck = [p for p in waiting if self._is_stuck(self.participants[p.who])]
        if stuck:
            raise _deadlock([(self.participants[p.who], p) for p in stuck], self.workers)
        for program in waiting:
            self.participants[program.who].world.inbox.waiting = None

    def _is_stuck(self, participant: Participant) -> bool:
        return participant.worker is not None or participant.world.touched

    # Lives

    async def _life(self, p: Participant, until: Until) -> None:
        if not p.started:
            p.started = True
            await start(p.me)
        p.me.account.begin()
        if p.worker is None:
            await self._serve(p)
        else:
            await self._train(p, p.worker, until)

    async def _train(self, p: Participant, worker: SimWorker, until: Until) -> None:
        me = p.me
        while not until.paused(me.steps):
            if until.stop is not None and until.stop(self):
                return self._leave(p)
            batch = next(worker.batches, _NO_BATCH)
            if batch is _NO_BATCH:
                return self._leave(p)
            p.batches_taken += 1
            await self._until_first_bucket(p)
            # Only this worker's own turns change its weights, so they are still those of the start.
            if self._seed_torch:
                seed_gradient(self.seed, me.id, me.steps)
            worker.compute(batch)
            await step_turn(me)
            self._check_all_computed(p)
            me.account.turned()
            self.total_samples += me.samples
            if until.on_step is not None:
                until.on_step(me, self.now_ns)

    async def _until_first_bucket(self, p: Participant) -> None:
        """Let the time pass until this step's turn can begin: when the first bucket of the gradient
        is ready, or all of it where there is only one."""
        me, now_ns = p.me, self.now_ns
        duration_ns = self._compute.duration_ns(me.id, len(self.workers), me.steps, self.seed)
        if len(p.ready_shares) == 1:
            await p.world.compute(duration_ns)
            me.account.computed()
            return
        p.world.ready_ns = [now_ns + round(duration_ns * share) for share in p.ready_shares]
        await p.world.compute(p.world.ready_ns[0] - now_ns)

    def _check_all_computed(self, p: Participant) -> None:
        if p.world.ready_ns:
            raise ended_too_early(self.strategy)

    def _leave(self, p: Participant) -> None:
        p.left = True
        self._post.leave(p.me.id, p.me.steps)
        self._rounds.leave(p.me.id)

    async def _serve(self, p: Participant) -> None:
        """Turn after turn, as long as anything can still come. A turn that found nothing to do
        is not repeated before something has happened: virtual time would stand still."""
        found_nothing = False
        while not (found_nothing and self._is_over(p)):
            if found_nothing:
                await p.world.wait_for_news()
            p.world.touched, before = False, p.world.suspensions
            await serve_turn(p.me)
            p.me.account.turned()
            found_nothing = not p.world.touched and p.world.suspensions == before
        p.world.touched = False

    def _is_over(self, p: Participant) -> bool:
        return all(worker.left for worker in self.workers) and not self._post.expects(p.me.id)

    def _report_unread(self) -> None:
        for p in self.participants:
            if p.world.observed:
                for letter in self.unread(p.me.id):
                    p.world.emit(
                        Dropped(p.me.id, self.now_ns, letter.sender, p.me.id, letter.tag, "unread at the end")
                    )

    # Save and resume

    def checkpoint(self) -> dict[str, Any]:
        """Everything that the future depends on, as of a pause."""
        self._check_idle()
        if self.strategy.racy:
            raise UsageError(
                f"{self.strategy!r} reads peers' memory as it is, which can't be saved: no checkpoint can be taken"
            )
        return {
            "now_ns": self.now_ns,
            "total_samples": self.total_samples,
            "departures": dict(self._post.departures),
            "left_ns": dict(self._post.left_ns),
            "participants": [checkpoint.save(p) for p in self.participants],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint, in a simulation that was built like the saved one and hasn't run."""
        self._check_idle()
        if any(p.started for p in self.participants):
            raise UsageError("restore() needs a simulation that hasn't run yet; build a new one")
        if len(saved["participants"]) != len(self.participants):
            raise UsageError(
                f"the checkpoint has {len(saved['participants'])} participants and this simulation "
                f"{len(self.participants)}. Build it with the same strategy and number of workers."
            )
        self._events.now_ns, self.total_samples = saved["now_ns"], saved["total_samples"]
        self._post.departures.update(saved["departures"])
        self._post.left_ns.update(saved["left_ns"])
        for participant, state in zip(self.participants, saved["participants"], strict=True):
            checkpoint.load(participant, state)

    def _check_idle(self) -> None:
        if self._busy:
            raise FastError(
                "this simulation is under way or ended in an error. Pause it with run(pause_after=...), "
                "or build a new one."
            )


def _check(strategy: Strategy, workers: int, servers: int) -> None:
    if workers < 1:
        raise UsageError("a simulation without workers; give at least one")
    if strategy.topology is not None:
        strategy.topology.check(workers)
    needed = strategy.servers(workers)
    if servers != needed:
        raise UsageError(
            f"{strategy!r} on {workers} workers needs {needed} server replicas and got {servers}. "
            "Give one for each server, each with a copy of worker 0's weights."
        )


def _participant(
    world: SimWorld, replica: Replica, strategy: Strategy, worker: SimWorker | None
) -> Participant:
    me = Me(world, replica, strategy)
    world.inbox.layout = replica.layout
    world.gradient_computed = me.account.computed
    shares = ready_shares(replica.layout, bucket_cuts(replica.layout, strategy.bucket_bytes), FORWARD_SHARE)
    return Participant(me, world, worker, shares)


def _deadlock(stuck: Sequence[tuple[Participant, Program]], workers: Sequence[Participant]) -> Deadlock:
    lines = [f"  {p.name} (step {p.me.steps}) waits for {_request(program)}" for p, program in stuck]
    free = [str(p.me.id) for p in workers if p.me.id not in {s.me.id for s, _ in stuck}]
    others = f"\nworkers {', '.join(free)} have left or paused." if free else ""
    return Deadlock(
        "nothing can happen any more, and somebody still waits:\n"
        + "\n".join(lines)
        + others
        + "\nEvery letter that is waited for must be sent to the one who waits, under the same tag, and all "
        "members of a mean must come to it.",
        peers=[p.me.id for p, _ in stuck],
    )


def _request(program: Program) -> str:
    return program.waits_for.describe() if program.waits_for is not None else "nothing"
