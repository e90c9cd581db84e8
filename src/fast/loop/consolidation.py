"""`fast.consolidate` and `fast.snapshot`: one model out of many replicas, at the end and on the way there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fast.engine import Seat, current_seat
from fast.errors import UsageError
from fast.loop.policies import Ema, Policy, check_policy, policy_from
from fast.loop.reestimating import reestimate
from fast.loop.remarks import is_finite, not_finite
from fast.loop.representing import Model, plain_copy, represent
from fast.loop.session import Session, session_of
from fast.runtime.gathering import Replicas


def consolidate(
    model: Model, policy: str | Policy = "average", *, batches: Iterable[Any] | None = None
) -> Model:
    """The representative model, in memory of its own, the same on every worker.

    It waits for all who trained. By default weights are the mean of the replicas (or the server's, where a
    server owns them); floating-point buffers are averaged, counters take the largest value. Other policies are in
    `fast.policies`. All workers ask for the same, as often as they like.

    The running statistics of BatchNorm don't fit the mean of several models. With `batches` (this worker's own,
    such as `fast.shard(loader)`) they are estimated anew, from everybody's batches together. A batch is
    what the model takes, or a tuple that begins with it.

    Afterwards this worker has left the training; the model that was joined stays as it was.
    """
    seat = current_seat()
    session, chosen = _asked(seat, model, policy, "fast.consolidate")
    if session.runtime is None:
        return _alone(model, session, chosen, batches)
    final = _represent(model, session, session.runtime.final_replicas(), chosen, batches)
    if session.remarks is not None:
        session.remarks.ended(consolidated=True)
    return final


def snapshot(
    model: Model, policy: str | Policy = "average", *, batches: Iterable[Any] | None = None
) -> Model:
    """As `fast.consolidate`, but in the middle: the training goes on afterwards as if nothing had been.

    In lock-step without servers all who are still in call it after the same number of steps, wait there for each
    other, and get the same. Who has left already has no part in it.

    With servers, or where nobody waits for anybody, each worker calls it when it likes, alone: it looks at the servers'
    weights, or at all replicas, as they are in that moment. The others are at steps of their own, perhaps in the
    middle of one, so no two calls give the same. Buffers and `batches` are this worker's own.
    """
    seat = current_seat()
    session, chosen = _asked(seat, model, policy, "fast.snapshot")
    runtime = session.runtime
    with _undisturbed(seat, session):
        if runtime is None:
            return _alone(model, session, chosen, batches)
        if runtime.finished:
            raise UsageError(
                "fast.snapshot was called after fast.consolidate: this worker has left the training. Call "
                "fast.consolidate once more; it gives the same as often as you like."
            )
        together = runtime.strategy.synchronous and not runtime.me.servers
        replicas = runtime.present_replicas() if together else runtime.live_replicas()
        return _represent(model, session, replicas, chosen, batches)


def _asked(seat: Seat, model: nn.Module, policy: str | Policy, caller: str) -> tuple[Session, Policy]:
    session = session_of(seat, model)
    if session is None:
        raise UsageError(
            f"{caller} got a model that was not joined here. Give it the model that fast.join returned."
        )
    chosen = policy_from(policy)
    check_policy(chosen, seat.workers, has_ema=session.moving is not None)
    return session, chosen


def _represent(
    model: Model, session: Session, replicas: Replicas, policy: Policy, batches: Iterable[Any] | None
) -> Model:
    made = represent(model, replicas, policy, batches, session.moving_average, session.say)
    if session.remarks is not None:
        session.remarks.represented(replicas, policy, reestimated=batches is not None)
    return made


def _alone(model: Model, session: Session, policy: Policy, batches: Iterable[Any] | None) -> Model:
    """With one worker every policy means its replica, or the moving average of it."""
    final = plain_copy(model)
    average = session.moving_average
    if isinstance(policy, Ema) and average is not None:
        _fill(final, average)
    if batches is not None:
        reestimate(final, batches, lambda mine: {0: mine})
    if not all(is_finite(parameter) for parameter in final.parameters()):
        session.say(not_finite("the weights hold NaN or infinity"))
    return final


@torch.no_grad()
def _fill(model: nn.Module, flat: Tensor) -> None:
    at = 0
    for parameter in model.parameters():
        parameter.copy_(flat[at : at + parameter.numel()].view(parameter.shape))
        at += parameter.numel()


@contextmanager
def _undisturbed(seat: Seat, session: Session) -> Iterator[None]:
    """What is drawn and counted inside changes nothing outside: the training goes on as without it."""
    epochs = dict(seat.epochs)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    orders = nullcontext() if session.orders is None else session.orders.put_back()
    with torch.random.fork_rng(devices=list(devices)), orders:
        yield
    seat.epochs.clear()
    seat.epochs.update(epochs)
