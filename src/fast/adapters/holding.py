"""How a model's parameters hang together with the flat weights: as views, or as copies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor


class Holding(ABC):
    """Keeps the parameters and the flat weights the same."""

    @abstractmethod
    def refresh(self) -> list[int]:
        """Take over what the model has; returns the places of parameters that had left the flat memory."""

    @abstractmethod
    def settle(self) -> None:
        """Give the model what is in the flat weights."""

    @abstractmethod
    def lend(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """These gradients in the form in which the parameters' optimizer takes them."""

    @abstractmethod
    def release(self) -> None:
        """Leave the parameters on memory of their own."""


@final
class Aliased(Holding):
    """Every parameter is a view into the flat weights: nothing is ever copied."""

    def __init__(self, parameters: Sequence[Tensor], views: Sequence[Tensor]) -> None:
        self._parameters, self._views = parameters, views
        for p, view in zip(parameters, views, strict=True):
            view.copy_(p.data)
            p.data = view
        self._pointers = [p.data_ptr() for p in parameters]

    def refresh(self) -> list[int]:
        pointers = [p.data_ptr() for p in self._parameters]
        if pointers == self._pointers:
            return []
        moved = [n for n, (now, then) in enumerate(zip(pointers, self._pointers, strict=True)) if now != then]
        for n in moved:
            p, view = self._parameters[n], self._views[n]
            view.copy_(p.data)
            p.data = view
        return moved

    def settle(self) -> None:
        """The parameters are the flat weights."""

    def lend(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        return gradients

    def release(self) -> None:
        for p in self._parameters:
            p.data = p.data.clone()


@final
class Mirrored(Holding):
    """The flat weights are a copy in the widest dtype, for parameters of several dtypes or devices."""

    def __init__(self, parameters: Sequence[Tensor], views: Sequence[Tensor]) -> None:
        self._parameters, self._views = parameters, list(views)
        self._gradients: list[Tensor] = []
        self.refresh()

    def refresh(self) -> list[int]:
        torch._foreach_copy_(self._views, [p.data for p in self._parameters])
        return []

    def settle(self) -> None:
        torch._foreach_copy_([p.data for p in self._parameters], self._views)

    def lend(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self._gradients:
            self._gradients = [torch.empty_like(p.data) for p in self._parameters]
        torch._foreach_copy_(self._gradients, list(gradients))
        return self._gradients

    def release(self) -> None:
        """The parameters have been on memory of their own all along."""
