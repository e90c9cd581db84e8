"""A cluster on one machine, for tests and measurements between hosts.

Job: network namespaces that are hosts, a switch between them, rates, cuts, and a relay for delays and stalls.
May import: errors.
Never: touches the machine's own network, or leaves a namespace or a process behind.
"""

from fast.engine.namespaces.cluster import Cluster, available
from fast.engine.namespaces.owners import sweep
from fast.engine.namespaces.relay import Relay, Weather

__all__ = ["Cluster", "Relay", "Weather", "available", "sweep"]
