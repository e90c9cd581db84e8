"""`fast.rules`: every merge rule by the name that the command line and the papers use.

A rule makes one update of several: `rule(own, weight, arrived)`, in `torus`, `allreduce`, and on servers that wait
for several pushes. `mean` and `sum_` (on the command line `sum`) trust everybody; the others are called with what
they are to stand, such as `krum(hostile=1)`. A function of your own has the same shape.
"""

from fast.parts.merge import RULES, Arrived, Rule, mean, sum_
from fast.parts.robust import ROBUST, Krum, Median, MultiKrum, NormClip, TrimmedMean
from fast.parts.voting import Robust

median, trimmed_mean, krum, multi_krum, norm_clip = Median, TrimmedMean, Krum, MultiKrum, NormClip

__all__ = [
    "ROBUST",
    "RULES",
    "Arrived",
    "Robust",
    "Rule",
    "krum",
    "mean",
    "median",
    "multi_krum",
    "norm_clip",
    "sum_",
    "trimmed_mean",
]
