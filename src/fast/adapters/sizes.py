"""Replicas without values: flat tensors on torch's meta device, which have sizes and nothing else.

How long a run takes and what it sends follows from sizes alone, so ten thousand workers fit where a
thousand with weights would not. Element by element nothing is computed, and torch takes longer to find that out
(it runs Python to work out the result's shape: 70 to 700 microseconds) than the simulator needs for a whole step.
So the few operations that merging is made of are answered here, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fast.adapters.parameters import choose, widest
from fast.errors import UsageError
from fast.parts.factors import Factors, Place
from fast.view import ALIGN_BYTES, Layout

Verb = Callable[..., Any]
META = torch.device("meta")
PIECES = 32
"""Into so many layers of one size a model is cut of which only the number of parameters is known."""


def no_values(what: str) -> UsageError:
    """What to say to a program that looks for values where only sizes are."""
    return UsageError(
        f"{what} needs the values of a tensor, and this run has sizes only. Decide by me.steps, me.random() or notes, "
        "or simulate with values (leave out --sizes-only)."
    )


def _in_place(name: str) -> Verb:
    plain: Verb = getattr(Tensor, name)

    def verb(self: Tensor, *args: Any, **options: Any) -> Tensor:
        if args and isinstance(args[0], Tensor) and args[0].shape != self.shape:
            plain(self, *args, **options)  # torch says what doesn't fit
        return self

    return verb


def _anew(name: str) -> Verb:
    plain: Verb = getattr(Tensor, name)

    def verb(self: Sized, *args: Any, **options: Any) -> Tensor:
        if args and isinstance(args[0], Tensor) and not _alike(self, args[0]):
            return plain(self, *args, **options)  # type: ignore[no-any-return]
        return Tensor._make_subclass(Sized, self)

    return verb


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _refused(name: str) -> Verb:
    def verb(self: Tensor, *args: Any, **options: Any) -> NoReturn:
        raise no_values(f"{name.strip('_')}()")

    return verb


class Sized(Tensor):
    """A tensor on the meta device. What isn't answered here torch itself does, slowly, on meta tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    add_, sub_, mul_, div_ = _in_place("add_"), _in_place("sub_"), _in_place("mul_"), _in_place("div_")
    __iadd__, __isub__ = _in_place("__iadd__"), _in_place("__isub__")
    __imul__, __itruediv__ = _in_place("__imul__"), _in_place("__itruediv__")
    copy_, lerp_, neg_, clamp_ = (_in_place(name) for name in ("copy_", "lerp_", "neg_", "clamp_"))
    zero_, fill_, nan_to_num_ = _in_place("zero_"), _in_place("fill_"), _in_place("nan_to_num_")

    add, sub, mul, div = _anew("add"), _anew("sub"), _anew("mul"), _anew("div")
    __add__, __radd__, __sub__ = _anew("__add__"), _anew("__radd__"), _anew("__sub__")
    __mul__, __rmul__, __truediv__ = _anew("__mul__"), _anew("__rmul__"), _anew("__truediv__")
    clone, lerp, neg, __neg__ = _anew("clone"), _anew("lerp"), _anew("neg"), _anew("__neg__")

    item, tolist, numpy, __bool__ = (_refused(name) for name in ("item", "tolist", "numpy", "__bool__"))
    __float__, __int__, __index__ = _refused("__float__"), _refused("__int__"), _refused("__index__")

    def detach(self) -> Sized:
        return self

    def contiguous(self, *args: Any, **options: Any) -> Sized:
        """It is, always."""
        return self

    def reshape(self, *shape: Any) -> Tensor:
        return self if shape == (-1,) and self.dim() == 1 else super().reshape(*shape)

    def view(self, *shape: Any) -> Tensor:
        flat = self.dim() == 1 and shape in ((-1,), (self.shape,), (tuple(self.shape),))
        return self if flat else super().view(*shape)

    def __getitem__(self, key: Any) -> Tensor:
        """A slice of a flat tensor is a flat tensor; whose values it shares makes no difference."""
        if not isinstance(key, slice) or self.dim() != 1:
            return super().__getitem__(key)
        return sized(len(range(*key.indices(self.numel()))), dtype=self.dtype)

    def new_empty(self, *size: Any, dtype: torch.dtype | None = None, **options: Any) -> Sized:
        return sized(*size, dtype=self.dtype if dtype is None else dtype)


