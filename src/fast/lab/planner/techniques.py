"""The techniques of the taxonomy, with what each of them asks for and promises.

The ordinal marks are those of the comparison of techniques in Langer et al., section 4.3 and its table: + is 1, ++++ is
4; reproducing a result is trivial (0), easy (1), medium (2) or hard (3). Where the table says only "likely" about the
learning rate, the prose of the section says which way.

M. Langer, Z. He, W. Rahayu, Y. Xue, Distributed Training of Deep Learning Models: A Taxonomic Perspective, IEEE
TPDS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fast.core import Strategy
from fast.strategies.catalogue import Preset

SOURCE = "Langer et al. 2020, table 2"


@dataclass(frozen=True)
class Technique:
    """One row of the table."""

    name: str
    words: str
    needs_large_balanced_data: bool
    """Whether each worker's share has to be large and like everybody's."""
    needs_balanced_model: bool
    rate_as_cluster_grows: str
    """Where the best learning rate goes: higher, lower or likely lower."""
    overlap_complexity: int
    hyperparameter_complexity: int
    resilience: int
    reproducibility_difficulty: int
    rate_hint: str
    """What to do about the learning rate, in a sentence."""
    offered: bool = True
    """Whether FAST has presets for it."""

    @property
    def decentral(self) -> bool:
        return "decentral" in self.name

    @property
    def central_and_synchronous(self) -> bool:
        return self.name == "DP+central+sync"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "needs_large_balanced_data": self.needs_large_balanced_data,
            "needs_balanced_model": self.needs_balanced_model,
            "opt_lr_as_cluster_grows": self.rate_as_cluster_grows,
            "overlap_complexity": self.overlap_complexity,
            "hyperparam_complexity": self.hyperparameter_complexity,
            "resilience": self.resilience,
            "reproducibility_difficulty": self.reproducibility_difficulty,
            "offered": self.offered,
        }


_TOGETHER = (
    "Scale the learning rate with the number of workers, with a warm-up: a step sees that many batches."
)
_LATE = "Divide the learning rate by the mean staleness, or take a staleness correction."
_LOCAL = (
    "Keep the learning rate of one worker, or lower it a little: replicas go their own way between exchanges."
)

_ROWS = (
    Technique("MP", "model parallelism", False, True, "higher", 1, 3, 1, 0, _TOGETHER, offered=False),
    Technique("MP+pipeline", "a pipeline through the model", False, True, "lower", 2, 4, 2, 2, _LATE, offered=False),
    Technique("DP+central+sync", "one model for all, in step", False, False, "higher", 1, 1, 1, 1, _TOGETHER),
    Technique("DP+central+async", "one model for all, at any time", True, False, "lower", 3, 2, 3, 3, _LATE),
    Technique("DP+decentral+sync", "a replica each, in step", True, False, "likely lower", 1, 2, 2, 1, _LOCAL),
    Technique("DP+decentral+async", "a replica each, at any time", True, False, "lower", 2, 3, 3, 3, _LOCAL),
)  # fmt: skip

TECHNIQUES: Mapping[str, Technique] = MappingProxyType({technique.name: technique for technique in _ROWS})
"""By name, in the order of the table."""


def technique_of(preset: Preset, strategy: Strategy) -> Technique:
    """Where a call belongs: by the preset's place in the taxonomy, and by whether this call of it waits.

    Throwing late gradients away counts as synchronous: no update is ever stale. A bounded delay counts as
    asynchronous.
    """
    together = strategy.synchronous or strategy.never_stale
    return TECHNIQUES[f"DP+{preset.place.optimization}+{'sync' if together else 'async'}"]
