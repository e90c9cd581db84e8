"""Topologies: who hears whom. Pure functions of a worker's place, the view and the round.

Where channels go both ways, mixing weights are those of Metropolis and Hastings, 1 / (1 + the
larger degree of the two ends): symmetric and doubly stochastic on any graph, 1/3 on a ring, 1/5 on
a torus. A directed topology has shares for push-sum instead: who tells n others keeps 1 / (n + 1)
of itself and gives as much to each of them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from fast.parts.topology.attached import Channels, Graph
from fast.parts.topology.base import Topology
from fast.parts.topology.powers import Exponential, Hypercube
from fast.parts.topology.random_regular import RandomRegular
from fast.parts.topology.ready import Bipartite, Full, Ring, Star, Tree
from fast.parts.topology.rectangles import Grid, Torus
from fast.parts.topology.rotating import Rotating
from fast.parts.topology.shuffled import Shuffled
from fast.parts.topology.spectrum import Spectrum, mixing_matrix, spectrum_of

TOPOLOGIES: Mapping[str, type[Topology]] = MappingProxyType(
    {
        "ring": Ring,
        "torus": Torus,
        "grid": Grid,
        "star": Star,
        "tree": Tree,
        "full": Full,
        "hypercube": Hypercube,
        "exponential": Exponential,
        "random_regular": RandomRegular,
        "bipartite": Bipartite,
        "shuffled": Shuffled,
        "channels": Channels,
        "rotating": Rotating,
    }
)
"""By the name that the command line uses."""

__all__ = [
    "TOPOLOGIES",
    "Bipartite",
    "Channels",
    "Exponential",
    "Full",
    "Graph",
    "Grid",
    "Hypercube",
    "RandomRegular",
    "Ring",
    "Rotating",
    "Shuffled",
    "Spectrum",
    "Star",
    "Topology",
    "Torus",
    "Tree",
    "mixing_matrix",
    "spectrum_of",
]
