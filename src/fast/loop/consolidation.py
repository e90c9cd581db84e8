"""`fast.consolidate`: one model out of many replicas."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from fast.adapters.parameters import plain_name
from fast.engine import current_seat
from fast.errors import UsageError
from fast.loop.session import session_of

Model = TypeVar("Model", bound=nn.Module)


def consolidate(model: Model) -> Model:
    """The representative model, in memory of its own, the same on every worker.

    It waits for all who trained. Weights are the mean of the replicas (or the server's, where a
    server owns them); floating-point buffers are averaged, counters take the largest value.
    Afterwards this worker has left the training; the model that was joined stays as it was.
    """
    session = session_of(current_seat(), model)
    if session is None:
        raise UsageError(
            "fast.consolidate got a model that was not joined here. Give it the model that fast.join returned."
        )
    if session.runtime is None:
        return _plain_copy(model)
    weights, buffers = session.runtime.consolidated()
    layout = session.runtime.replica.layout
    final = _plain_copy(model)
    parameters = {plain_name(name): p for name, p in final.named_parameters()}
    own_buffers = {plain_name(name): buffer for name, buffer in final.named_buffers()}
    with torch.no_grad():
        for segment in layout.segments:
            if segment.name in parameters:
                parameters[segment.name].copy_(segment.of(weights))
        for name, values in buffers:
            if name in own_buffers:
                own_buffers[name].copy_(values)
    return final


def _plain_copy(model: Model) -> Model:
    """A copy in memory of its own, without gradients."""
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in grads:
            parameter.grad = None
        return copy.deepcopy(model)
    finally:
        for parameter, grad in grads:
            parameter.grad = grad
