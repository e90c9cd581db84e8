"""Joining with nobody else: torch's own step runs untouched, with hooks around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fast.core import Strategy
from fast.engine import Seat
from fast.errors import NotFinite
from fast.loop.large_batch import ScaledRates
from fast.loop.options import Options
from fast.loop.session import Session, flat_weights, parameters_in
from fast.runtime import seed_gradient
from fast.runtime.journal import Done
from fast.runtime.moving import MovingAverage
from fast.view import View

ALONE = View(0, (0,), ())


def join_alone(
    seat: Seat,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    options: Options,
    rates: ScaledRates | None,
) -> Session:
    """The strategy is the identity: torch's own step, untouched, and a counter."""
    if options.before_apply is not None or options.check_finite:

        def before_step(*_: Any) -> None:
            if options.check_finite:
                _check_finite(model)
            if options.before_apply is not None:
                options.before_apply()

        optimizer.register_step_pre_hook(before_step)
    if rates is not None:
        optimizer.register_step_pre_hook(rates.begin)
        optimizer.register_step_post_hook(rates.end)
    transport, steps, journal = seat.connect(), 0, seat.journal
    moving = None if options.ema is None else MovingAverage(options.ema)

    def weights() -> torch.Tensor:
        flat = [p.detach().cpu().reshape(-1) for p in model.parameters()]
        alike = len({each.dtype for each in flat}) == 1
        return torch.cat(flat if alike else [each.view(torch.uint8) for each in flat])

    def after_step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        transport.set_progress(steps, 0)
        if moving is not None:
            moving.take(flat_weights(model))
        if seat.seed is not None:
            seed_gradient(seat.seed, seat.id, steps)
        if journal is not None:
            journal.stepped(Done(steps, 1, ALONE, weights))
        if seat.logbook is not None:
            seat.logbook.stepped_alone(steps, session.take_samples())

    optimizer.register_step_post_hook(after_step)
    if seat.seed is not None:
        seed_gradient(seat.seed, seat.id, 0)
    session = Session(model, optimizer, None, moving=moving, say=seat.say)
    if journal is not None:
        journal.joined(strategy)
        session.at_end = lambda: journal.ended(steps, weights)
    if seat.logbook is not None:
        seat.logbook.joined(repr(strategy), parameters_in(model), lambda: steps)
    return session


def _check_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise NotFinite(f"the gradient of {name} holds NaN or infinity; the step was not applied")
