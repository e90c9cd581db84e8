"""The lives of participants: what a worker and a server do from their first turn to their last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fast.core import Me, serve_turn, start, step_turn
from fast.core.buckets import ended_too_early
from fast.core.world import Labour
from fast.errors import FastError
from fast.sim.arithmetic import counted
from fast.sim.cluster import Compute
from fast.sim.cores import Cores
from fast.sim.events import Action
from fast.sim.participant import Participant, SimWorker

if TYPE_CHECKING:
    from fast.sim.simulation import Simulation

_NO_BATCH = object()
_RESTLESS = 100_000
"""Turns of a server without a wait between them, after which there will be none."""


@dataclass(frozen=True)
class Until:
    """How far a run goes, and who is told about its steps."""

    stop: Callable[[Simulation], bool] | None = None
    on_step: Callable[[Me, int], None] | None = None
    pause_after: int | None = None

    def paused(self, steps: int) -> bool:
        return self.pause_after is not None and steps >= self.pause_after


@final
class Lives:
    """Of all participants of one simulation."""

    def __init__(self, simulation: Simulation, cores: Cores | None) -> None:
        self.total_samples = 0
        self._simulation = simulation
        self._compute = simulation.cluster.compute
        self._cores = cores
        self._work_takes_time = not simulation.cluster.work.free
        self._at_step: dict[tuple[int, int], list[Action]] = {}

    def at_step(self, worker: int, step: int, action: Action) -> None:
        self._at_step.setdefault((worker, step), []).append(action)

    async def life(self, p: Participant, until: Until) -> None:
        if not p.started:
            p.started = True
            await start(p.me)
        p.me.account.begin()
        if p.worker is None:
            await self._serve(p)
        else:
            await self._train(p, p.worker, until)

    async def _train(self, p: Participant, worker: SimWorker, until: Until) -> None:
        simulation, me = self._simulation, p.me
        while not until.paused(me.steps):
            if p.leaving or (until.stop is not None and until.stop(simulation)):
                return simulation.leave(p)
            batch = next(worker.batches, _NO_BATCH)
            if batch is _NO_BATCH:
                return simulation.leave(p)
            p.batches_taken += 1
            # Only this worker's own turns change its weights: until its gradient is needed they stay the same.
            simulation.gradients.begin(me.id, me.steps, batch)
            if self._cores is None and len(p.ready_shares) == 1:
                await self._spend(p, self._duration_ns(p))
                me.account.computed()
            else:
                await self._until_first_bucket(p)
            simulation.gradients.finish(me.id)
            turn, arithmetic = step_turn(me), p.world.effort.arithmetic
            await (turn if arithmetic is None else counted(turn, arithmetic))
            if p.world.ready_ns:
                raise ended_too_early(simulation.strategy)
            if self._work_takes_time:
                p.world.worked(Labour.TURN, 0)
                await p.world.catch_up()
            me.account.turned()
            self.total_samples += me.samples
            if until.on_step is not None:
                until.on_step(me, simulation.now_ns)
            if self._at_step:
                await self._happen(p)

    async def _happen(self, p: Participant) -> None:
        """What was to happen when this worker has done so many steps comes before it goes on."""
        actions = self._at_step.pop((p.me.id, p.me.steps), ())
        for action in actions:
            self._simulation.events.soon(action)
        if actions:
            await p.world.compute(0)

    async def _until_first_bucket(self, p: Participant) -> None:
        """Let the time pass until this step's turn can begin: when the first bucket of the gradient
        is ready, or all of it where there is only one."""
        simulation, me = self._simulation, p.me
        if len(p.ready_shares) == 1:
            await self._compute_on_cores(p)
            me.account.computed()
            return
        duration_ns = self._duration_ns(p)
        now_ns = simulation.now_ns
        p.world.ready_ns = [now_ns + round(duration_ns * share) for share in p.ready_shares]
        await p.world.compute(p.world.ready_ns[0] - now_ns)

    def _duration_ns(self, p: Participant) -> int:
        simulation, compute, me = self._simulation, self._compute, p.me
        who, workers, seed = me.id, len(simulation.workers), simulation.seed
        if self._cores is None or not isinstance(compute, Compute):
            return compute.duration_ns(who, workers, me.steps, seed)
        computed_ns = round(compute.computing_ns(who, me.steps, seed) * self._cores.crowd(who))
        return computed_ns + max(0, compute.resting_ns(who, workers, me.steps, seed, computed_ns))

    async def _compute_on_cores(self, p: Participant) -> None:
        """In turns with the others of this host; what a step sleeps takes no core."""
        simulation, compute, me = self._simulation, self._compute, p.me
        who, workers, seed = me.id, len(simulation.workers), simulation.seed
        if not isinstance(compute, Compute):
            await p.world.occupy(compute.duration_ns(who, workers, me.steps, seed))
            return
        await p.world.take_core()
        began_ns = simulation.now_ns
        await p.world.occupy(p.world.effort.while_cold(compute.computing_ns(who, me.steps, seed)))
        computed_ns = simulation.now_ns - began_ns
        rest_ns = compute.resting_ns(who, workers, me.steps, seed, computed_ns)
        if rest_ns > 0:
            began_ns = simulation.now_ns
            await self._spend(p, rest_ns)
            p.world.effort.slept(simulation.now_ns - began_ns)
            await p.world.wake()

    def _spend(self, p: Participant, duration_ns: int) -> Awaitable[None]:
        """Let the time of a gradient pass, unless its step is overtaken before."""
        tag = self._simulation.strategy.overtaken_by
        return p.world.compute_unless(duration_ns, tag) if tag else p.world.compute(duration_ns)

    async def _serve(self, p: Participant) -> None:
        """Turn after turn, as long as anything can still come. A turn that found nothing to do
        is not repeated before something has happened: virtual time would stand still."""
        found_nothing, restless = False, 0
        while not (found_nothing and self._is_over(p)):
            if found_nothing:
                await p.world.wait_for_news()
            p.world.touched, before = False, p.world.suspensions
            turn, arithmetic = serve_turn(p.me), p.world.effort.arithmetic
            await (turn if arithmetic is None else counted(turn, arithmetic))
            waited = p.world.suspensions != before
            found_nothing, restless = not p.world.touched and not waited, 0 if waited else restless + 1
            if restless > _RESTLESS:
                raise FastError(
                    f"{p.name} took {restless} turns one after another without waiting for anything, so virtual time "
                    "stands still. In `serve`, await something: me.news(tag) waits for letters."
                )
            if not found_nothing:
                p.world.worked(Labour.TURN, 0)
                await p.world.catch_up()
            p.me.account.turned()
        p.world.touched = False

    def _is_over(self, p: Participant) -> bool:
        somebody = any(worker.alive for worker in self._simulation.workers)
        return not somebody and not self._simulation.post.expects(p.me.id)
