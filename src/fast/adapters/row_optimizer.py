"""The user's optimizer on one flat row of weights, with as few calls as its arithmetic allows.

For a small model most of an optimizer's step is not arithmetic: wrappers around `step`, one round of calls for
each parameter. An element-wise optimizer doesn't care where one parameter ends and the next one begins, so
neighbours of one group are one tensor here. The formulas stay torch's own: its classes, with `step` as it was
before profiling and hooks were wrapped around it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from torch import Tensor
from torch.optim import Optimizer

from fast.adapters.moments import Place, forget_moments, moments_of, set_moments
from fast.adapters.optimizer_spec import ELEMENT_WISE, KNOWN, build
from fast.adapters.stepping import at_rates, cloned, rates_of
from fast.view import Layout


@dataclass(frozen=True)
class Piece:
    """A stretch of the flat tensor that the optimizer sees as one parameter."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    group: int
    """Of the optimizer; all of a piece is in one."""
    place: int | None = None
    """Of the only parameter in it; None where several are inside."""

    def of(self, flat: Tensor) -> Tensor:
        part = flat[self.start : self.stop]
        return part if len(self.shape) == 1 else part.view(self.shape)

    def is_in(self, present: int | None) -> bool:
        """Whether it has a gradient."""
        return present is None or self.place is None or bool(present >> self.place & 1)


@dataclass(frozen=True)
class Recipe:
    """What the optimizers of all rows have in common."""

    spec: Mapping[str, Any]
    """As `describe` gives it: groups of segments."""
    layout: Layout

    @property
    def element_wise(self) -> bool:
        return self.spec["name"] in ELEMENT_WISE

    @cached_property
    def plain_rates(self) -> list[float] | None:
        """The rates of all groups if a step is w <- w - lr g and nothing else: SGD without momentum, decay or
        a tensor for a rate."""
        options = [group["options"] for group in self.spec["groups"]]
        unusual = ("momentum", "weight_decay", "maximize", "foreach", "fused")
        plain = self.spec["name"] == "SGD" and all(
            isinstance(each["lr"], float) and not any(each.get(key) for key in unusual) for each in options
        )
        return [each["lr"] for each in options] if plain else None

    @cached_property
    def step(self) -> Callable[[Optimizer], object]:
        """torch's own, without what it is wrapped in."""
        step: Callable[[Optimizer], object] = inspect.unwrap(KNOWN[self.spec["name"]].step)
        return step

    @cached_property
    def parameters(self) -> tuple[Piece, ...]:
        """Each parameter on its own, as torch has it."""
        return tuple(
            Piece(segment.name, segment.start, segment.stop, segment.shape, self._groups[segment.name], place)
            for place, segment in enumerate(self.layout.segments)
        )

    @cached_property
    def runs(self) -> tuple[Piece, ...]:
        """Neighbours of one group in one piece. Padding is never inside: it must stay zero."""
        runs: list[Piece] = []
        for piece in self.parameters:
            first = piece
            if runs and runs[-1].stop == piece.start and runs[-1].group == piece.group:
                first = runs.pop()
            runs.append(Piece(first.name, first.start, piece.stop, (piece.stop - first.start,), piece.group))
        return tuple(runs)

    @cached_property
    def _groups(self) -> dict[str, int]:
        return {name: n for n, group in enumerate(self.spec["groups"]) for name in group["segments"]}

    def optimizer(self, parameters: Mapping[str, Tensor]) -> Optimizer:
        """Over these pieces, by the names of the first parameters in them."""
        made = build(self.spec, parameters)
        for group in made.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = False  # what torch would find out in each step anew, on a CPU
        return made


