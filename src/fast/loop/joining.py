"""`fast.join`: two changed lines, and the loop stays the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn

from fast.adapters import TorchReplica
from fast.core import Strategy
from fast.core.buckets import bucket_cuts
from fast.engine import Seat, current_seat
from fast.errors import NotFinite, UsageError
from fast.loop.loading import strategy_from
from fast.loop.session import Session
from fast.runtime import WorkerRuntime, seed_gradient
from fast.runtime.journal import Done
from fast.strategies.calls import short_call
from fast.trace import Observer
from fast.view import View

Model = TypeVar("Model", bound=nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
DEFAULT_SEED = 0


def join(
    model: Model,
    optimizer: Optimizer,
    strategy: str | Strategy = "allreduce",
    *,
    before_apply: Callable[[], None] | None = None,
    check_finite: bool = False,
    accumulate: int = 1,
    observers: Iterable[Observer] = (),
) -> tuple[Model, Optimizer]:
    """Train this model together with the other workers. Returns the same two objects.

    The exchange happens inside `optimizer.step()`. `before_apply` is called right before the
    optimizer moves the weights, when `p.grad` holds the *merged* gradient: clip there.
    `check_finite` refuses a gradient with NaN or infinity before it can spread.

    A strategy with `bucket_mb` sends parts of the gradient while backward is still running. If
    several backward passes are accumulated into one step, say how many with `accumulate`; with 0,
    run the last one inside `with fast.final_backward():`.

    A script that calls this also runs plainly: one worker, no launcher, and with every preset
    the same result as without FAST.
    """
    seat = current_seat()
    chosen = _choose(seat, strategy)
    _check(model, optimizer)
    if seat.workers == 1 and chosen.identity_alone:
        session = _join_alone(seat, model, optimizer, chosen, before_apply, check_finite)
    else:
        options = _Options(before_apply, check_finite, accumulate, observers)
        session = _join_others(seat, model, optimizer, chosen, options)
    seat.sessions.append(session)
    return model, optimizer


def _choose(seat: Seat, strategy: str | Strategy) -> Strategy:
    chosen = strategy_from(strategy)
    if seat.strategy is not None:
        asked = strategy_from(seat.strategy)
        if asked.call != chosen.call and seat.id == 0:
            seat.say(f"--strategy {shown(asked)} overrides {shown(chosen)} of the script")
        chosen = asked
    return chosen


def _check(model: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"fast.join needs a torch.nn.Module as its model and got {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"fast.join needs a torch.optim optimizer and got {type(optimizer).__name__}. "
            "Give it the optimizer itself, before any wrapper."
        )
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if trained.isdisjoint(map(id, model.parameters())):
        raise UsageError(
            "the optimizer holds none of the model's parameters. Was the model made anew after it? "
            "Make the optimizer from model.parameters() of the model that you join."
        )


@dataclass(frozen=True)
class _Options:
    """What `join` was told beside model, optimizer and strategy."""

    before_apply: Callable[[], None] | None
    check_finite: bool
    accumulate: int
    observers: Iterable[Observer]

    def __post_init__(self) -> None:
        if self.accumulate < 0:
            raise UsageError(
                f"join(accumulate={self.accumulate}): it counts backward passes per step, or is 0 if you mark the last "
                "one with `with fast.final_backward():`"
            )


# One worker


def _join_alone(
    seat: Seat,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    before_apply: Callable[[], None] | None,
    check_finite: bool,
) -> Session:
    """The strategy is the identity: torch's own step, untouched, and a counter."""
    if before_apply is not None or check_finite:

        def before_step(*_: Any) -> None:
            if check_finite:
                _check_finite(model)
            if before_apply is not None:
                before_apply()

        optimizer.register_step_pre_hook(before_step)
    transport, steps, journal = seat.connect(), 0, seat.journal

    def weights() -> torch.Tensor:
        flat = [p.detach().cpu().reshape(-1) for p in model.parameters()]
        alike = len({each.dtype for each in flat}) == 1
        return torch.cat(flat if alike else [each.view(torch.uint8) for each in flat])

    def after_step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        transport.set_progress(steps, 0)
        if seat.seed is not None:
            seed_gradient(seat.seed, seat.id, steps)
        if journal is not None:
            journal.stepped(Done(steps, 1, view_of(1, 0), weights))

    optimizer.register_step_post_hook(after_step)
    if seat.seed is not None:
        seed_gradient(seat.seed, seat.id, 0)
    if journal is None:
        return Session(model, optimizer, None)
    journal.joined(strategy)
    return Session(model, optimizer, None, at_end=lambda: journal.ended(steps, weights))


def _check_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise NotFinite(f"the gradient of {name} holds NaN or infinity; the step was not applied")


# Several workers


