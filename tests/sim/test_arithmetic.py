"""A strategy's own arithmetic takes time, and so does waiting for a core."""

from __future__ import annotations

import pytest
import torch

from fast.core import Me, Strategy
from fast.sim import Cluster, Compute, Network
from fast.sim.arithmetic import Arithmetic
from fast.sim.cluster import Hosts, Work
from fast.sim.effort import Effort
from fast.strategies import presets
from fast.trace import Record, Turned

from .problem import DIM, LeastSquares

TENSOR = DIM * 8
"""Bytes of the weights."""
ONE_HOST = Network(float("inf"), 0.0, hosts=Hosts(None), inside=Network(float("inf"), 0.0))
PROBLEM = LeastSquares()


def turns(strategy: Strategy, work: Work, *, workers: int = 2, step_s: float = 1e-3) -> list[int]:
    """How long each turn took, on one host with this work."""
    records: list[Record] = []
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(workers, 3),
        network=None,
        compute=None,
        cluster=Cluster(Compute(step_s), ONE_HOST, work),
        observers=[records.append],
    )
    simulation.run()
    return [record.at_ns - record.began_ns for record in records if isinstance(record, Turned)]


def test_what_is_counted() -> None:
    counted: list[int] = []
    with Arithmetic(counted.append) as arithmetic:
        one, other = torch.zeros(10), torch.ones(10)
        counted.clear()
        one.add_(other)  # both are read, one is written again
        one * other  # a third one is written
        one[2:5].mul_(2.0)  # a view moves nothing
        one.view(2, 5)
        arithmetic.paused = True
        one.add_(other)
        arithmetic.paused = False
        one.zero_()
        torch.cat([one, other])
    one.add_(other)
    assert counted == [80, 120, 12, 40, 160]


class Passes(Strategy):
    """So many operations on two tensors of the weights' size, and a third one in an own step."""

    synchronous = True

    async def step(self, me: Me) -> None:
        for _ in range(3):
            me.gradient.add_(me.weights, alpha=0.0)
        me.apply(me.gradient)
        me.send(me.peers, me.weights, "letter")
        mean = await me.mean(me.weights, read_only=True)
        me.weights.copy_(mean)


def test_a_programs_operations_take_their_time_and_nothing_else_does() -> None:
    """Neither the optimizer nor what the world does for a send or a mean: those have costs of their own."""
    took = turns(Passes(), Work(op_s=1e-6, op_rate=1e9))
    assert took == [4 * (1000 + 2 * TENSOR)] * 6
    assert turns(Passes(), Work(turn_s=1e-6)) == [1000] * 6


def test_decentralized_mixing_counts_its_passes() -> None:
    """Zero, one add for each neighbour, a subtraction and an addition: 1 + 2 + 2 + 2 tensors, with two workers."""
    assert turns(presets.dpsgd(), Work(op_s=1e-6, op_rate=1e9)) == [4000 + 7 * TENSOR] * 6


@pytest.mark.parametrize(("slice_s", "ends"), [(1.0, [10, 20, 30]), (1e-3, [28, 29, 30])])
def test_cores_are_taken_in_turns(slice_s: float, ends: list[int]) -> None:
    """Three workers on one core compute 10 ms each: one after another, or a millisecond each in turn."""
    records: list[Record] = []
    work = Work(cores=1, slice_s=slice_s)
    simulation = PROBLEM.simulation(
        Passes(),
        PROBLEM.batches(3, 1),
        network=None,
        compute=None,
        cluster=Cluster(Compute(10e-3), ONE_HOST, work),
        observers=[records.append],
    )
    simulation.run()
    computed = [record.at_ns for record in records if type(record).__name__ == "Computed"]
    assert computed == [end * 1_000_000 for end in ends]


def test_a_sleeping_worker_needs_no_core() -> None:
    """Two workers on one core: 2 ms of computing each, padded to 10 ms. The second one begins when the first one
    sleeps, and nobody waits any longer."""
    records: list[Record] = []
    simulation = PROBLEM.simulation(
        Passes(),
        PROBLEM.batches(2, 1),
        network=None,
        compute=None,
        cluster=Cluster(Compute(2e-3, pace_s=10e-3), ONE_HOST, Work(cores=1)),
        observers=[records.append],
    )
    simulation.run()
    computed = [record.at_ns for record in records if type(record).__name__ == "Computed"]
    assert computed == [10_000_000, 12_000_000]


def test_work_after_a_sleep_takes_longer_until_the_caches_are_warm():
    """After 10 ms of sleep 4 ms are lost in all, spread over the next 8 ms of work; after 5 ms half of that."""
    work = Work(apply_s=1e-3, cold=((0.005, 0.002), (0.010, 0.004)), warm_s=0.008)
    effort, ms = Effort(work, server=False), 1_000_000
    assert effort.while_cold(2 * ms) == 2 * ms
    effort.slept(10 * ms)
    assert [effort.while_cold(2 * ms) for _ in range(5)] == [3 * ms] * 4 + [2 * ms]
    effort.slept(5 * ms)
    assert effort.while_cold(8 * ms) == 10 * ms
    effort.slept(60_000 * ms)
    assert effort.while_cold(100 * ms) == 104 * ms  # the longest that was measured is the most


def test_a_crowd_and_a_sleep_push_the_same_out_of_the_caches():
    """What a crowd makes a warm step of 8 ms longer, a sleep doesn't add again."""
    work = Work(apply_s=1e-3, cold=((0.005, 0.001), (0.010, 0.004)), warm_s=0.008)
    crowded = work.slowed(1.25)
    assert crowded.cold == ((0.005, 0.0), (0.010, 0.002)) and crowded.warm_s == 0.010
    assert crowded.apply_s == pytest.approx(1.25e-3)
    assert [extra for _, extra in work.slowed(2.0).cold] == [0.0, 0.0]


def test_a_mean_is_no_sleep():
    """Values move for 5 ms, after which 5 ms of sleep would cost 3 ms more: all members came at once, none does."""
    work = Work(apply_s=1e-3, means=((2, 1, 5e-3), (2, 10_000, 5e-3)), cold=((5e-3, 3e-3),), warm_s=1e-3)
    assert turns(presets.allreduce(), work) == [6_000_000] * 6
