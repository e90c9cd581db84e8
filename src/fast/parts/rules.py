"""`fast.rules`: every merge rule by the name that the command line and the papers use.

A rule makes one update of several: `rule(own, weight, arrived)`, in `torus`, `allreduce`, and on servers that wait
for several pushes. `mean` and `sum_` (on the command line `sum`) trust everybody; so do `by_age()` and
`momentum_corrected(0.9)`, which look at how late an update is. The others are called with what they are to stand, such
as `krum(hostile=1)`. A function of your own has the same shape; on the command line it is `file.py:function`.
"""

from fast.parts.lateness import LATE, ByAge, MomentumCorrected
from fast.parts.merge import RULES, Arrived, Rule, mean, sum_
from fast.parts.robust import ROBUST, Krum, Median, MultiKrum, NormClip, TrimmedMean
from fast.parts.voting import Robust

by_age, momentum_corrected = ByAge, MomentumCorrected
median, trimmed_mean, krum, multi_krum, norm_clip = Median, TrimmedMean, Krum, MultiKrum, NormClip

__all__ = [
    "LATE",
    "ROBUST",
    "RULES",
    "Arrived",
    "Robust",
    "Rule",
    "by_age",
    "krum",
    "mean",
    "median",
    "momentum_corrected",
    "multi_krum",
    "norm_clip",
    "sum_",
    "trimmed_mean",
]
