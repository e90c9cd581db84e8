"""How long an exchange takes in the simulator: what the closed forms are checked against.

Workers compute for no time at all and only the network counts, so the time of a step is that of its exchange. The
strategy's own program moves letters of the model's size, without values.
"""

from __future__ import annotations

import math
from itertools import repeat

from fast.core import Strategy
from fast.lab.sizes import Sizes
from fast.lab.tally import Tally
from fast.sim import Cluster, Compute, Network, Simulation, SimWorker
from fast.sim.cluster import Work


def exchange_s(
    strategy: Strategy,
    sizes: Sizes,
    *,
    workers: int,
    network: Network,
    update_bytes_per_s: float = math.inf,
    steps: int = 1,
) -> float:
    """Virtual seconds per step until the last worker has ended its last one; all begin at once.

    The optimizer's step takes its time where it runs, on workers or on servers. Adding takes none.
    """
    sizes.check(strategy, workers)
    tally, replicas = Tally(workers), [sizes.replica() for _ in range(workers)]
    Simulation(
        strategy,
        [SimWorker(replica, repeat(sizes.samples, steps), replica.compute) for replica in replicas],
        server_replicas=sizes.servers(strategy, workers),
        cluster=Cluster(Compute(0.0), network, Work(apply_rate=update_bytes_per_s)),
        observers=[tally],
        seed_torch=False,
    ).run()
    return tally.last_step_ns / 1e9 / steps
