"""A worker's training, from join to the end, driven by the user's own loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from fast.core import Me, Replica, Strategy, drive, end_turn, start, step_turn
from fast.core.buckets import BUCKET_LIMIT, ended_too_early
from fast.core.seeds import gradient_seed
from fast.core.turns import foreign_request
from fast.errors import UsageError
from fast.parts.kernels.amending import prepare
from fast.runtime.company import Company
from fast.runtime.gathering import (
    FINAL,
    FINAL_BUFFERS,
    FINAL_MOVING,
    LIVE,
    LIVE_MOVING,
    FinalReplicas,
    LiveReplicas,
    PresentReplicas,
)
from fast.runtime.journal import Done, Journal
from fast.runtime.moving import MovingAverage, wide
from fast.runtime.patience import TOGETHER
from fast.runtime.rendezvous import Hello, await_phase, meet, pack
from fast.runtime.world import Backward, RealWorld
from fast.trace import Observer
from fast.transport import Phase, Transport
from fast.view import View


class Stopped(SystemExit):
    """This worker was told to stop and has left; its process ends well."""


class LoopReplica(Replica, Protocol):
    """A replica whose gradient the user's own loop computes."""

    def collect(self) -> None:
        """Bring this step's gradient into the flat tensor."""

    def settle(self) -> None:
        """Bring the flat weights back into the model."""

    def rest(self) -> list[tuple[str, Tensor]]:
        """What is copied at the start only: buffers, frozen parameters."""

    def buffers(self) -> list[tuple[str, Tensor]]: ...

    def optimizer_spec(self) -> dict[str, Any]: ...


