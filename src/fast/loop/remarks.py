"""What ends without an error and is still not what was meant: each is said once, in one line.

A line that is true of all workers comes from worker 0. One that is true of a single worker comes from that worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fast.adapters.parameters import plain_name
from fast.errors import PeerError
from fast.loop.policies import Average, Ema, Policy
from fast.loop.reestimating import layers_of
from fast.loop.schedules import Schedules
from fast.runtime import WorkerRuntime
from fast.runtime.gathering import Replicas
from fast.strategies.calls import short_call
from fast.strategies.decentral.local import OneShot
from fast.transport import Phase

_LOOK_EVERY = 100
_NAP_S = 0.1
_EXCHANGED = "exchanged"
"""What a worker publishes when it has exchanged something for the first time."""
_FEW = 2
"""Samples of a worker in a step that are few, if its batch is several times as large."""
_PERIODS = ("interval", "tau")
"""What strategies call the number of steps between two exchanges."""


@final
class Remarks:
    """One worker's."""

    def __init__(
        self, runtime: WorkerRuntime, model: nn.Module, optimizer: Optimizer, say: Callable[[str], None]
    ) -> None:
        self._runtime, self._model, self._say = runtime, model, say
        self._workers = runtime.world.start_view.workers
        self._main = runtime.me.id == self._workers[0]
        self._said: set[str] = set()
        self._finite_until = 0
        self._schedules = Schedules(optimizer, len(self._workers))
        self._over = self._shown = False

    def _once(self, what: str, line: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(line)

    # On the way

    def pass_begins(self, data: object, lengths: tuple[int, int], rest: int, batch: int) -> None:
        """A pass of `fast.shard` over these data: `lengths` of the loader and of its shard; all workers together have
        `rest` samples in its last step, 0 if that is full."""
        if not self._main or len(self._workers) == 1:
            return
        self._schedules.pass_begins(data, *lengths)
        least, most = rest // len(self._workers), -(-rest // len(self._workers))
        if 0 < most <= _FEW and 2 * most < batch:
            each = f"{least} to {most} samples" if least < most else f"{most} sample{'s' * (most > 1)}"
            self._once(
                "short step",
                f"the last step of each epoch has {each} per worker, and the others have {batch}: a full step of the "
                "optimizer on a gradient of few samples. DataLoader(..., drop_last=True) or another batch_size avoids "
                "it.",
            )

    def stepped(self) -> None:
        """A step has been taken."""
        steps, world = self._runtime.me.steps, self._runtime.world
        if world.exchanged and not self._shown:
            self._shown = True
            world.transport.publish(_EXCHANGED, torch.ones(1))
        if steps % _LOOK_EVERY == 0 or steps & (steps - 1) == 0:
            self._look(steps)
        if self._main and len(self._workers) > 1 and self._runtime.strategy.synchronous:
            # Others than those in lock-step would get ahead of this worker while it searches.
            self._tell_schedule(self._schedules.stepped(steps))

    def _look(self, steps: int) -> None:
        """Are the weights still numbers? Rarely enough to cost nothing, and first after 1, 2, 4, 8, ... steps."""
        agree = self._runtime.strategy.replicas_agree
        if "not finite" in self._said or (agree and not self._main):
            return
        if is_finite(self._runtime.replica.weights):
            self._finite_until = steps
            return
        whose = "the weights hold" if agree else f"the weights of worker {self._runtime.me.id} hold"
        before = f"after step {self._finite_until}" if self._finite_until else "before the first step"
        self._once(
            "not finite", not_finite(f"{whose} NaN or infinity after step {steps}", f", and {before} not yet")
        )

    def _tell_schedule(self, line: str | None) -> None:
        if line is not None:
            self._once("schedule", line)

    # At the end

    def ended(self, *, consolidated: bool = False) -> None:
        """This worker has taken its last step, and the others know it."""
        if self._over:
            return
        self._over = True
        steps = self._runtime.me.steps
        if steps:
            self._look(steps)
        if len(self._workers) == 1:
            return
        if not steps:
            self._idle()
        elif self._main:
            self._silent(steps, consolidated=consolidated)
            self._tell_schedule(self._schedules.ended(steps))

    def _idle(self) -> None:
        """If no worker has taken a step (a finished training that is resumed, say), there was nothing to do."""
        stepped = False
        with suppress(PeerError):  # whoever fails says so itself; a warning never ends a run
            stepped = self._anybody_stepped()
        if stepped:
            me = self._runtime.me.id
            self._once(
                "idle",
                f"worker {me} has taken no step, and others have: no batch of worker {me} went into the model. "
                "Every worker has to call optimizer.step() of the optimizer that fast.join returned, for each batch "
                "of its own.",
            )

    def _anybody_stepped(self) -> bool:
        """Wait until another worker takes a step, or all have ended. Nobody waits for this one meanwhile."""
        world, others = self._runtime.world, [peer for peer in self._workers if peer != self._runtime.me.id]
        transport = world.transport
        with world.patience:
            while True:
                token = transport.listen()
                training = tuple(peer for peer in others if transport.phase(peer) < Phase.DONE)
                if any(transport.status(peer).steps for peer in others):
                    return True
                if not training:
                    return False
                world.pump()
                transport.sleep(token, _NAP_S)
                world.patience.check(training, "first step")

    def _silent(self, steps: int, *, consolidated: bool) -> None:
        strategy = self._runtime.strategy
        name = next((each for each in _PERIODS if isinstance(getattr(strategy, each, None), int)), "")
        period = getattr(strategy, name) if name else 0
        why = f": its {name} is {period} steps" if period > steps else ""
        meant = consolidated and isinstance(strategy, OneShot)
        # The end of the others is known where they are waited for, or go in lock-step.
        if meant or self._exchanged() or not (consolidated or strategy.synchronous or why):
            return
        call = short_call(strategy.call) if strategy.call else repr(strategy)
        advice = (
            f"Take a smaller {name}, or train longer" if why else "Train longer, or take another strategy"
        )
        self._once(
            "silent",
            f"{steps} step{'s were' if steps > 1 else ' was'} taken, and {call} has never exchanged anything between "
            f"the workers{why}. Each has trained alone on its part of the data. {advice}.",
        )

    def _exchanged(self) -> bool:
        """Whether any worker has had anything to do with another one."""
        world = self._runtime.world
        shown = (world.transport.peek(peer, _EXCHANGED) for peer in self._workers)
        return world.exchanged or any(each is not None for each in shown)

    def represented(self, replicas: Replicas, policy: Policy, *, reestimated: bool) -> None:
        """One model has been made of these replicas."""
        if not self._main or reestimated or not isinstance(policy, Average | Ema):
            return
        if _statistics_differ(self._model, replicas):
            self._once(
                "BatchNorm",
                "the model has BatchNorm, and its running statistics differ between workers: their mean fits no model "
                "well. fast.consolidate(model, batches=fast.shard(loader)) estimates them anew, and "
                "fast.SyncBatchNorm keeps them alike.",
            )


def is_finite(weights: Tensor) -> bool:
    return bool(torch.isfinite(weights).all())


def not_finite(found: str, when: str = "") -> str:
    return (
        f"{found}{when}. Try a lower learning rate, or clip gradients in before_apply. "
        "fast.join(..., check_finite=True) ends the run before such a gradient is applied, and names the parameter."
    )


def _statistics_differ(model: nn.Module, replicas: Replicas) -> bool:
    layers = set(map(id, layers_of(model)))
    owned = {
        f"{plain_name(name)}.{kind}"
        for name, module in model.named_modules()
        if id(module) in layers
        for kind in ("running_mean", "running_var")
    }
    shown = [
        [value for name, value in replicas.named(replicas.buffers(worker)) if name in owned]
        for worker in (replicas.workers if owned else ())
    ]
    return any(not torch.equal(a, b) for other in shown[1:] for a, b in zip(shown[0], other, strict=True))
