"""Replica: a participant's copy of the model, as flat tensors. Adapters implement it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fast.parts.factors import Factors, Place
from fast.view import Layout


class Replica(Protocol):
    """One flat tensor of weights and one of gradients, with the optimizer that moves them."""

    layout: Layout
    weights: Tensor
    gradient: Tensor
    present: int | None
    """Which parameters have a gradient in this step, one bit each; None for all."""
    samples: int
    """How many samples this step's gradient was computed on; 0 for a step that must not count."""

    @property
    def model(self) -> Any:
        """The framework's own object; None where there is none."""

    @property
    def rates(self) -> list[float]:
        """The learning rate of each parameter group, as of now."""

    def backward(self, loss: Tensor) -> None:
        """Replace the gradient by that of this loss."""

    def apply(self, gradient: Tensor, present: int | None, rates: list[float] | None = None) -> None:
        """One step of the optimizer with this flat gradient. `rates` overrides the learning rates."""

    def shards(self, count: int) -> list[slice]:
        """The flat tensor of the whole model in so many slices, balanced by bytes, that servers may each
        own one of: cut at multiples of 64 bytes, or between parameters where the optimizer looks at shapes."""

    def moments(self) -> dict[str, Tensor]:
        """What the optimizer remembers of earlier gradients, by its own names: a flat copy of each."""

    def set_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Let the optimizer go on with these."""

    def forget_moments(self) -> None:
        """Let the optimizer go on as if it had never taken a step."""

    def state_dict(self) -> dict[str, Any]:
        """Weights, buffers and the optimizer's state, to be given back to `load_state_dict`."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class Described(Protocol):
    """A replica that can say what its optimizer is: a worker's, where there are values."""

    def optimizer_spec(self) -> dict[str, Any]:
        """Name and groups, each with its options and its segments; UsageError if it is none of torch's own."""


@runtime_checkable
class Grouped(Protocol):
    """A replica that can say which segments are in which parameter group, whatever its optimizer is."""

    def groups(self) -> list[list[str]]:
        """Their names, group by group."""


@runtime_checkable
class Tapped(Protocol):
    """A replica that can give the factors of its linear layers' gradients; others just have gradients."""

    def tap_factors(self) -> None:
        """From now on keep what factors are made of."""

    def factors(self, wanted: Sequence[Place], workers: int = 2) -> list[Factors | None]:
        """For each place the factors of this step's gradient, if they are exact and less to send."""
