"""`fast.join`: two changed lines, and the loop stays the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import TypeVar

import torch
from torch import nn

from fast.adapters import TorchReplica
from fast.core import Strategy
from fast.core.buckets import bucket_cuts
from fast.engine import Seat, current_seat
from fast.errors import UsageError
from fast.loop.alone import join_alone
from fast.loop.batchnorm import check_layers, totals_of
from fast.loop.large_batch import LargeBatch, PlainRates, ScaledRates, check_fits
from fast.loop.loading import strategy_from
from fast.loop.options import Options
from fast.loop.orders import Orders
from fast.loop.remarks import Remarks
from fast.loop.session import Session, close_sessions, parameters_in
from fast.loop.stopping import stop_when_told
from fast.runtime import WorkerRuntime
from fast.runtime.moving import MovingAverage
from fast.strategies.calls import short_call
from fast.trace import Observer
from fast.view import Groups, View

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
    large_batch: LargeBatch | None = None,
    observers: Iterable[Observer] = (),
    ema: float | None = None,
) -> tuple[Model, Optimizer]:
    """Train this model together with the other workers. Returns the same two objects.

    The exchange happens inside `optimizer.step()`. `before_apply` is called right before the
    optimizer moves the weights, when `p.grad` holds the *merged* gradient: clip there.
    `check_finite` refuses a gradient with NaN or infinity before it can spread.

    A strategy with `bucket_mb` sends parts of the gradient while backward is still running. If
    several backward passes are accumulated into one step, say how many with `accumulate`; with 0,
    run the last one inside `with fast.final_backward():`.

    `large_batch` lets the learning rate follow the batch that all workers make together, with a
    warm-up; the log says which batch and which rates are used.

    `ema` is the decay of an exponential moving average of this worker's weights, kept from here on for
    `fast.consolidate(model, "ema")`.

    A script that calls this also runs plainly: one worker, no launcher, and with every
    strategy that is `identity_alone` the same result as without FAST.
    """
    seat = current_seat()
    chosen = _choose(seat, strategy)
    _check(model, optimizer)
    options = Options(before_apply, check_finite, accumulate, large_batch, observers, ema)
    rates = _scaled_rates(seat, optimizer, chosen, options)
    if seat.workers == 1 and chosen.identity_alone:
        _say_rates(seat, chosen, rates)
        session = join_alone(seat, model, optimizer, chosen, options, rates)
    else:
        session = _join_others(seat, model, optimizer, chosen, options, rates)
    seat.sessions.append(session)
    seat.at_exit(lambda: close_sessions(seat))
    return model, optimizer


def _choose(seat: Seat, strategy: str | Strategy) -> Strategy:
    chosen = strategy_from(strategy)
    if seat.strategy is not None:
        asked = strategy_from(seat.strategy)
        if asked.call != chosen.call and seat.id == 0:
            typed = isinstance(seat.strategy, str)
            given = (
                f"{seat.strategy_from} {shown(asked)}" if typed else f"strategy {shown(asked)} of fast.launch"
            )
            seat.say(f"{given} overrides {shown(chosen)} of the script")
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


def _join_others(
    seat: Seat,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    options: Options,
    rates: ScaledRates | None,
) -> Session:
    if any(session.runtime is not None for session in seat.sessions):
        raise UsageError(
            "fast.join was called twice in one worker. One run trains one model: put several into one "
            "torch.nn.ModuleDict, with one optimizer whose parameter groups hold their parameters."
        )
    servers = _servers(strategy, seat.workers)
    if servers and strategy.servers_optimize and options.before_apply is not None:
        raise UsageError(
            f"before_apply can't be called with {strategy!r}: its optimizer runs on a server, which never runs "
            "your code. Change this worker's own gradient between backward() and optimizer.step() (without "
            "bucket_mb), or take a strategy without servers."
        )
    if seat.workers > 1:
        check_layers(model, strategy)
    strategy.check(seat.workers)
    transport = seat.connect()
    view = view_of(seat.workers, servers, seat.groups or transport.groups)
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
        _say_rates(seat, strategy, rates)
        if servers:
            seat.start_servers(strategy, servers)
    runtime = WorkerRuntime(
        transport,
        view,
        replica,
        strategy,
        seed=DEFAULT_SEED if seat.seed is None else seat.seed,
        deadline_s=seat.deadline_s,
        observers=(*options.observers, *seat.observers),
        say=seat.say,
        journal=seat.journal,
        moving=None if options.ema is None else MovingAverage(options.ema),
    )
    session = Session(model, optimizer, runtime, moving=runtime.moving, say=seat.say, orders=Orders(runtime))
    session.totals = totals_of(session)
    session.remarks = Remarks(runtime, model, optimizer, seat.say)
    plain = PlainRates(strategy, seat.workers, optimizer, seat.say if seat.id == 0 else _silently)
    _take_over_step(optimizer, session, runtime, replica, rates or plain)
    _overlap(session, runtime, replica, options.accumulate, rates)
    with nullcontext() if rates is None else rates.in_force():
        runtime.join()
    if seat.logbook is not None:
        seat.logbook.joined(repr(strategy), parameters_in(model), lambda: runtime.me.steps)
    if seat.workers > 1:
        stop_when_told(runtime)
    return session


def _scaled_rates(
    seat: Seat, optimizer: torch.optim.Optimizer, strategy: Strategy, options: Options
) -> ScaledRates | None:
    """What `large_batch` makes of the optimizer's rates, once it is clear that it fits the strategy."""
    plan = options.large_batch
    if plan is None:
        return None
    check_fits(plan, strategy, optimizer, strategy.servers(seat.workers))
    say = seat.say if seat.id == 0 else _silently
    return ScaledRates(plan, optimizer, strategy.contributors(seat.workers), say)


def _silently(line: str) -> None:
    """Worker 0 says it."""


def _overlap(
    session: Session,
    runtime: WorkerRuntime,
    replica: TorchReplica,
    accumulate: int,
    rates: ScaledRates | None,
) -> None:
    """Let backward tell when a bucket is complete, if the strategy exchanges buckets."""
    cuts = bucket_cuts(replica.layout, runtime.strategy.bucket_bytes)
    if len(cuts) < 2:
        return

    def bucket_ready(number: int) -> None:
        with nullcontext() if rates is None else rates.in_force():
            runtime.bucket_ready(number)

    places = [[n for n in range(bits.bit_length()) if bits >> n & 1] for _, bits in cuts]
    replica.tap_buckets(places, accumulate, session.peek_samples, bucket_ready)


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


def view_of(workers: int, servers: int, groups: Groups = ()) -> View:
    """Workers have the ids from 0 on, servers those after them."""
    return View(0, tuple(range(workers)), tuple(range(workers, workers + servers)), groups)


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


def _say_rates(seat: Seat, strategy: Strategy, rates: ScaledRates | None) -> None:
    if rates is None:
        return
    seat.say(rates.in_words())
    if seat.workers > 1 and not strategy.replicas_agree and not strategy.servers(seat.workers):
        seat.say(
            f"with {shown(strategy)} every worker takes its steps on its own batch. A scaled rate is meant for "
            "strategies whose steps are made of everybody's gradient, such as allreduce."
        )


def _take_over_step(
    optimizer: torch.optim.Optimizer,
    session: Session,
    runtime: WorkerRuntime,
    replica: TorchReplica,
    rates: ScaledRates | PlainRates,
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
        rates.compare(session.pending_samples, divided=session.divided)
        replica.samples = session.take_samples()
        with rates.stepping():
            runtime.step()
        if session.remarks is not None:
            session.remarks.stepped()

    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):  # a scheduler was made before
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