def _join_others(
    seat: Seat,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    options: _Options,
) -> Session:
    if any(session.runtime is not None for session in seat.sessions):
        raise UsageError(
            "fast.join was called twice in one worker. One run trains one model: put several into one "
            "torch.nn.ModuleDict, with one optimizer whose parameter groups hold their parameters."
        )
    servers = _servers(strategy, seat.workers)
    if servers and options.before_apply is not None:
        raise UsageError(
            f"before_apply can't be called with {strategy!r}: its optimizer runs on a server, which never runs "
            "your code. Change this worker's own gradient before optimizer.step(), or take a strategy "
            "without servers."
        )
    if strategy.topology is not None:
        strategy.topology.check(seat.workers)
    view = view_of(seat.workers, servers)
    transport = seat.connect()
    replica = TorchReplica(
        model,
        optimizer,
        allocate=transport.allocate,
        before_apply=options.before_apply,
        check_finite=options.check_finite,
        say=seat.say,
    )
    if seat.id == 0:
        _say_what_runs(seat, strategy)
        if servers:
            seat.start_servers(strategy, servers)
    runtime = WorkerRuntime(
        transport,
        view,
        replica,
        strategy,
        seed=DEFAULT_SEED if seat.seed is None else seat.seed,
        deadline_s=seat.deadline_s,
        observers=options.observers,
        say=seat.say,
        journal=seat.journal,
    )
    session = Session(model, optimizer, runtime)
    _take_over_step(optimizer, session, runtime, replica)
    _overlap(session, runtime, replica, strategy, options.accumulate)
    runtime.join()
    return session


def _overlap(
    session: Session, runtime: WorkerRuntime, replica: TorchReplica, strategy: Strategy, accumulate: int
) -> None:
    """Let backward tell when a bucket is complete, if the strategy exchanges buckets."""
    cuts = bucket_cuts(replica.layout, strategy.bucket_bytes)
    if len(cuts) > 1:
        places = [[n for n in range(bits.bit_length()) if bits >> n & 1] for _, bits in cuts]
        replica.tap_buckets(places, accumulate, session.peek_samples, runtime.bucket_ready)


@contextmanager
def final_backward() -> Iterator[None]:
    """Inside, backward is the last one before `optimizer.step()`: parts of the gradient may already
    be sent while it runs. For `join(..., accumulate=0)`."""
    taps = [
        session.runtime.replica
        for session in current_seat().sessions
        if session.runtime is not None and isinstance(session.runtime.replica, TorchReplica)
    ]
    for replica in taps:
        replica.final_backward(True)
    try:
        yield
    finally:
        for replica in taps:
            replica.final_backward(False)


def view_of(workers: int, servers: int) -> View:
    """Workers have the ids from 0 on, servers those after them."""
    return View(0, tuple(range(workers)), tuple(range(workers, workers + servers)))


def _servers(strategy: Strategy, workers: int) -> int:
    servers = strategy.servers(workers)
    if servers < 0 or servers > workers:
        raise UsageError(
            f"{strategy!r} asks for {servers} servers with {workers} workers; from 0 to one per worker makes sense"
        )
    return servers


def shown(strategy: Strategy) -> str:
    """The call as somebody would write it."""
    return short_call(strategy.call) if strategy.call else repr(strategy)


def _say_what_runs(seat: Seat, strategy: Strategy) -> None:
    words = f"{seat.workers} worker{'s' * (seat.workers > 1)}, strategy {shown(strategy)}"
    if strategy.topology is not None:
        words += f", {strategy.topology.describe(seat.workers)}"
    if seat.workers == 1 and not strategy.identity_alone:
        words += "; with one worker it is not the same as training without FAST"
    seat.say(words)


def _take_over_step(
    optimizer: torch.optim.Optimizer, session: Session, runtime: WorkerRuntime, replica: TorchReplica
) -> None:
    """Replace the instance's `step` by one that exchanges; schedulers wrap it like any other.

    A GradScaler would skip the step on one worker alone. With `_step_supports_amp_scaling` it
    calls us in any case and leaves `found_inf` behind, by which it is known and refused.
    """

    def step(self: torch.optim.Optimizer, closure: Callable[[], object] | None = None) -> None:
        if closure is not None:
            raise UsageError(
                "optimizer.step(closure) evaluates the model several times in one step, which the other "
                "workers can't follow. Use an optimizer without a closure, or one worker."
            )
        if hasattr(self, "found_inf"):
            raise UsageError(
                "a GradScaler skips steps on one worker alone, and the others would wait for it. "
                "Train in bfloat16 without a scaler, or with one worker."
            )
        self._opt_called = True  # type: ignore[attr-defined]  # schedulers look at it, wherever the step is applied
        replica.samples = session.take_samples()
        runtime.step()

    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):  # a scheduler was made before
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