@final
class RowOptimizer:
    """One worker's: its state, and the pieces of its row that are stepped on.

    While every parameter has a gradient, all of an element-wise optimizer's state is the same for all
    parameters of a run. The first step in which one has none ends that: from then on each parameter
    is on its own, as in torch, with views of the state that it had.
    """

    def __init__(self, recipe: Recipe, weights: Tensor, gradient: Tensor) -> None:
        self._recipe, self._weights, self._own = recipe, weights, gradient
        self._hold(recipe.runs if recipe.element_wise else recipe.parameters)

    def _hold(self, pieces: Sequence[Piece]) -> None:
        self._pieces, self._in_runs = pieces, pieces is self._recipe.runs
        self._parameters = [piece.of(self._weights) for piece in pieces]
        self._own_views = [piece.of(self._own) for piece in pieces]
        self._made: Optimizer | None = None

    @property
    def optimizer(self) -> Optimizer:
        """torch's own, made when something has to be kept in it."""
        if self._made is None:
            names = [piece.name for piece in self._pieces]
            self._made = self._recipe.optimizer(dict(zip(names, self._parameters, strict=True)))
        return self._made

    @property
    def rates(self) -> list[float]:
        return self._recipe.plain_rates or rates_of(self.optimizer)

    def step(self, gradient: Tensor, present: int | None, rates: Sequence[float] | None) -> None:
        """With these rates, or its own; parameters that are not `present` have no gradient."""
        if present is not None and self._in_runs:
            self._separate()
        views = self._own_views if gradient is self._own else [piece.of(gradient) for piece in self._pieces]
        plain = self._recipe.plain_rates
        if plain is not None:
            self._descend(views, present, plain if rates is None else rates)
            return
        for piece, parameter, view in zip(self._pieces, self._parameters, views, strict=True):
            parameter.grad = view if piece.is_in(present) else None
        with at_rates(self.optimizer, rates):
            self._recipe.step(self.optimizer)
        for parameter in self._parameters:
            parameter.grad = None  # lent memory is given back

    def _descend(self, views: Sequence[Tensor], present: int | None, rates: Sequence[float]) -> None:
        """What torch's SGD does after a dozen questions that all are answered with no."""
        for piece, parameter, view in zip(self._pieces, self._parameters, views, strict=True):
            if present is None or piece.is_in(present):
                parameter.add_(view, alpha=-rates[piece.group])

    def _separate(self) -> None:
        """Each parameter on its own, with the state that it had as a part of its run."""
        runs, tensors, before = self._pieces, self._parameters, self._made
        self._hold(self._recipe.parameters)
        if before is None:
            return
        for group, old in zip(self.optimizer.param_groups, before.param_groups, strict=True):
            group.update({key: value for key, value in old.items() if key != "params"})
        for run, tensor in zip(runs, tensors, strict=True):
            state = before.state.get(tensor)
            if not state:
                continue
            for piece, parameter in zip(self._pieces, self._parameters, strict=True):
                if run.start <= piece.start and piece.stop <= run.stop:
                    self.optimizer.state[parameter] = {
                        key: _part(value, run, piece) for key, value in state.items()
                    }

    def moments(self) -> dict[str, Tensor]:
        return moments_of(self.optimizer, self._memory(), self._weights)

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        set_moments(self.optimizer, self._memory(), moments)

    def forget_moments(self) -> None:
        if self._made is not None:
            forget_moments(self._made)

    def _memory(self) -> list[Place]:
        return [
            (parameter, piece.of) for parameter, piece in zip(self._parameters, self._pieces, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        kept = None if self._made is None else cloned(self._made.state_dict())
        return {"in_runs": self._in_runs, "optimizer": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._hold(self._recipe.runs if state["in_runs"] else self._recipe.parameters)
        if state["optimizer"] is not None:
            self.optimizer.load_state_dict(cloned(state["optimizer"]))


def _part(value: Any, run: Piece, piece: Piece) -> Any:
    """What of a run's state belongs to one of its parameters. Counters have no dimension."""
    if not isinstance(value, Tensor):
        return value
    if value.shape != run.shape:
        return value.clone()
    return value[piece.start - run.start : piece.stop - run.start].view(piece.shape)
