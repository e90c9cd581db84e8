"""A server's replica: flat weights and the optimizer that was sent as data, if any. No model, no script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from fast.adapters.flat import Allocate, Views
from fast.adapters.moments import forget_moments, moments_of, places_in, set_moments
from fast.adapters.optimizer_spec import build, shards_of
from fast.adapters.stepping import cloned, only_reads, rates_of, set_rates, step_with
from fast.errors import UsageError
from fast.view import Layout


@final
class ServerReplica:
    """Implements `fast.core.Replica` on a flat tensor.

    The optimizer's parameters are views with the true shapes, so that every optimizer, also one
    that looks at rows and columns (Adafactor, Muon), gives the same bits as on a worker. `layout` is
    the whole model's. Where `shard` names a slice of it, `weights` are the values of that slice, and its other
    parameters (or the other part of one) are elsewhere. Without a `spec` nothing is ever applied here.
    """

    def __init__(
        self, spec: Mapping[str, Any], layout: Layout, weights: Tensor, *, shard: slice | None = None
    ) -> None:
        self.model = None
        self._spec, self._whole = spec, layout
        self.layout = layout = layout if shard is None else layout.part(shard.start, shard.stop)
        self.weights = weights
        self.gradient = torch.zeros_like(weights)
        self.present: int | None = None
        self.samples = 1
        self._views = Views(layout)
        self._parameters = [nn.Parameter(view) for view in layout.views(weights.detach())]
        names = [segment.name for segment in layout.segments]
        self.optimizer = build(spec or _resting(names), dict(zip(names, self._parameters, strict=True)))

    @property
    def rates(self) -> list[float]:
        return rates_of(self.optimizer)

    def backward(self, loss: Tensor) -> None:
        raise UsageError("a server has no model to compute a gradient with; it applies what workers send")

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        if not self._spec:
            raise UsageError(
                "this strategy says that its servers don't optimize (servers_optimize = False), and one of them calls "
                "me.apply. Let it move me.weights itself, or leave servers_optimize as it is."
            )
        if rates is not None:
            set_rates(self.optimizer, rates)
        if gradient is not self.gradient and not only_reads(self.optimizer):
            gradient = self.gradient.copy_(gradient)
        step_with(self._parameters, self._views.of(gradient), present, self.optimizer.step)

    def shards(self, count: int) -> list[slice]:
        """Of the whole model, of which this may be one."""
        return shards_of(self._spec, self._whole, count)

    def moments(self) -> dict[str, Tensor]:
        return moments_of(self.optimizer, places_in(self.layout, self._parameters), self.weights)

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        set_moments(self.optimizer, places_in(self.layout, self._parameters), moments)

    def forget_moments(self) -> None:
        forget_moments(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.clone(), "optimizer": cloned(self.optimizer.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.copy_(state["weights"])
        self.optimizer.load_state_dict(cloned(state["optimizer"]))


def _resting(segments: list[str]) -> dict[str, Any]:
    """For a server whose strategy moves the weights itself: it is never called, and remembers nothing."""
    return {"name": "SGD", "defaults": {"lr": 0.0}, "groups": [{"options": {}, "segments": segments}]}


class Described(Protocol):
    """A worker's replica, as far as its servers need to know it."""

    layout: Layout
    weights: Tensor

    def optimizer_spec(self) -> dict[str, Any]: ...


def server_replica(
    spec: Mapping[str, Any],
    layout: Layout,
    weights: Tensor,
    place: tuple[int, int] | None = None,
    allocate: Allocate | None = None,
) -> ServerReplica:
    """A server's replica with a copy of these weights of the whole model, in memory of `allocate` if given. `place`
    says which shard of how many it owns; None for all of them."""
    if place is None:
        return ServerReplica(spec, layout, _copied(weights, allocate))
    number, count = place
    shard = shards_of(spec, layout, count)[number]
    return ServerReplica(spec, layout, _copied(weights[shard], allocate), shard=shard)


def _copied(weights: Tensor, allocate: Allocate | None) -> Tensor:
    if allocate is None or not weights.numel():
        return weights.clone()
    return allocate(weights.numel() * weights.element_size()).view(weights.dtype).copy_(weights)


def server_replicas(
    first: Described, count: int, *, sharded: bool, optimize: bool = True
) -> list[ServerReplica]:
    """Of so many servers, with the first worker's values: each its shard of them, or all. Where servers
    don't `optimize` (and aren't cut by what the optimizer looks at) it may be any."""
    spec = first.optimizer_spec() if count and (optimize or sharded) else {}
    return [
        server_replica(spec, first.layout, first.weights, (number, count) if sharded else None)
        for number in range(count)
    ]
