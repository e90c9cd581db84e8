"""What strategies are configured with: topologies and merge rules.

Job: small pure parts that a preset puts together.
May import: view, errors.
Never: keeps state of its own, sends anything, or knows which strategy uses it.
"""

from fast.parts.merge import RULES, Rule, mean, sum_
from fast.parts.topology import TOPOLOGIES, Channels, Full, Ring, Topology, Torus

__all__ = ["RULES", "TOPOLOGIES", "Channels", "Full", "Ring", "Rule", "Topology", "Torus", "mean", "sum_"]
