"""Synchronous presets against plain loops."""

import pytest
import torch

from fast.parts import Channels, Full, Ring, Torus
from fast.sim import NETWORKS, Compute, parse_straggler
from fast.strategies.presets import allreduce, dpsgd, local_sgd, ssp
from fast.trace import Dropped, Included, Sent

from .problem import LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
SIZES = [1, 2, 3, 5]


def descend(w, v, g, lr=0.05, momentum=0.0):
    v = momentum * v + g
    return w - lr * v, v


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("size", SIZES)
def test_allreduce_is_one_worker_with_the_big_batch(size, momentum):
    batches = PROBLEM.batches(size, 15)
    simulation = PROBLEM.simulation(allreduce(), batches, momentum=momentum)
    simulation.run()
    w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    for step in range(15):
        big = tuple(row for own in batches for row in own[step])
        w, v = descend(w, v, PROBLEM.gradient(w, big), momentum=momentum)
    for row in weights(simulation):
        assert close(row, w)
    assert all(equal(row, weights(simulation)[0]) for row in weights(simulation))


def test_allreduce_weighs_by_samples():
    batches = [[(0, 1, 2, 3)] * 4, [(4,)] * 4]
    simulation = PROBLEM.simulation(allreduce(), batches)
    simulation.run()
    w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    for _ in range(4):
        w, v = descend(w, v, PROBLEM.gradient(w, (0, 1, 2, 3, 4)))
    assert close(weights(simulation)[0], w)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tau", [1, 4])
def test_local_sgd(size, tau):
    batches = PROBLEM.batches(size, 10)
    simulation = PROBLEM.simulation(local_sgd(tau=tau), batches, momentum=0.5)
    simulation.run()
    w, v = [PROBLEM.start] * size, [torch.zeros_like(PROBLEM.start)] * size
    for step in range(10):
        for i in range(size):
            w[i], v[i] = descend(w[i], v[i], PROBLEM.gradient(w[i], batches[i][step]), momentum=0.5)
        if (step + 1) % tau == 0:
            w = [sum(w) / size] * size
    assert close(weights(simulation), torch.stack(w))


def test_local_sgd_after_a_departure_the_rest_average_among_themselves():
    batches = PROBLEM.batches(3, [10, 5, 10])
    simulation = PROBLEM.simulation(local_sgd(tau=2), batches)
    simulation.run()
    w = [PROBLEM.start] * 3
    for step in range(10):
        live = [i for i in range(3) if step < len(batches[i])]
        for i in live:
            w[i] = w[i] - 0.05 * PROBLEM.gradient(w[i], batches[i][step])
        if (step + 1) % 2 == 0:
            mean = sum(w[i] for i in live) / len(live)
            for i in live:
                w[i] = mean
    assert close(weights(simulation), torch.stack(w))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_ssp_with_bound_0_is_allreduce_bit_for_bit(size, momentum):
    batches = PROBLEM.batches(size, 12)
    together = PROBLEM.simulation(allreduce(), batches, momentum=momentum)
    server = PROBLEM.simulation(
        ssp(bound=0), batches, momentum=momentum, network=NETWORKS["1gbit"], compute=RandomCompute()
    )
    together.run()
    server.run()
    assert equal(weights(together), weights(server))
    assert equal(server.me(size).weights, weights(server)[0])


@pytest.mark.parametrize("counts", [[8, 8, 8], [3, 8, 6], [8, 1, 1]])
def test_ssp_with_bound_0_is_allreduce_also_when_workers_leave(counts):
    batches = PROBLEM.batches(3, counts)
    together, server = (PROBLEM.simulation(s, batches) for s in (allreduce(), ssp(bound=0)))
    together.run()
    server.run()
    assert equal(weights(together), weights(server))


def matrix(topology, size):
    """W, written down from the definition: 1 / (1 + the larger degree), the rest on the diagonal."""
    linked = [[j for j in range(size) if j in topology.links(i, size, 0)] for i in range(size)]
    w = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        for j in linked[i]:
            w[i, j] = 1 / (1 + max(len(linked[i]), len(linked[j])))
        w[i, i] = 1 - w[i].sum()
    return w


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("topology", [Ring(), Full(), Torus()], ids=repr)
def test_dpsgd_is_the_dense_matrix_loop(size, topology):
    batches = PROBLEM.batches(size, 12)
    simulation = PROBLEM.simulation(dpsgd(topology=topology), batches)
    mixing, x = matrix(topology, size), PROBLEM.start.repeat(size, 1)
    means = []
    simulation.run(on_step=lambda me, now: means.append(weights(simulation).mean(0)))
    for step in range(12):
        g = torch.stack([PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)])
        after = mixing @ x - 0.05 * g
        assert close(after.mean(0), x.mean(0) - 0.05 * g.mean(0))  # B51, of the loop...
        assert close(means[(step + 1) * size - 1], x.mean(0) - 0.05 * g.mean(0))  # ...and of the simulation
        x = after
    assert close(weights(simulation), x)


