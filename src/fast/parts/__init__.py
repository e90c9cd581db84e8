"""What strategies are configured with: topologies, codecs, merge rules, corrections, outer optimizers.

Job: small pure parts that a preset puts together.
May import: view, errors.
Never: keeps state of its own, sends anything, or knows which strategy uses it.
"""

from fast.parts.lateness import LATE, ByAge, MomentumCorrected
from fast.parts.merge import RULES, Rule, mean, sum_
from fast.parts.robust import ROBUST, Krum, Median, MultiKrum, NormClip, TrimmedMean
from fast.parts.topology import (
    TOPOLOGIES,
    Bipartite,
    Channels,
    Exponential,
    Full,
    Graph,
    Grid,
    Hypercube,
    RandomRegular,
    Ring,
    Rotating,
    Shuffled,
    Star,
    Topology,
    Torus,
    Tree,
)

__all__ = [
    "LATE",
    "ROBUST",
    "RULES",
    "TOPOLOGIES",
    "Bipartite",
    "ByAge",
    "Channels",
    "Exponential",
    "Full",
    "Graph",
    "Grid",
    "Hypercube",
    "Krum",
    "Median",
    "MomentumCorrected",
    "MultiKrum",
    "NormClip",
    "RandomRegular",
    "Ring",
    "Rotating",
    "Rule",
    "Shuffled",
    "Star",
    "Topology",
    "Torus",
    "Tree",
    "TrimmedMean",
    "mean",
    "sum_",
]
