"""What happens to values before a codec encodes them, and how chains of such parts are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fast.parts.codecs.arguments import check_positive
from fast.parts.codecs.base import Codec, Workspace


class Transformation(ABC):
    """Values in, values out. Subclasses are frozen dataclasses, like codecs."""

    name: ClassVar[str]

    @abstractmethod
    def transform(self, values: Tensor, work: Workspace) -> Tensor:
        """The values, or changed ones in memory of `work`. What was given stays intact, unless it is
        that memory."""

    def spec(self) -> list[Any]:
        """As plain data, like that of a codec."""
        arguments = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return [self.name, arguments]

    def __repr__(self) -> str:
        arguments = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))  # type: ignore[arg-type]
        return f"{self.name}({', '.join(arguments)})"


@final
@dataclass(frozen=True, repr=False)
class Clip(Transformation):
    """Scale the whole tensor to at most this 2-norm. Values whose norm isn't finite stay as they are."""

    norm: float
    name: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        check_positive(self.name, norm=self.norm)

    def transform(self, values: Tensor, work: Workspace) -> Tensor:
        factor = clipping(values, self.norm)
        if factor == 1:
            return values
        clipped = work.take("clip.values", values.numel(), values.dtype, values.device)
        return torch.mul(values, factor, out=clipped)


def clipping(values: Tensor, most: float) -> float:
    """What to multiply these values with so that their norm is at most this: 1 if it isn't finite."""
    norm = float(torch.linalg.vector_norm(values, dtype=torch.float64))
    return most / norm if isfinite(norm) and norm > most else 1.0


class Chain(Codec):
    """What chains have in common: they are written as calls of `chain`."""

    name: ClassVar[str] = "chain"

    @property
    @abstractmethod
    def parts(self) -> tuple[Transformation | Codec, ...]:
        """From the first to the last."""

    def spec(self) -> list[Any]:
        return [self.name, {"parts": [part.spec() for part in self.parts]}]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.parts))})"