def test_dpsgd_does_not_depend_on_times():
    batches = PROBLEM.batches(5, 10)
    calm = PROBLEM.simulation(dpsgd(), batches)
    wild = PROBLEM.simulation(dpsgd(), batches, compute=RandomCompute(), network=random_network(5, 3), seed=3)
    calm.run()
    wild.run()
    assert equal(weights(calm), weights(wild))


@pytest.mark.parametrize("counts", [[20, 4, 20, 20, 20], [20, 4, 6, 20, 2]])
def test_dpsgd_reknits_its_ring_at_the_same_step_whatever_the_times(counts):
    batches, seen = PROBLEM.batches(5, counts), []
    runs = []
    for seed in range(8):
        simulation = PROBLEM.simulation(
            dpsgd(), batches, compute=RandomCompute(), network=random_network(5, seed), seed=seed
        )
        views = {}
        simulation.run(on_step=lambda me, now, views=views: views.update({(me.id, me.steps): me.view}))
        runs.append(weights(simulation))
        seen.append({key: (view.number, view.workers) for key, view in views.items()})
    assert all(equal(run, runs[0]) for run in runs)
    assert all(views == seen[0] for views in seen)
    survivors = tuple(i for i in range(5) if counts[i] == 20)
    assert seen[0][(survivors[0], 20)][1] == survivors
    # The turn that begins after `steps` steps: departures count from step last + P on.
    assert seen[0][(0, min(counts) + 4)][1] == tuple(range(5))
    assert min(counts) != 4 or seen[0][(0, 9)][1] == (0, 2, 3, 4)


def test_dpsgd_after_a_departure_is_the_loop_with_the_leaver_missing_then_reknit():
    counts, size = [12, 2, 12], 3
    batches = PROBLEM.batches(size, counts)
    simulation = PROBLEM.simulation(dpsgd(), batches)
    simulation.run()
    x = dict.fromkeys(range(size), PROBLEM.start)
    for step in range(12):
        before = dict(x)
        for i in range(size):
            if step >= counts[i]:
                continue
            # Worker 1's weights after its 2 steps are still heard at step 2; from step 2 + 3 on
            # the view has two workers, and each weighs the other 1/2.
            heard = [j for j in range(size) if j != i and step <= counts[j]]
            share = 1 / 3 if step < 2 + size else 1 / 2
            mixed = before[i] + sum(share * (before[j] - before[i]) for j in heard)
            x[i] = mixed - 0.05 * PROBLEM.gradient(before[i], batches[i][step])
    assert close(weights(simulation), torch.stack([x[i] for i in range(size)]))


def test_letters_to_a_worker_that_has_left_are_reported_as_dropped():
    records = []
    simulation = PROBLEM.simulation(dpsgd(), PROBLEM.batches(3, [6, 2, 6]), observers=[records.append])
    simulation.run()
    dropped = [r for r in records if isinstance(r, Dropped)]
    sent_late = [r for r in dropped if r.why == "peer 1 has left"]
    # Workers 0 and 2 still address worker 1 until its departure counts, at step 2 + 3.
    assert {(r.sender, r.to, r.tag) for r in sent_late} == {(0, 1, "mix"), (2, 1, "mix")}
    copies = sum(len(r.to) for r in records if isinstance(r, Sent))
    assert copies == sum(isinstance(r, Included) for r in records) + len(dropped)


def test_a_straggler_slows_the_synchronous_down_but_changes_no_bit():
    batches = PROBLEM.batches(4, 5)
    even = PROBLEM.simulation(allreduce(), batches)
    uneven = PROBLEM.simulation(allreduce(), batches, compute=Compute(0.02, parse_straggler("4x")))
    even.run()
    uneven.run()
    assert equal(weights(even), weights(uneven))
    assert (even.now_ns, uneven.now_ns) == (5 * 20_000_000, 5 * 80_000_000)


def test_unconnected_workers_of_dpsgd_train_alone():
    batches = PROBLEM.batches(3, 6)
    simulation = PROBLEM.simulation(dpsgd(topology=Channels([(0, 1)])), batches)
    simulation.run()
    w = PROBLEM.start
    for batch in batches[2]:
        w = w - 0.05 * PROBLEM.gradient(w, batch)
    assert close(weights(simulation)[2], w)
