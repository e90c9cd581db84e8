"""The simulated world: virtual time, models of computing and of links, real gradients.

Job: run a strategy's programs on any number of workers in one process, the same way every time.
May import: runtime (how generators are seeded, what a sender holds back), core, parts, membership, collectives, wire,
view, trace, errors.
Never: reads the real clock, starts a process or a thread, or draws from a stream without a seed.
"""

from fast.sim.checkers import TraceHash
from fast.sim.cluster import (
    NETWORKS,
    Cluster,
    Compute,
    ComputeModel,
    Network,
    Straggler,
    parse_duration,
    parse_network,
    parse_straggler,
)
from fast.sim.gradients import Gradients
from fast.sim.interference import Fate, Interference
from fast.sim.participant import Participant, SimWorker
from fast.sim.simulation import Simulation
from fast.sim.world import SimWorld

__all__ = [
    "NETWORKS",
    "Cluster",
    "Compute",
    "ComputeModel",
    "Fate",
    "Gradients",
    "Interference",
    "Network",
    "Participant",
    "SimWorker",
    "SimWorld",
    "Simulation",
    "Straggler",
    "TraceHash",
    "parse_duration",
    "parse_network",
    "parse_straggler",
]