def sized(*size: Any, dtype: torch.dtype = torch.float32) -> Sized:
    """A tensor of this size, without values."""
    return torch.empty(*size, dtype=dtype, device=META).as_subclass(Sized)


@final
class SizesReplica:
    """Implements `fast.core.Replica` for a worker or a server of whose weights only the size is known.

    `rows` has, for linear layers by their names, how many rows a sample is: then factors are offered
    where they pay, as if they always rebuilt the gradient exactly. `counted`: somebody counts torch's operations,
    so none of them is answered here. `shard`: which slice of the model a server owns; `whole_parameters`: whether
    its optimizer needs them in one piece.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        rates: Sequence[float] = (1.0,),
        samples: int = 1,
        rows: Mapping[str, int] = MappingProxyType({}),
        counted: bool = False,
        shard: slice | None = None,
        whole_parameters: bool = False,
    ) -> None:
        self._whole, self._whole_parameters = layout, whole_parameters
        self.layout = layout = layout if shard is None else layout.part(shard.start, shard.stop)
        flat = (torch.empty(layout.size, dtype=layout.dtype, device=META) for _ in range(2))
        self.weights, self.gradient = flat if counted else (each.as_subclass(Sized) for each in flat)
        self.present: int | None = None
        self.model = None
        self.samples = samples
        self.rates = list(rates)
        self._rows = rows

    def compute(self, samples: int) -> None:
        """A gradient of so many samples."""
        self.samples = samples

    def backward(self, loss: Tensor) -> None:
        raise no_values("me.backward(loss)")

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        if gradient.shape != self.gradient.shape:
            raise UsageError(
                f"apply() got a tensor of shape {tuple(gradient.shape)}; it needs a flat gradient like me.gradient, "
                f"of shape ({self.layout.size},)."
            )

    def shards(self, count: int) -> list[slice]:
        return self._whole.shards(count, whole_parameters=self._whole_parameters)

    def moments(self) -> dict[str, Tensor]:
        raise no_values("me.moments()")

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        raise no_values("me.set_moments(...)")

    def forget_moments(self) -> None:
        """There are none."""

    def state_dict(self) -> dict[str, Any]:
        return {"rates": list(self.rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rates = list(state["rates"])

    # Factors

    def tap_factors(self) -> None:
        """There is nothing to listen to."""

    def factors(self, wanted: Sequence[Place], workers: int = 2) -> list[Factors | None]:
        return [self._offer(place, workers) for place in wanted]

    def _offer(self, place: Place, workers: int) -> Factors | None:
        each = self._rows.get(self.layout.segments[place.weight].name)
        rows = None if each is None else each * self.samples
        if rows is None or not place.pays(rows, workers):
            return None
        kind = self.layout.dtype
        return Factors(place, sized(rows, place.inputs, dtype=kind), sized(rows, place.outputs, dtype=kind))


# Layouts without values


def layout_of(model: nn.Module, optimizer: Optimizer) -> Layout:
    """Of the parameters that this optimizer trains; model and optimizer may be on the meta device."""
    chosen = choose(model, optimizer)
    return Layout.of([(name, p.shape) for name, p in chosen], widest([p for _, p in chosen]))


def layout_of_parameters(count: int, dtype: torch.dtype = torch.float32) -> Layout:
    """Of a model of which only the number of its parameters is known: layers of one size, without shapes."""
    unit = ALIGN_BYTES // dtype.itemsize
    each = max(1, -(-count // PIECES // unit)) * unit
    sizes = [min(each, count - start) for start in range(0, count, each)]
    return Layout.of([(f"layer {number}", (size,)) for number, size in enumerate(sizes)], dtype)
