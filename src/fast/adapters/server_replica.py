"""A server's replica: flat weights and the optimizer that was sent as data. No model, no script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from fast.adapters.flat import Views
from fast.adapters.optimizer_spec import build
from fast.adapters.stepping import cloned, only_reads, rates_of, set_rates, step_with
from fast.errors import UsageError
from fast.view import Layout


@final
class ServerReplica:
    """Implements `fast.core.Replica` on a flat tensor.

    The optimizer's parameters are views with the true shapes, so that every optimizer, also one
    that looks at rows and columns (Adafactor, Muon), gives the same bits as on a worker.
    """

    def __init__(self, spec: Mapping[str, Any], layout: Layout, weights: Tensor) -> None:
        self.model = None
        self.layout = layout
        self.weights = weights
        self.gradient = torch.zeros_like(weights)
        self.present: int | None = None
        self.samples = 1
        self._views = Views(layout)
        self._parameters = [nn.Parameter(view) for view in layout.views(weights.detach())]
        names = [segment.name for segment in layout.segments]
        self.optimizer = build(spec, dict(zip(names, self._parameters, strict=True)))

    @property
    def rates(self) -> list[float]:
        return rates_of(self.optimizer)

    def backward(self, loss: Tensor) -> None:
        raise UsageError("a server has no model to compute a gradient with; it applies what workers send")

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        if rates is not None:
            set_rates(self.optimizer, rates)
        if gradient is not self.gradient and not only_reads(self.optimizer):
            gradient = self.gradient.copy_(gradient)
        step_with(self._parameters, self._views.of(gradient), present, self.optimizer.step)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.clone(), "optimizer": cloned(self.optimizer.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.copy_(state["weights"])
        self.optimizer.load_state_dict(cloned(state["optimizer"]))
