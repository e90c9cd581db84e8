"""HOGWILD! in virtual time: the order of reads and writes is known, so every value can be told beforehand."""

import heapq

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.sim import NETWORKS, Compute, Network, Simulation, SimWorker
from fast.sim.checkers import Checkers
from fast.sim.cluster import Hosts
from fast.strategies.presets import hogwild
from fast.trace import Included, Sent

from .problem import LeastSquares, PlainReplica, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.05
every_way = pytest.mark.parametrize("strategy", [hogwild(), hogwild(atomic=True)], ids=repr)


def serial(batches, compute, seed):
    """Steps end in the order of their times, each with the gradient of what its worker read when its last
    one ended. Returns the weights, and for each step (worker, how many others ended in between)."""
    shared, read, made = PROBLEM.start.clone(), [PROBLEM.start.clone() for _ in batches], [0] * len(batches)
    since, ends, late = [0] * len(batches), [], []
    for worker in range(len(batches)):
        heapq.heappush(ends, (compute.duration_ns(worker, len(batches), 0, seed), worker))
    while ends:
        now, worker = heapq.heappop(ends)
        before = read[worker]
        after = before - LR * PROBLEM.gradient(before, batches[worker][made[worker]])
        shared = torch.where(shared == before, after, shared + (after - before))
        late.append((worker, sum(made) - made[worker] - since[worker]))
        made[worker] += 1
        read[worker], since[worker] = shared.clone(), sum(made) - made[worker]
        if made[worker] < len(batches[worker]):
            again = now + compute.duration_ns(worker, len(batches), made[worker], seed)
            heapq.heappush(ends, (again, worker))
    return shared, late


@every_way
@pytest.mark.parametrize("seed", range(5))
def test_values_and_staleness_are_those_of_a_plain_loop(strategy, seed):
    """Where memory is infinitely fast, every read and write is complete."""
    batches, late = PROBLEM.batches(4, [9, 5, 12, 8]), []

    def watch(record):
        if isinstance(record, Included) and record.tag == "weights":
            late.append((record.who, record.staleness))

    simulation = PROBLEM.simulation(
        strategy, batches, lr=LR, compute=RandomCompute(), seed=seed, observers=[watch]
    )
    simulation.run()
    expected, expected_late = serial(batches, RandomCompute(), seed)
    assert equal(weights(simulation), expected.expand(4, -1))
    assert late == expected_late
    assert max(staleness for _, staleness in late) > 0


@every_way
def test_one_worker_is_serial_training_to_the_bit(strategy):
    batches = PROBLEM.batches(1, 20)
    simulation = PROBLEM.simulation(strategy, batches, lr=LR, momentum=0.9, network=Network(1e6, 1e-3))
    simulation.run()
    alone = PlainReplica(PROBLEM.start, lr=LR, momentum=0.9)
    for batch in batches[0]:
        alone.apply(PROBLEM.gradient(alone.weights, batch), None)
    assert equal(weights(simulation)[0], alone.weights)


# Memory that takes time


def simulate(strategy, gradients, steps, *, size=16, seed=0, lr=1.0, observers=(), **options):
    """Worker i's gradient is gradients[i](its weights); all begin with zeros."""

    def worker(gradient):
        replica = PlainReplica(torch.zeros(size, dtype=torch.float64), lr=lr)

        def compute(batch):
            replica.gradient.copy_(gradient(replica.weights))
            replica.samples = 1

        return SimWorker(replica, iter(range(steps)), compute)

    workers = [worker(gradient) for gradient in gradients]
    options = {"compute": RandomCompute(), "network": Network(1e4, 1e-4), **options}
    return Simulation(strategy, workers, seed=seed, observers=observers, **options)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_different_supports_give_the_same_bits_in_any_order(seed, atomic):
    """Worker i has the components i, i + 3, i + 6, ...: whatever the timing, each descends as if alone."""
    size, goal = 17, torch.linspace(-1, 2, 17, dtype=torch.float64)

    def only(worker):
        own = torch.arange(size) % 3 == worker
        return lambda w: torch.where(own, 0.3 * (w - goal), 0.0)

    network = random_network(3, seed)
    simulation = simulate(
        hogwild(atomic=atomic), [only(i) for i in range(3)], 12, size=size, seed=seed, network=network
    )
    simulation.run()
    w = torch.zeros(size, dtype=torch.float64)
    for _ in range(12):
        w = w - 0.3 * (w - goal)
    assert equal(weights(simulation), w.expand(3, -1))


def counted(strategy, seed=0):
    """Four workers add 1 to every component in each of their 25 steps."""
    simulation = simulate(strategy, [lambda w: -torch.ones_like(w)] * 4, 25, seed=seed)
    simulation.run()
    return weights(simulation)


@pytest.mark.parametrize("seed", range(5))
def test_atomic_additions_are_conserved_and_plain_ones_get_lost(seed):
    assert counted(hogwild(atomic=True), seed).unique().tolist() == [100.0]
    plain = counted(hogwild(), seed)
    assert bool((plain < 100).any()), "the negative control: writes that cross must cost something"
    assert bool((plain <= 100).all()) and bool((plain > 25).all())
    assert equal(plain, plain[:1].expand(4, -1)), "one memory, whatever is left in it"


def test_it_descends_although_reads_are_torn():
    batches = PROBLEM.batches(4, 200)
    simulation = PROBLEM.simulation(
        hogwild(), batches, lr=0.01, network=Network(1e5, 1e-5), compute=RandomCompute(), seed=1
    )
    simulation.run()
    optimum = torch.linalg.lstsq(PROBLEM.a, PROBLEM.b).solution
    start, end = (float((w - optimum).norm()) for w in (PROBLEM.start, weights(simulation)[0]))
    assert end < 0.5 * start


@every_way
def test_all_promises_are_watched(strategy):
    sent, checkers = [], Checkers(strategy)
    simulation = simulate(
        strategy, [lambda w: 0.1 * (w - 1)] * 5, 20,
        observers=[checkers, lambda record: sent.append(record) if isinstance(record, Sent) else None],
    )  # fmt: skip
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    (told,) = sent
    assert (told.who, told.to, told.tag) == (0, (1, 2, 3, 4), "there"), "all else goes through the memory"
    assert close(weights(simulation), torch.ones(5, 16, dtype=torch.float64), 0.05)


# Where it can't be


@pytest.mark.parametrize(
    "network",
    [
        NETWORKS["1gbit"],
        Network(1e9, 1e-6, hosts=Hosts(each=2)),
        Network(1e9, 1e-6, hosts=Hosts(of=(0, 1, 0))),
    ],
)
def test_it_is_refused_on_several_hosts(network):
    with pytest.raises(UsageError, match=r"share one host's memory, and 3 of them are on [23] hosts"):
        PROBLEM.simulation(hogwild(), PROBLEM.batches(3, 2), network=network)


def test_several_workers_of_one_host_are_welcome():
    network = Network(1e9, 1e-6, shared=True, hosts=Hosts(each=None))
    simulation = PROBLEM.simulation(hogwild(), PROBLEM.batches(3, 2), network=network, compute=Compute())
    simulation.run()
    assert [p.me.steps for p in simulation.workers] == [2, 2, 2]


def test_it_wants_to_know_whether_changes_are_atomic():
    with pytest.raises(UsageError, match="True for additions"):
        hogwild(atomic=1)
