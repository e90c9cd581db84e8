"""Whole simulations on a cluster: their times, worked out by hand."""

from dataclasses import replace

import pytest
import torch

from fast.codecs import power_sgd
from fast.core import OTHER, Strategy, Tag
from fast.sim import Cluster, Compute, Network
from fast.sim.cluster import Hosts, Work
from fast.strategies.presets import allreduce

from .problem import DIM, LeastSquares, equal, weights

PROBLEM = LeastSquares()
HEADER, PAYLOAD = 256, DIM * 8
LETTER = HEADER + PAYLOAD
WEIGHTS = 192
"""The payload, padded to a multiple of 64 bytes."""
SHARED = Network(1e9, 1e-6, shared=True)
"""A byte takes a nanosecond."""


class Tell(Strategy):
    """Everybody but worker 0 tells worker 0 once; it waits for all of them."""

    tags = (Tag("tell", OTHER),)

    async def step(self, me):
        if me.id:
            me.send(0, me.weights, tag="tell")
        else:
            await me.gather("tell", range(1, len(me.workers)))


class Shout(Strategy):
    """Worker 0 tells everybody once; everybody waits for it."""

    tags = (Tag("tell", OTHER),)

    async def step(self, me):
        if me.id == 0:
            me.send(me.workers[1:], me.weights, tag="tell")
        else:
            await me.receive("tell", 0)


def ended_ns(strategy: Strategy, workers: int, cluster: Cluster, steps: int = 1) -> list[int]:
    """When each worker has done its last step."""
    ended = [0] * workers

    def on_step(me, now_ns):
        ended[me.id] = now_ns

    PROBLEM.simulation(strategy, PROBLEM.batches(workers, steps), cluster=cluster).run(on_step=on_step)
    return ended


def test_who_is_told_by_all_at_once_receives_one_after_another():
    plain = Cluster(Compute(1e-6), replace(SHARED, shared=False))
    assert ended_ns(Tell(), 9, plain)[0] == 1000 + LETTER + 1000
    shared = Cluster(Compute(1e-6), SHARED)
    assert ended_ns(Tell(), 9, shared)[0] == 1000 + 8 * LETTER + 1000


def test_who_tells_all_at_once_sends_one_after_another():
    shared = Cluster(Compute(1e-6), SHARED)
    assert ended_ns(Shout(), 5, shared) == [1000, *(1000 + number * LETTER + 1000 for number in range(1, 5))]
    inside = Cluster(Compute(1e-6), replace(SHARED, hosts=Hosts(2), inside=Network(1e9, 0.0)))
    assert ended_ns(Shout(), 3, inside) == [1000, 1000 + LETTER, 1000 + LETTER + 1000]


def test_hosts_with_few_cores_compute_in_turn():
    cluster = Cluster(
        Compute(1e-6), Network(float("inf"), 0.0, hosts=Hosts(None), inside=Network(float("inf"), 0.0))
    )
    free = ended_ns(Tell(), 4, cluster)
    assert free == [1000] * 4
    crowded = ended_ns(Tell(), 4, replace(cluster, work=Work(cores=2)))
    assert sorted(crowded) == [1000, 2000, 2000, 2000]  # worker 0 has computed at 1000 and waits for the rest
    paced = replace(cluster, compute=Compute(1e-6, pace_s=5e-6), work=Work(cores=2))
    assert ended_ns(Tell(), 4, paced) == [
        6000,
        5000,
        6000,
        6000,
    ]  # who sleeps needs no core; 0 hears from all


def test_local_work_takes_its_time():
    """Alone: computing, applying, and the turn."""
    work = Work(turn_s=1e-7, apply_s=2e-7, apply_rate=1e9)
    cluster = Cluster(Compute(1e-6), SHARED, work)
    assert ended_ns(allreduce(), 1, cluster, steps=3) == [3 * (1000 + 100 + 200 + WEIGHTS)]


def test_a_mean_by_shared_memory_takes_what_was_measured():
    cluster = Cluster(Compute(1e-6), replace(SHARED, hosts=Hosts(None)), Work(means=((4, 1000, 5e-6),)))
    assert ended_ns(allreduce(), 4, cluster, steps=2) == [2 * (1000 + 5000)] * 4


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_steps_take_what_the_model_says(spread):
    compute = Compute(1e-3, spread=spread)
    cluster = Cluster(compute, Network(float("inf"), 0.0))
    slowest = sum(max(compute.duration_ns(worker, 3, step, 0) for worker in range(3)) for step in range(5))
    assert ended_ns(allreduce(), 3, cluster, steps=5) == [slowest] * 3


def test_values_do_not_depend_on_the_cluster():
    """Of a synchronous strategy: time is one thing, what is computed another. Only its hosts say in which order sums
    are made, unless that is said."""

    def trained(cluster: Cluster) -> torch.Tensor:
        simulation = PROBLEM.simulation(
            allreduce(), PROBLEM.batches(4, 6), cluster=cluster, groups=((0, 1), (2, 3))
        )
        simulation.run()
        return simulation.workers[0].me.weights

    crowded = Cluster(Compute(1e-3, spread=0.4), replace(SHARED, hosts=Hosts(2)), Work(turn_s=1e-5, cores=1))
    assert torch.equal(trained(Cluster()), trained(crowded))


def test_all_choose_the_same_way_to_add_although_their_links_differ():
    """Workers 2 and 3 share a host, so their nearest peer is not as far as that of the others."""
    far = Network(1e8, 1e-3, hosts=Hosts(2), inside=Network(1e8, 0.0))
    ends = []
    for network in (far, Network(1e8, 1e-3)):
        simulated = PROBLEM.simulation(
            allreduce(codec=power_sgd(1)),
            PROBLEM.batches(4, 3),
            cluster=Cluster(Compute(1e-3), network),
            groups=(),
        )
        simulated.run()
        ends.append(weights(simulated))
    assert equal(*ends)
