"""Activations and errors of linear layers, kept as they pass by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fast.parts.factors import Factors, Place, places
from fast.view import Layout


@final
class FactorTap:
    """Listens to the linear layers of a model, and gives their factors once a step.

    Much can happen to a gradient that no layer hears of: its weight is used elsewhere or has a
    penalty in the loss, a hook or the user's code changes what backward left, the result of a
    backward is thrown away. So there is one rule for all of it: factors are given only if they
    rebuild, bit for bit, the gradient that is there. That makes one product anew which backward
    has made; and where it fails, the gradient itself has to travel.

    Several backward passes into one gradient, a layer that is used several times and layers that
    share a weight do fit: the rows of all of them come one after another.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[Tensor], layout: Layout, gradient: Tensor
    ) -> None:
        self._layout, self._gradient = layout, gradient
        self._layers: dict[int, _Layer] = {}
        self._hooks = []
        numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        known = {place.weight: place for place in places(layout)}
        for module in _plain_modules(model):
            place = known.get(numbers.get(id(module.weight), -1)) if isinstance(module, nn.Linear) else None
            if place is not None and _is_like(parameters[place.weight], gradient):
                layer = self._layers.setdefault(place.weight, _Layer(place))
                self._hooks.append(module.register_forward_hook(_Ear(layer, parameters[place.weight])))

    def seal(self, counts: bool) -> None:
        """This step's gradient is complete: what is heard from now on belongs to the next one. A
        step that doesn't count has a gradient of zero, which is that of no rows."""
        for layer in self._layers.values():
            layer.sealed, layer.heard = (layer.heard if counts else []), []

    def take(self, wanted: Sequence[Place], workers: int) -> list[Factors | None]:
        """For each place this step's factors, if they pay and are exact. Then they are forgotten."""
        offers = [self._offer(place, workers) for place in wanted]
        for layer in self._layers.values():
            layer.sealed = None
        return offers

    def _offer(self, place: Place, workers: int) -> Factors | None:
        layer = self._layers.get(place.weight)
        pairs = None if layer is None else layer.sealed
        if pairs is None or not place.pays(_rows(pairs), workers) or not self._is_exact(place, pairs):
            return None
        if len(pairs) == 1:
            return Factors(place, *pairs[0])
        none = self._gradient[:0]
        inputs = torch.cat([none.view(0, place.inputs), *(pair[0] for pair in pairs)])
        errors = torch.cat([none.view(0, place.outputs), *(pair[1] for pair in pairs)])
        return Factors(place, inputs, errors)

    def _is_exact(self, place: Place, pairs: Sequence[Pair]) -> bool:
        return self._is(place.weight, (errors.t() @ inputs for inputs, errors in pairs)) and (
            place.bias is None or self._is(place.bias, (errors.sum(0) for _, errors in pairs))
        )

    def _is(self, number: int, terms: Iterable[Tensor]) -> bool:
        """Whether these terms, added in the order in which backward added them, are the gradient."""
        there, total = self._layout.segments[number].of(self._gradient), None
        for term in terms:
            total = term if total is None else total.add_(term)
        return not bool(there.any()) if total is None else torch.equal(total, there)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


Pair = tuple[Tensor, Tensor]
"""The inputs and the errors of one call of a layer, a row per sample."""


@final
class _Layer:
    """What was heard of one layer: pairs, or None if there was more than pays or fits."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.heard: list[Pair] | None = []
        self.sealed: list[Pair] | None = None

    def hear(self, inputs: Tensor | None, errors: Tensor) -> None:
        """In backward. Memory is only held as long as it can pay."""
        if inputs is None or self.heard is None or errors.numel() != len(inputs) * self.place.outputs:
            self.heard = None
            return
        self.heard.append((inputs, errors.detach().reshape(-1, self.place.outputs)))
        if not self.place.pays(_rows(self.heard)):
            self.heard = None


@final
class _Ear:
    """The forward hook of one layer. Copies of the layer, by copy or pickle, have deaf ones."""

    def __init__(self, layer: _Layer, weight: Tensor) -> None:
        self._layer, self._weight = layer, weight

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if _is_traced() or not _has_errors(output):
            return
        layer, inputs = self._layer, self._inputs(args, output)
        # What is written in place into a view of the result (a ReLU after a layer with three
        # dimensions) passes the view's own hooks by, but not those of the result.
        result: Any = output._base if output._is_view() else output
        result.register_hook(lambda errors: layer.hear(inputs, errors))

    def _inputs(self, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """The rows; None for what can't be sent: too many, or a product in another dtype (autocast)."""
        x, place = args[0] if args else None, self._layer.place
        if not isinstance(x, Tensor) or not x.dtype == output.dtype == self._weight.dtype:
            return None
        rows = x.detach().reshape(-1, place.inputs) if x.numel() % place.inputs == 0 else None
        return rows if rows is not None and place.pays(len(rows)) else None

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return _deaf_ear, ()


def _deaf_ear() -> Callable[..., None]:
    return _deaf


def _deaf(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Hears nothing."""


def _is_traced() -> bool:
    """Whether this call is being written down, to be run again without any hook."""
    return torch.compiler.is_compiling() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def _has_errors(output: Any) -> bool:
    """Whether backward will come by. What vmap and its kin have wrapped means nothing outside of them."""
    return isinstance(output, Tensor) and output.requires_grad and not is_functorch_wrapped_tensor(output)


def _plain_modules(model: nn.Module) -> list[nn.Module]:
    """Those that run as they are: a compiled one is traced with all that is inside, hooks too."""
    compiled = [each for each in model.modules() if each._compiled_call_impl or "_orig_mod" in each._modules]
    inside = {id(inner) for each in compiled for inner in each.modules()}
    return [each for each in model.modules() if id(each) not in inside]


def _rows(pairs: Iterable[Pair]) -> int:
    return sum(inputs.shape[0] for inputs, _ in pairs)


def _is_like(parameter: Tensor, gradient: Tensor) -> bool:
    """Whether the flat gradient has this parameter's gradient as it is, and with values."""
    return parameter.dtype == gradient.dtype and parameter.device == gradient.device and not gradient.is_meta
