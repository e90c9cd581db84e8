"""Many replicas of one model: each worker's weights and gradient are one row of a tensor.

A thousand small models as a thousand modules cost mostly Python. Here there is one module, the
template, and gradients of many rows are computed in one call of `torch.func.vmap`: the same products, batched.
They round differently than one by one, in the last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from fast.adapters.optimizer_spec import describe, shards_of
from fast.adapters.parameters import choose, others, widest
from fast.adapters.row_optimizer import Recipe, RowOptimizer
from fast.adapters.stacked_linear import StackedLinear
from fast.adapters.stepping import check_optimizer, cloned
from fast.errors import UsageError
from fast.view import Layout, Segment

Loss = Callable[[nn.Module, Any], Tensor]
CHUNK_VALUES = 2**22
CHUNK_ROWS = 512
"""At most so many weights, and rows, in one call: it needs several times their memory."""


@final
class Rows:
    """The replicas of so many workers, all with the values that the model has now.

    `loss(model, batch)` is a function of weights and batch alone: it draws nothing, and keeps nothing.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, loss: Loss, workers: int) -> None:
        check_optimizer(optimizer)
        chosen = choose(model, optimizer)
        self._others = others(model, optimizer, chosen)
        _check_one_kind([p for _, p in chosen])
        self.layout = Layout.of([(name, p.shape) for name, p in chosen], widest([p for _, p in chosen]))
        self.weights = torch.zeros(workers, self.layout.size, dtype=self.layout.dtype)
        self.gradients = torch.zeros_like(self.weights)
        self.recipe = Recipe(describe(optimizer, {id(p): name for name, p in chosen}), self.layout)
        self._model, self._parameters = model, [p for _, p in chosen]
        for segment, p in zip(self.layout.segments, self._parameters, strict=True):
            self.weights[:, segment.start : segment.stop] = p.detach().reshape(-1)
        self.replicas = tuple(RowReplica(self, worker) for worker in range(workers))
        self._losing = _Losing(model, loss)
        self._losses = vmap(self._loss_of)
        self._known: dict[Hashable, int | None] = {}
        places = {id(p): place for place, p in enumerate(self._parameters)}
        whole = model.state_dict(keep_vars=True)
        self._state = [(name, value.detach(), places.get(id(value))) for name, value in whole.items()]

    # The template

    def shown(self, worker: int) -> nn.Module:
        """The model, whose parameters are this worker's until the next one is shown. What is taken from it
        (a state_dict) goes on being this worker's."""
        for segment, p in zip(self.layout.segments, self._parameters, strict=True):
            p.data = segment.of(self.weights[worker])
        return self._model

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The model's `state_dict` if its weights were these: views of them, and what everybody shares."""
        return {
            name: rest if place is None else self.layout.segments[place].of(flat)
            for name, rest, place in self._state
        }

    def rest(self) -> dict[str, Tensor]:
        """Parameters that don't take part and buffers: one for all workers, and nobody changes them."""
        return {**{name: p.data for name, p in self._others}, **dict(self._model.named_buffers())}

    # Gradients

    def evaluate(self, workers: Sequence[int], batches: Sequence[Any]) -> None:
        """The gradients of these workers on their batches, into their rows: those whose batches are
        alike in one go, in the order in which they come."""
        alike: dict[Hashable, list[int]] = {}
        for place, batch in enumerate(batches):
            alike.setdefault(_kind(batch), []).append(place)
        for places in alike.values():
            stacked = pytree.tree_map(lambda *leaves: torch.stack(leaves), *(batches[n] for n in places))
            self.evaluate_stacked([workers[n] for n in places], stacked)

    def evaluate_stacked(self, workers: Sequence[int], batch: Any) -> None:
        """Likewise, where the batches lie one behind the other in the first dimension of each tensor."""
        size = max(1, min(CHUNK_ROWS, CHUNK_VALUES // max(1, self.layout.size)))
        for start in range(0, len(workers), size):
            piece = slice(start, start + size)
            self._evaluate_chunk(workers[piece], pytree.tree_map(lambda leaf: leaf[piece], batch))  # noqa: B023

    def _evaluate_chunk(self, workers: Sequence[int], batch: Any) -> None:
        rows = _as_slice(workers)
        present = self._present(workers[0], batch)
        found = self._gradients(self.weights[rows], self._used(present), batch)
        for segment in self.layout.segments:
            gradient = found.get(segment.name)
            place = _columns(self.gradients, segment)
            if gradient is None:
                place[rows] = 0.0
            elif isinstance(rows, slice):
                place[rows].view(gradient.shape).copy_(gradient)
            else:
                place.index_copy_(0, rows, gradient.reshape(len(rows), segment.size))
        for worker in workers:
            self.replicas[worker].present = present

    def _gradients(self, weights: Tensor, used: Sequence[Segment], batch: Any) -> dict[str, Tensor]:
        """By the names of the segments. No loss depends on another's row, so that the gradient of their sum
        is that of each; backward outside of `vmap` spares it the way through its layers."""
        leaves = [_columns(weights, s).view(len(weights), *s.shape).detach().requires_grad_() for s in used]
        named = {f"model.{s.name}": leaf for s, leaf in zip(used, leaves, strict=True)}
        with StackedLinear():
            total = self._losses(named, batch).sum()
        found = torch.autograd.grad(total, leaves, materialize_grads=True)
        return {s.name: gradient for s, gradient in zip(used, found, strict=True)}

    def _loss_of(self, parameters: dict[str, Tensor], batch: Any) -> Tensor:
        return functional_call(self._losing, parameters, (batch,))  # type: ignore[no-any-return]

    def _used(self, present: int | None) -> list[Segment]:
        """Those that the loss depends on."""
        return [s for n, s in enumerate(self.layout.segments) if present is None or present >> n & 1]

    def _present(self, worker: int, batch: Any) -> int | None:
        """Which parameters have a gradient. It is asked once for batches of each kind, with torch's own
        backward: batched, a gradient that isn't there would come out as zeros."""
        first = pytree.tree_map(lambda leaf: leaf[0], batch)
        kind = _kind(first)
        if kind not in self._known:
            found = self.gradient_alone(worker, first)
            bits = sum(1 << n for n, gradient in enumerate(found) if gradient is not None)
            self._known[kind] = None if bits == self.layout.everything else bits
        return self._known[kind]

    def gradient_alone(self, worker: int, batch: Any) -> list[Tensor | None]:
        """One worker's gradient on one batch as torch computes it, parameter by parameter."""
        row = self.weights[worker]
        leaves = [segment.of(row).detach().requires_grad_() for segment in self.layout.segments]
        named = {f"model.{s.name}": leaf for s, leaf in zip(self.layout.segments, leaves, strict=True)}
        return list(torch.autograd.grad(self._loss_of(named, batch), leaves, allow_unused=True))


@final
class RowReplica:
    """Implements `fast.core.Replica` on one row."""

    def __init__(self, rows: Rows, worker: int) -> None:
        self._rows, self._worker = rows, worker
        self.layout = rows.layout
        self.weights, self.gradient = rows.weights[worker], rows.gradients[worker]
        self.present: int | None = None
        self.samples = 1
        self._made: RowOptimizer | None = None

    @property
    def model(self) -> nn.Module:
        """The template with this worker's values, until another one's is asked for."""
        return self._rows.shown(self._worker)

    @property
    def _optimizer(self) -> RowOptimizer:
        """Made when it is needed: where servers apply the gradients, workers need none."""
        if self._made is None:
            self._made = RowOptimizer(self._rows.recipe, self.weights, self.gradient)
        return self._made

    @property
    def rates(self) -> list[float]:
        return self._optimizer.rates

    def backward(self, loss: Tensor) -> None:
        raise UsageError(
            "gradients are computed together here, and this strategy computes its own. "
            "Simulate it with exact gradients."
        )

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        if gradient is not self.gradient:
            _check_flat(gradient, self.weights)
        (self._made or self._optimizer).step(gradient, present, rates)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """A state_dict of the model with these flat weights, of which it has views."""
        return self._rows.named(flat)

    def settle(self) -> None:
        """The weights are the row: nothing is to be copied."""

    def optimizer_spec(self) -> dict[str, Any]:
        """The optimizer as plain data, for a server."""
        return dict(self._rows.recipe.spec)

    def groups(self) -> list[list[str]]:
        """The segments of each of the optimizer's parameter groups."""
        return [list(group["segments"]) for group in self._rows.recipe.spec["groups"]]

    def shards(self, count: int) -> list[slice]:
        return shards_of(self._rows.recipe.spec, self.layout, count)

    def moments(self) -> dict[str, Tensor]:
        return self._optimizer.moments()

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        self._optimizer.set_moments(moments)

    def forget_moments(self) -> None:
        self._optimizer.forget_moments()

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights.clone(),
            "rest": cloned(self._rows.rest()),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["weights"].shape != self.weights.shape or state["rest"].keys() != self._rows.rest().keys():
            raise UsageError(
                f"the state is of another model: {state['weights'].numel()} weights and {len(state['rest'])} "
                f"other tensors against {self.weights.numel()} and {len(self._rows.rest())} here. "
                "Build the model as it was when saved."
            )
        self.weights.copy_(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])


@final
class _Losing(nn.Module):
    """The loss as a module, so that the model inside it may be called, or looked into, in any way."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Any) -> Tensor:
        return self._loss(self.model, batch)


def _check_one_kind(parameters: Sequence[Tensor]) -> None:
    kinds = sorted({f"{p.dtype} on {p.device}" for p in parameters})
    if len(kinds) > 1 or parameters[0].device.type != "cpu":
        raise UsageError(
            f"rows need parameters of one dtype on the CPU, and these are {' and '.join(kinds)}."
        )


def _check_flat(gradient: Tensor, weights: Tensor) -> None:
    if gradient.shape != weights.shape or gradient.dtype != weights.dtype:
        raise UsageError(
            f"apply() got {gradient.dtype} of shape {tuple(gradient.shape)}; it needs a flat gradient like "
            f"me.gradient, {weights.dtype} of shape {tuple(weights.shape)}."
        )


def _columns(rows: Tensor, segment: Segment) -> Tensor:
    return rows[:, segment.start : segment.stop]


def _as_slice(workers: Sequence[int]) -> slice | Tensor:
    """A slice where they follow each other: then nothing is copied."""
    if list(workers) == list(range(workers[0], workers[-1] + 1)):
        return slice(workers[0], workers[-1] + 1)
    return torch.tensor(workers)


def _kind(batch: Any) -> Hashable:
    """What batches have in common that can be stacked: structure, shapes and dtypes."""
    leaves, structure = pytree.tree_flatten(batch)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise UsageError(f"a batch holds {type(leaf).__name__}; only tensors can be stacked")
    return str(structure), tuple((leaf.dtype, leaf.shape) for leaf in leaves)