class WorkerRuntime:
    """One worker of the real world."""

    def __init__(
        self,
        transport: Transport,
        view: View,
        replica: LoopReplica,
        strategy: Strategy,
        *,
        seed: int = 0,
        deadline_s: float = 60.0,
        observers: Iterable[Observer] = (),
        say: Callable[[str], None] = lambda line: None,
        journal: Journal | None = None,
        moving: MovingAverage | None = None,
    ) -> None:
        self.replica, self.strategy, self.transport = replica, strategy, transport
        self.world = RealWorld(
            transport,
            view,
            strategy.tags,
            seed=seed,
            deadline_s=deadline_s,
            observers=observers,
            say=say,
            journal=journal,
            listens=strategy.listens,
        )
        self.me = Me(self.world, replica, strategy)
        self.samples = 0
        self._seed = seed
        self.moving = moving
        """The moving average of the weights, if one is kept."""
        self._turn: Coroutine[Any, Any, None] | None = None
        """This step's turn, if it has begun while backward was still running."""
        self._say, self._told_to_stop = say, False
        self._pauses = Company(self.world, "now", Phase.DONE, call=TOGETHER)
        self._after_all = Company(self.world, "end", Phase.LEFT)

    @property
    def finished(self) -> bool:
        return self.transport.phase(self.me.id) >= Phase.DONE

    def join(self) -> None:
        """Meet the others, take over worker 0's values, and be ready for the first step."""
        if self.world.journal is not None:
            self.world.journal.joined(self.strategy)
        if self.strategy.one_host:
            self._check_one_host()
            prepare(self.replica.weights.dtype)
        rest = self.replica.rest()
        served = bool(self.me.servers) and (self.strategy.servers_optimize or self.strategy.sharded)
        hello = Hello(
            strategy=repr(self.strategy),
            layout=self.replica.layout.describe(),
            rest=[(name, list(tensor.shape)) for name, tensor in rest],
            optimizer=self.replica.optimizer_spec() if served else None,
            groups=self.world.start_view.groups,
        )
        self._show_live()
        meet(self.world, hello, self.replica.weights, rest)
        self.replica.settle()
        drive(start(self.me))
        seed_gradient(self._seed, self.me.id, self.me.steps)
        self.me.account.begin()

    def _check_one_host(self) -> None:
        far = self.world.start_view.everybody - self.transport.shared_with - {self.me.id}
        if far:
            raise UsageError(
                f"{self.strategy!r} changes its peers' memory, and worker {self.me.id} shares none with participants "
                f"{sorted(far)}: they are on other hosts, or servers of their own. Start all workers with one "
                "`fast run`, or take a strategy that sends letters."
            )

    def _show_live(self) -> None:
        """Let the others look at what this worker has while it trains: it lies where they can read it anyway."""
        self.transport.window(LIVE, self.replica.weights)
        if self.moving is not None:
            like = wide(self.replica.weights)
            memory = self.transport.allocate(like.numel() * like.element_size()).view(like.dtype)
            self.moving.keep_in(self.transport.window(LIVE_MOVING, memory))

    def step(self) -> None:
        """The exchange, inside the user's `optimizer.step()`."""
        if self.finished:
            raise UsageError(
                "optimizer.step() was called after fast.consolidate: this worker has already left the "
                "training. Consolidate once, after the last step; for a model in between there is fast.snapshot."
            )
        if not self.strategy.computes_gradient:
            self.me.account.computed()
            self.replica.collect()
        self.world.buckets_ready = BUCKET_LIMIT
        drive(self._turn or step_turn(self.me))
        self._turn, self.world.buckets_ready = None, 0
        self.replica.settle()
        self.samples += self.replica.samples
        if self.moving is not None:
            self.moving.take(self.replica.weights)
        self.transport.set_progress(self.me.steps, self.samples)
        seed_gradient(self._seed, self.me.id, self.me.steps)
        if self.world.journal is not None:
            weights = lambda: self.replica.weights  # noqa: E731
            self.world.journal.stepped(Done(self.me.steps, self.replica.samples, self.me.view, weights))
        self.me.account.turned()
        if self._stops():
            self._stop()

    def bucket_ready(self, number: int) -> None:
        """Backward has computed this bucket: begin or go on with the step's turn, which comes back
        when it needs the next one."""
        if self.finished:
            return
        self.world.buckets_ready = number + 1
        if self._turn is None:
            self._turn = step_turn(self.me)
        try:
            request = self._turn.send(None)
        except StopIteration:
            raise ended_too_early(self.strategy) from None
        if not isinstance(request, Backward):
            raise foreign_request(request)

    # The end

    def leave(self) -> None:
        """This worker's loop has ended; the others go on without it. What they send it, it still receives."""
        if not self.finished:
            self._hand_over()
            self.transport.set_phase(Phase.DONE)

    def _hand_over(self) -> None:
        """Wait until everything has been sent; receivers make room as they read, and after their last step too."""
        if self._turn is not None:
            self._turn.close()
            self._turn = None
            raise UsageError(
                "the loop ended after a backward() without optimizer.step(), when parts of that gradient had already "
                "been sent: the other workers wait for the rest. Step after every backward, or leave bucket_mb out."
            )
        self.world.patience.begin()
        while full := self.world.unsent:
            token = self.transport.listen()
            self.world.pump()  # the others may be leaving too
            self.transport.sleep(token, 0.002)
            self.world.patience.check(full, "room for the last letters")
        self.world.patience.end()
        self.transport.set_progress(self.me.steps, self.samples)

    def tell_to_stop(self) -> None:
        """Somebody wants this worker to leave: when its step is done, or now if it has taken its last one."""
        self._told_to_stop = True
        if self.finished:
            if self.transport.phase(self.me.id) < Phase.SETTLED:
                self._stops()
            self._stop()

    def _stops(self) -> bool:
        """Whether it was told to; in a replay it is where it was then."""
        told, journal = self._told_to_stop, self.world.journal
        return told if journal is None else journal.stops(told)

    def _stop(self) -> None:
        if self.transport.phase(self.me.id) < Phase.SETTLED:
            self._say(f"worker {self.me.id} was told to stop and leaves after {self.me.steps} steps")
        self._go()
        raise Stopped(0)

    def settle(self) -> None:
        """After everybody's last step: include what has arrived since, and publish the result."""
        if self.transport.phase(self.me.id) < Phase.SETTLED:
            self.leave()
            if self._stops():
                self._stop()
            await_phase(self.world, self.world.start_view.workers, Phase.DONE, "last step")
            drive(end_turn(self.me))
            self.world.drop_unread()
            self.replica.settle()
            self._publish_final()
            self.transport.set_phase(Phase.SETTLED)

    def _publish_final(self) -> None:
        self.transport.publish(FINAL, self.replica.weights)
        self.transport.publish(FINAL_BUFFERS, pack([tensor for _, tensor in self.replica.buffers()]))
        if self.moving is not None:
            self.transport.publish(FINAL_MOVING, self.moving.of(self.replica.weights))

    def close(self) -> None:
        """The end of this process. If the strategy has an `end`, that comes first, after everybody's last step, whether
        this worker has consolidated or not."""
        if self.strategy.has_end:
            with suppress(Stopped):  # it may be told to stop while it waits for the others
                self.settle()
        self._go()

    def _go(self) -> None:
        """Leave at once, with the weights as they are. Nothing is received from here on."""
        phase = self.transport.phase(self.me.id)
        if phase == Phase.LEFT:
            return
        if phase < Phase.DONE:
            self._hand_over()
        if phase < Phase.SETTLED:
            self._publish_final()
        if self.world.journal is not None:
            self.world.journal.ended(self.me.steps, lambda: self.replica.weights)
        self.transport.set_phase(Phase.LEFT)
        if phase < Phase.SETTLED:
            self.world.drop_unread()
        self.world.close()

    # All replicas

    def final_replicas(self) -> FinalReplicas:
        """After this worker's last step, when everybody has taken its own."""
        self.settle()
        everybody = self.world.start_view
        await_phase(self.world, (*everybody.workers, *everybody.servers), Phase.SETTLED, "final weights")
        return FinalReplicas(self._after_all, self.replica, self.transport, everybody, self.strategy)

    def live_replicas(self) -> LiveReplicas:
        """At any time, whatever the others are doing."""
        if self.world.journal is not None:
            raise UsageError(
                f"fast.snapshot in a recorded run with {self.strategy!r}: it reads what the others have in this very "
                "moment, which no replay can show again. Run without --record, or leave it out."
            )
        return LiveReplicas(self.replica, self.transport, self.world.start_view, self.strategy)

    def present_replicas(self) -> PresentReplicas:
        """In a pause between two steps, which all who are still in make after the same step."""
        return PresentReplicas(self._pauses, self.replica)


def seed_gradient(seed: int, worker: int, step: int) -> None:
    """Dropout and the like depend on (seed, worker, step) only, in both worlds.

    What torch.manual_seed does, without its queue for devices that were never used: that queue
    grows for ever and costs more than a small gradient.
    """
    torch.default_generator.manual_seed(gradient_seed(seed, worker, step))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(gradient_seed(seed, worker, step))
