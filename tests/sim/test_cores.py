"""Who works on a host's cores, against a plain loop over time, and what is left behind by who dies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.core import Me, Strategy
from fast.sim import Cluster, Compute, Network
from fast.sim.cluster import Hosts, Work
from fast.sim.cores import Cores
from fast.sim.events import Events
from fast.strategies.presets import allreduce

from .problem import LeastSquares

PROBLEM = LeastSquares()
ONE_HOST = Network(float("inf"), 0.0, hosts=Hosts(None), inside=Network(float("inf"), 0.0))


class Passes(Strategy):
    """Says nothing."""

    async def step(self, me: Me) -> None:
        me.apply(me.gradient)


def computed_ms(
    strategy: Strategy, workers: int, steps: int, compute: Compute, work: Work
) -> list[tuple[int, float]]:
    """Who had computed a gradient, and when."""
    records = []
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(workers, steps),
        network=None,
        compute=None,
        cluster=Cluster(compute, ONE_HOST, work),
        observers=[records.append],
    )
    simulation.run()
    return [(r.who, r.at_ns / 1e6) for r in records if type(r).__name__ == "Computed"]


class Job:
    """A participant that works and sleeps in turns, driven by hand. It notes when it wanted to work and when it did."""

    def __init__(self, who: int, plan: list[tuple[int, int]], cores: Cores, events: Events) -> None:
        self.who, self.cores, self.events, self.plan = who, cores, events, list(plan)
        self.waited: list[range] = []
        self.worked: list[range] = []

    def next(self) -> None:
        if self.plan:
            self.left, self.sleep = self.plan.pop(0)
            self.want()

    def want(self) -> None:
        self.since = self.events.now_ns
        if self.cores.take(self.who, self.work):
            self.work()

    def work(self) -> None:
        now = self.events.now_ns
        stint = self.cores.stint_ns(self.who, self.left)
        self.waited.append(range(self.since, now))
        self.worked.append(range(now, now + stint))
        self.events.at(now + stint, lambda: self.done(stint))

    def done(self, stint: int) -> None:
        self.cores.worked(self.who, stint)
        self.left -= stint
        if self.left:
            self.want()
            return
        self.cores.rests(self.who)
        self.events.at(self.events.now_ns + self.sleep, self.next)


plans = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4), min_size=1, max_size=5
)


@given(plans, st.integers(1, 3), st.integers(1, 6))
def test_no_core_is_idle_while_somebody_waits_and_none_is_used_twice(plans, many, slice_ns):
    events = Events()
    cores = Cores(Work(cores=many, slice_s=slice_ns * 1e-9), ONE_HOST, events)
    jobs = [Job(who, plan, cores, events) for who, plan in enumerate(plans)]
    for job in jobs:
        job.next()
    while events:
        events.run_next()
    assert [sum(map(len, job.worked)) for job in jobs] == [sum(work for work, _ in plan) for plan in plans]
    for moment in range(events.now_ns):
        at_work = sum(any(moment in each for each in job.worked) for job in jobs)
        waiting = sum(any(moment in each for each in job.waited) for job in jobs)
        assert at_work == many if waiting else at_work <= many


def test_who_goes_on_working_keeps_its_core():
    """A mean lets three workers go at once, on one core: each applies (1 ms) and computes (2 ms) before the next
    one does."""
    work = Work(apply_s=1e-3, cores=1, slice_s=1.0, means=((3, 1, 0.0), (3, 10_000, 0.0)))
    found = computed_ms(allreduce(), 3, 2, Compute(2e-3), work)
    assert found == [(0, 2.0), (1, 4.0), (2, 6.0), (0, 9.0), (1, 12.0), (2, 15.0)]


def test_a_pace_begins_when_a_worker_gets_to_work():
    """The same, padded to 10 ms: who is woken last begins last, and everybody else waits for that one."""
    work = Work(apply_s=1e-3, cores=1, slice_s=1.0, means=((3, 1, 0.0), (3, 10_000, 0.0)))
    found = computed_ms(allreduce(), 3, 2, Compute(2e-3, pace_s=10e-3), work)
    assert found == [(0, 10.0), (1, 12.0), (2, 14.0), (0, 25.0), (1, 28.0), (2, 31.0)]


@pytest.mark.parametrize("at_ms", [1, 5])
def test_who_dies_gives_its_core_back(at_ms):
    """Worker 0 dies while it computes, worker 1 while it waits for the core: the third goes on all the same."""
    records = []
    simulation = PROBLEM.simulation(
        Passes(),
        PROBLEM.batches(3, 2),
        network=None,
        compute=None,
        cluster=Cluster(Compute(2e-3), ONE_HOST, Work(cores=1, slice_s=1.0)),
        observers=[records.append],
    )
    dies = 0 if at_ms == 1 else 1
    simulation.at(at_ms * 1_000_000, lambda: simulation.kill(dies))
    simulation.run()
    done = {who: sum(type(r).__name__ == "Computed" and r.who == who for r in records) for who in range(3)}
    assert done == ({0: 0, 1: 2, 2: 2} if at_ms == 1 else {0: 2, 1: 0, 2: 2})


def test_hosts_have_cores_of_their_own():
    two = replace(ONE_HOST, hosts=Hosts(1))
    events = Events()
    cores = Cores(Work(cores=1), two, events)
    assert cores.take(0, lambda: None) and cores.take(1, lambda: None)
    one = Cores(Work(cores=1), ONE_HOST, events)
    assert one.take(0, lambda: None) and not one.take(1, lambda: None)
    assert one.crowd(2) == 3.0 and one.take(0, lambda: None)


class Echo(Strategy):
    """Worker 0 asks worker 1 and waits for the answer; everybody else just goes on."""

    async def step(self, me: Me) -> None:
        if me.id == 0:
            me.send(1, me.weights, tag="ask")
            await me.receive("answer", 1)
        elif me.id == 1:
            await me.receive("ask", 0)
            me.send(0, me.weights, tag="answer")


class MeanOfTwo(Strategy):
    """A mean of workers 0 and 1; everybody else just goes on."""

    async def step(self, me: Me) -> None:
        if me.id < 2:
            await me.mean(me.weights, among=(0, 1))


@pytest.mark.parametrize(
    ("strategy", "second_ms"), [(Echo(), 4.0), (MeanOfTwo(), 6.0)], ids=["letter", "mean"]
)
def test_who_is_woken_needs_a_core_before_it_goes_on(strategy, second_ms):
    """Three workers on one core compute 2 ms each. What worker 0 waits for is there after 4 ms, when worker 1 has
    computed; but then it is the third one's turn, which came before it. In a mean worker 1 waits as well."""
    work = Work(cores=1, slice_s=1.0, means=((2, 1, 0.0), (2, 10_000, 0.0)))
    cluster = Cluster(Compute(2e-3), ONE_HOST, work)
    assert stepped_ms(strategy, 3, cluster) == {0: 6.0, 1: second_ms, 2: 6.0}


