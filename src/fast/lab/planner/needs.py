"""What a user can't do without, and what there is to live with."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fast.errors import UsageError

TUNING = ("normal", "low")
_AMOUNT = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]{1,3})?)\s*([kmgt]?i?b)\s*", re.IGNORECASE)
_SCALES: Mapping[str, int] = MappingProxyType(
    {"b": 1}
    | {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
    | {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)}
)


@dataclass(frozen=True)
class Needs:
    """What the training can't do without, and what it has to live with."""

    reproducible: bool = False
    """The same run twice gives the same weights."""
    unreliable: bool = False
    """Machines come and go: edge devices, spare time, spot instances."""
    hostile: int = 0
    """So many workers may send anything."""
    tuning: str = "normal"
    """low: nobody will search for hyperparameters."""
    memory_bytes: float | None = None
    """Of a worker, for weights, gradient and the optimizer's state; None: enough."""
    iid: bool = True
    """Whether every worker's data looks like everybody's."""
    small_data: bool = False
    """Whether a worker's share of the data is too small to learn from alone."""

    def __post_init__(self) -> None:
        if self.hostile < 0:
            raise UsageError(f"{self.hostile} hostile workers can't be; 0 is none")
        if self.tuning not in TUNING:
            raise UsageError(f"a tuning budget is {' or '.join(TUNING)}, and {self.tuning!r} is neither")
        if self.memory_bytes is not None and not 0 < self.memory_bytes < math.inf:
            raise UsageError(
                f"a worker with {self.memory_bytes:g} bytes of memory can't be; give an amount such as 4GB"
            )
        if self.reproducible and self.unreliable:
            raise UsageError(
                "reproducible training on unreliable machines is a contradiction: which workers are there "
                "at a step differs "
                "from run to run, and so do the weights. Drop one of the two; a run on unreliable machines can be "
                "recorded and replayed."
            )

    @property
    def shards_unlike(self) -> bool:
        """Whether a worker that learns alone for a while learns the wrong thing."""
        return not self.iid or self.small_data

    def to_json(self) -> dict[str, Any]:
        return {
            "reproducible": self.reproducible,
            "unreliable": self.unreliable,
            "hostile": self.hostile,
            "tuning": self.tuning,
            "memory_bytes": self.memory_bytes,
            "iid": self.iid,
            "small_data": self.small_data,
        }


def parse_memory(text: str) -> float:
    """`4GB` in bytes; also MiB and so on. A plain number says no unit, and is refused.

    >>> parse_memory("4GB"), parse_memory("512 MiB")
    (4000000000.0, 536870912.0)
    """
    match = _AMOUNT.fullmatch(text)
    try:
        amount = float(match[1]) * _SCALES[match[2].lower()] if match else math.nan
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise UsageError(f"{text!r} is not an amount of memory. Write for example 4GB, 16GiB or 800MB.")
    return amount
