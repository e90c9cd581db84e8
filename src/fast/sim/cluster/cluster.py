"""A cluster: how fast its workers compute, what connects them, and what local work costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from fast.sim.cluster.compute import Compute, ComputeModel
from fast.sim.cluster.network import NETWORKS, Network
from fast.sim.cluster.words import counted, words_of
from fast.sim.cluster.work import Work


def _usual_network() -> Network:
    return NETWORKS["1gbit"]


@dataclass(frozen=True)
class Cluster:
    """All models of a simulated machine room. Plain values: what changes is in Traffic and Cores."""

    compute: ComputeModel = field(default_factory=Compute)
    network: Network = field(default_factory=_usual_network)
    work: Work = field(default_factory=Work)

    @staticmethod
    def of(
        cluster: Cluster | None = None,
        *,
        network: Network | None = None,
        compute: ComputeModel | None = None,
        work: Work | None = None,
    ) -> Cluster:
        """A cluster (the usual one, if None), with these models instead of its own."""
        usual = cluster or Cluster()
        return Cluster(compute or usual.compute, network or usual.network, work or usual.work)

    def placed(self, workers: int, servers: int = 0, *, colocated: bool = False) -> Cluster:
        """The same for this number of workers, and of servers, who come after them (`colocated`: each on the
        host of a worker): where many share a host, all of them are slower."""
        network = self.network.placed(workers, colocated=colocated)
        crowd = max(Counter(map(network.host, range(workers + servers))).values(), default=1)
        factor = self.work.crowd_factor(crowd) if self.work.crowding else 1.0
        if factor == 1.0:
            return replace(self, network=network)
        compute = self.compute.slowed(factor) if isinstance(self.compute, Compute) else self.compute
        return Cluster(compute, network, replace(self.work.slowed(factor), crowding=()))

    def in_words(self, workers: int, servers: int = 0, colocated: int = 0) -> list[str]:
        """What is modelled, a line each; `colocated` are servers that stand on the hosts of workers."""
        first, *rest = words_of(self.compute, self.network.placed(workers), self.work, workers, servers)
        beside = [f"{counted(colocated, 'server')}, each on the host of a worker"] * bool(colocated)
        return [first, *beside, *rest]
