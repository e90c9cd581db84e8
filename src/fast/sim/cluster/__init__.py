"""Models of machines and networks: how long a step takes, how letters travel, what local work costs."""

from fast.sim.cluster.cluster import Cluster
from fast.sim.cluster.compute import Compute, ComputeModel, Speed, Straggler, parse_speeds, parse_straggler
from fast.sim.cluster.file import load_cluster, read_cluster, to_toml
from fast.sim.cluster.hosts import Hosts, Racks
from fast.sim.cluster.network import NETWORKS, Network, parse_network
from fast.sim.cluster.options import cluster_of, parse_hosts, parse_racks
from fast.sim.cluster.traffic import Traffic
from fast.sim.cluster.units import NS_PER_S, parse_duration
from fast.sim.cluster.work import Work

__all__ = [
    "NETWORKS",
    "NS_PER_S",
    "Cluster",
    "Compute",
    "ComputeModel",
    "Hosts",
    "Network",
    "Racks",
    "Speed",
    "Straggler",
    "Traffic",
    "Work",
    "cluster_of",
    "load_cluster",
    "parse_duration",
    "parse_hosts",
    "parse_network",
    "parse_racks",
    "parse_speeds",
    "parse_straggler",
    "read_cluster",
    "to_toml",
]
