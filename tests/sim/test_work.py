"""Local work: what it costs, and who waits for a core."""

import math

import pytest

from fast.core.world import Labour
from fast.errors import UsageError
from fast.sim import Cluster, Compute, Network
from fast.sim.cluster import Hosts, Work


def test_nothing_takes_time_unless_told():
    assert all(Work().cost_ns(on, 10**9, server) == 0 for on in Labour for server in (False, True))
    assert Work().free and not Work(turn_s=1e-6).free and not Work(read_rate=1e9).free
    assert not Work(servers=Work(apply_s=1e-6)).free and not Work(cores=2).free


def test_costs():
    work = Work(1e-6, 2e-6, 1e9, 3e-6, 2e9, 4e-6, 5e-6, 4e9, 6e-6, 5e9, servers=Work(read_s=7e-6))
    assert work.cost_ns(Labour.TURN, 1000, server=False) == 1000
    assert work.cost_ns(Labour.APPLY, 1000, server=False) == 2000 + 1000
    assert work.cost_ns(Labour.SEND, 1000, server=False) == 3000 + 500
    assert work.cost_ns(Labour.SEND, 1000, server=False, receivers=3) == 3000 + 500 + 2 * 4000
    assert work.cost_ns(Labour.READ, 1000, server=False) == 5000 + 250
    assert work.cost_ns(Labour.MERGE, 1000, server=False) == 6000 + 200
    assert work.cost_ns(Labour.READ, 1000, server=True) == 7000
    assert work.cost_ns(Labour.TURN, 1000, server=True) == 0
    assert Work(turn_s=1e-6).cost_ns(Labour.TURN, 0, server=True) == 1000
    assert Work(servers=Work(wake_s=1e-6)).cost_ns(Labour.WAKE, 1000, server=True) == 1000
    assert not Work(servers=Work(wake_s=1e-6)).free and Work(wake_s=1e-6).slowed(2.0).wake_s == 2e-6


def test_means_lie_between_those_that_were_measured():
    work = Work(means=((4, 1000, 4e-6), (2, 1000, 1e-6), (2, 3000, 2e-6), (4, 3000, 8e-6)))
    assert work.mean_ns(2, 1000) == 1000
    assert work.mean_ns(2, 2000) == 1500
    assert work.mean_ns(2, 10) == 1000  # never less than the smallest
    assert work.mean_ns(2, 6000) == 4000  # in proportion beyond the largest
    assert work.mean_ns(3, 1000) == 2500
    assert work.mean_ns(3, 2000) == (1500 + 6000) // 2
    assert work.mean_ns(8, 1000) == 8000
    assert Work().mean_ns(4, 1000) == 0


def test_crowded_hosts_are_slower():
    work = Work(1e-6, apply_rate=1e9, cores=2, crowding=((4, 1.2), (8, 2.0)), servers=Work(read_s=1e-6))
    assert [work.crowd_factor(many) for many in (1, 2, 4, 6, 8, 99)] == [1.0, 1.0, 1.2, 1.6, 2.0, 2.0]
    slowed = work.slowed(2.0)
    assert slowed.cost_ns(Labour.TURN, 0, server=False) == 2000
    assert slowed.cost_ns(Labour.APPLY, 1000, server=False) == 2000
    assert slowed.cost_ns(Labour.READ, 0, server=True) == 2000
    on_two = Network(1.0, 0.0, hosts=Hosts(4))
    cluster = Cluster(Compute(0.01), on_two, work)
    assert cluster.placed(8).compute.duration_ns(0, 8, 0, 0) == 12_000_000
    assert cluster.placed(2).compute.duration_ns(0, 2, 0, 0) == 10_000_000


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Work(turn_s=-1), "times of work"),
        (lambda: Work(read_s=math.inf), "times of work"),
        (lambda: Work(apply_rate=0), "rates above 0"),
        (lambda: Work(means=((1, 10, 1.0),)), "measured means"),
        (lambda: Work(means=((2, 10, math.nan),)), "measured means"),
        (lambda: Work(cores=0), "0 cores"),
        (lambda: Work(servers=Work(cores=1)), "the hosts'"),
    ],
)
def test_impossible_work(make, why):
    with pytest.raises(UsageError, match=why):
        make()