def test_who_has_slept_needs_a_core_too():
    """Two workers on one core compute 6 ms, padded to 10 ms: the first one wakes while the second one computes."""
    found = computed_ms(Passes(), 2, 1, Compute(6e-3, pace_s=10e-3), Work(cores=1, slice_s=1.0))
    assert found == [(0, 12.0), (1, 16.0)]


class Tidying(Strategy):
    """A server that first computes something of its own in every turn, and then looks who has asked."""

    def servers(self, workers: int) -> int:
        return 1

    async def step(self, me: Me) -> None:
        await me.ask(me.servers[0], me.gradient, "ask")

    async def serve(self, me: Me) -> None:
        me.weights.mul_(1.0)
        for letter in me.letters("ask"):
            me.send(letter.sender, me.weights, "ask")


def stepped_ms(strategy, workers, cluster):
    """By worker when its only step was over."""
    records = []
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(workers, 1),
        network=None,
        compute=None,
        cluster=cluster,
        observers=[records.append],
    )
    simulation.run()
    return {r.who: r.at_ns / 1e6 for r in records if type(r).__name__ == "Stepped"}


def test_what_comes_while_a_server_is_at_work_is_seen_afterwards():
    """It works for 5 ms, the letter comes after 2 ms: it is answered after the turn that follows."""
    cluster = Cluster(Compute(2e-3), ONE_HOST, Work(op_s=5e-3))
    assert stepped_ms(Tidying(), 1, cluster) == {0: 10.0}


def test_going_on_after_a_wait_takes_time_and_nothing_else_does():
    """Worker 1, which finds the letter when it comes, doesn't wait; worker 0 waits for the answer."""
    cluster = Cluster(Compute(2e-3, workers_s={1: 4e-3}), ONE_HOST, Work(wake_s=1e-3))
    assert stepped_ms(Echo(), 2, cluster) == {0: 5.0, 1: 4.0}


class Gathering(Strategy):
    """Worker 0 needs a letter of everybody else."""

    async def step(self, me: Me) -> None:
        if me.id:
            me.send(0, me.gradient, "here")
        else:
            await me.gather("here", (1, 2))


@pytest.mark.parametrize(
    ("first_ms", "second_ms", "over_ms"),
    [
        (2, 5, 6),  # the first letter is looked at while the second one is awaited
        (2, 2, 3),  # so it is if both come at the same time: only the last one ends the wait
        (0.5, 5, 7),  # what was there before is read when it is needed, like the last one
    ],
)
def test_letters_that_come_while_others_are_awaited_are_read_meanwhile(first_ms, second_ms, over_ms):
    compute = Compute(1e-3, workers_s={1: first_ms * 1e-3, 2: second_ms * 1e-3})
    cluster = Cluster(compute, ONE_HOST, Work(read_s=1e-3))
    assert stepped_ms(Gathering(), 3, cluster)[0] == over_ms
