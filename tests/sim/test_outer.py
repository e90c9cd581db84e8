"""SlowMo and DiLoCo: local steps with an outer optimizer, against plain loops in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fast.adapters import TorchReplica
from fast.errors import UsageError
from fast.parts.outer import HeavyBall, Nesterov, SlowMomentum
from fast.sim import NETWORKS, Compute, Simulation, SimWorker
from fast.strategies.presets import allreduce, diloco, local_sgd, slowmo
from fast.trace import Reduced

from .problem import INSTANT, LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
SIZES = [1, 2, 3, 5]
LR = 0.05


def run(strategy, batches, **options):
    simulation = PROBLEM.simulation(strategy, batches, **options)
    simulation.run()
    return weights(simulation)


# The parts


def steps_of(optimizer, weights, changes):
    """A torch optimizer on one tensor, given these gradients one after another."""
    for change in changes:
        weights.grad = change.clone()
        optimizer.step()
    return weights.detach()


values = st.integers(0, 1000).map(
    lambda seed: torch.randn(5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
)
shares = st.floats(0, 0.99)


@settings(max_examples=25)
@given(values, st.floats(0.01, 2), shares)
def test_nesterov_is_that_of_torch(changes, rate, momentum):
    w, memory = torch.ones(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    for change in changes:
        Nesterov(rate, momentum).step(w, change, memory)
    theirs = torch.ones(7, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([theirs], lr=rate, momentum=momentum, nesterov=momentum > 0)
    assert close(w, steps_of(sgd, theirs, changes), 1e-10)


@settings(max_examples=25)
@given(values, st.floats(0.01, 2), shares)
def test_heavy_ball_is_momentum_of_torch_with_the_rate_inside(changes, rate, momentum):
    w, memory = torch.ones(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    for change in changes:
        HeavyBall(rate, momentum).step(w, change, memory)
    theirs = torch.ones(7, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([theirs], lr=1.0, momentum=momentum)
    assert close(w, steps_of(sgd, theirs, rate * changes), 1e-10)


@settings(max_examples=25)
@given(values, st.floats(0.01, 2), shares, st.floats(0.001, 1))
def test_slow_momentum_is_the_paper_s_with_any_constant_rate(changes, alpha, beta, gamma):
    w, memory = torch.ones(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    x, u = w.clone(), memory.clone()
    for change in changes:
        SlowMomentum(alpha, beta).step(w, change, memory)
        u = beta * u + change / gamma
        x = x - alpha * gamma * u
    assert close(w, x, 1e-10)


# SlowMo


def slowmo_loop(batches, *, tau, alpha, beta, gammas=None, momentum=0.0, moments="keep"):
    """As the paper writes it, with u; `gammas` are the learning rates of the steps."""
    size, steps = len(batches), len(batches[0])
    gammas = gammas or [LR] * steps
    x0, u = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    x, v = [x0] * size, [u] * size
    for step in range(steps):
        gamma = gammas[step]
        for i in range(size):
            v[i] = momentum * v[i] + PROBLEM.gradient(x[i], batches[i][step])
            x[i] = x[i] - gamma * v[i]
        if (step + 1) % tau == 0:
            u = beta * u + (x0 - sum(x) / size) / gamma
            x0 = x0 - alpha * gamma * u
            x = [x0] * size
            if moments == "reset":
                v = [torch.zeros_like(x0)] * size
            elif moments == "average":
                v = [sum(v) / size] * size
    return torch.stack(x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("tau", "alpha", "beta"), [(1, 1.0, 0.5), (3, 1.0, 0.7), (4, 0.8, 0.3)])
def test_slowmo_is_the_plain_loop(size, tau, alpha, beta):
    batches = PROBLEM.batches(size, 14)
    found = run(slowmo(tau=tau, alpha=alpha, beta=beta), batches)
    assert close(found, slowmo_loop(batches, tau=tau, alpha=alpha, beta=beta))


@pytest.mark.parametrize("moments", ["keep", "reset", "average"])
def test_what_becomes_of_the_local_momentum(moments):
    batches = PROBLEM.batches(3, 12)
    found = {
        policy: run(slowmo(tau=4, beta=0.6, moments=policy), batches, momentum=0.8)
        for policy in ("keep", "reset", "average")
    }
    loop = slowmo_loop(batches, tau=4, alpha=1.0, beta=0.6, momentum=0.8, moments=moments)
    assert close(found[moments], loop)
    assert all(not close(found[other], loop) for other in found if other != moments)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_slow_momentum_follows_the_learning_rate(factor):
    """u stays when gamma changes: v = gamma u doesn't."""
    batches, at = PROBLEM.batches(3, 12), 5
    simulation = PROBLEM.simulation(slowmo(tau=2, beta=0.6), batches)

    def schedule(me, now):
        if me.steps == at:
            me.replica.lr = LR * factor

    simulation.run(on_step=schedule)
    gammas = [LR] * at + [LR * factor] * (12 - at)
    loop = slowmo_loop(batches, tau=2, alpha=1.0, beta=0.6, gammas=gammas)
    assert close(weights(simulation), loop)
    assert not close(loop, slowmo_loop(batches, tau=2, alpha=1.0, beta=0.6, gammas=[LR] * 12), 1e-3)


def test_at_a_rate_of_0_slowmo_is_the_mean_and_then_begins_anew():
    batches = PROBLEM.batches(2, 8)
    simulation = PROBLEM.simulation(slowmo(tau=2, beta=0.6), batches)

    def schedule(me, now):
        me.replica.lr = 0.0 if me.steps == 3 else LR  # steps 1 to 3 move, the exchange after step 4 sees 0

    simulation.run(on_step=schedule)
    x = x0 = PROBLEM.start
    v, gammas = torch.zeros_like(x), [LR, LR, LR, 0.0, LR, LR, LR, LR]
    own = [x, x]
    for step, gamma in enumerate(gammas):
        own = [w - gamma * PROBLEM.gradient(w, batches[i][step]) for i, w in enumerate(own)]
        if step % 2:
            change = x0 - sum(own) / 2
            v = change if step in (3, 5) else 0.6 * v + change
            x0 = x0 - v
            own = [x0, x0]
    assert close(weights(simulation), torch.stack(own))


class Own(torch.optim.SGD):
    """Somebody's own optimizer, which no server could build."""


@pytest.mark.parametrize("kind", [torch.optim.SGD, Own])
def test_every_parameter_group_has_its_own_rate(kind):
    """One group's rate falls, the other's rises; the reference is the paper's formula per parameter."""

    def model_and_optimizer():
        torch.manual_seed(0)
        model = nn.Linear(5, 3).double()
        groups = [{"params": [model.bias], "lr": 0.2}, {"params": [model.weight], "lr": 0.05}]
        return model, kind(groups, lr=0.1)

    def change_rates(optimizer, step):
        if step == 3:
            optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.05, 0.1

    x = torch.randn(2, 8, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def worker(number):
        model, optimizer = model_and_optimizer()
        replica = TorchReplica(model, optimizer)
        return SimWorker(replica, iter(x[number]), lambda batch: replica.compute(lambda: loss(model, batch)))

    simulation = Simulation(
        slowmo(tau=2, beta=0.5), [worker(0), worker(1)], network=INSTANT, compute=Compute(), seed_torch=False
    )
    simulation.run(on_step=lambda me, now: change_rates(me.replica.optimizer, me.steps))

    pairs = [model_and_optimizer() for _ in range(2)]
    common = [(p.detach().clone(), torch.zeros_like(p)) for p in pairs[0][0].parameters()]
    for step in range(8):
        for (model, optimizer), batch in zip(pairs, x[:, step], strict=True):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
        if step % 2:
            rates = [pairs[0][1].param_groups[place]["lr"] for place in (1, 0)]  # weight, bias
            for k, ((w0, u), gamma) in enumerate(zip(common, rates, strict=True)):
                own = [list(model.parameters())[k] for model, _ in pairs]
                u.mul_(0.5).add_((w0 - (own[0].detach() + own[1].detach()) / 2) / gamma)
                w0.sub_(gamma * u)
                for parameter in own:
                    parameter.data.copy_(w0)
        for _, optimizer in pairs:
            change_rates(optimizer, step + 1)
    for replica_worker in simulation.workers:
        for found, (w0, _) in zip(replica_worker.me.model.parameters(), common, strict=True):
            assert close(found.detach(), w0)


def loss(model, batch):
    return (model(batch) - batch[:, :3]).square().mean()


@pytest.mark.parametrize("tau", [1, 4])
def test_without_momentum_slowmo_is_local_sgd(tau):
    batches = PROBLEM.batches(3, 12)
    local = run(local_sgd(tau=tau), batches, momentum=0.5)
    assert close(run(slowmo(tau=tau, beta=0.0), batches, momentum=0.5), local)
    assert not close(run(slowmo(tau=tau, beta=0.1), batches, momentum=0.5), local)


@pytest.mark.parametrize("moments", ["keep", "average", "reset", "correct"])
def test_without_momentum_slowmo_is_local_sgd_with_every_policy(moments):
    batches = PROBLEM.batches(3, 12)
    local = run(local_sgd(tau=3, moments=moments), batches, momentum=0.7)
    assert close(run(slowmo(tau=3, beta=0.0, moments=moments), batches, momentum=0.7), local)
    plain = {"rate": 1.0, "momentum": 0.0, "moments": moments}
    assert close(run(diloco(interval=3, **plain), batches, momentum=0.7), local)


def test_after_every_step_slowmo_is_heavy_ball_on_the_mean_gradient():
    batches = PROBLEM.batches(3, 15)
    found = run(slowmo(tau=1, alpha=0.8, beta=0.6), batches)
    w, v = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    for step in range(15):
        v = 0.6 * v + sum(PROBLEM.gradient(w, own[step]) for own in batches) / 3
        w = w - 0.8 * LR * v
    assert close(found, w.expand(3, -1))


# DiLoCo


def diloco_loop(batches, *, interval, rate, momentum, inner=0.0):
    """Workers without a batch in a step have left. Means are weighted by samples."""
    size, steps = len(batches), max(map(len, batches))
    theta, b = PROBLEM.start, torch.zeros_like(PROBLEM.start)
    w, v, seen = [theta] * size, [b] * size, [0] * size
    for step in range(steps):
        live = [i for i in range(size) if step < len(batches[i])]
        for i in live:
            v[i] = inner * v[i] + PROBLEM.gradient(w[i], batches[i][step])
            w[i] = w[i] - LR * v[i]
            seen[i] += len(batches[i][step])
        if (step + 1) % interval == 0:
            delta = sum(seen[i] * (theta - w[i]) for i in live) / sum(seen[i] for i in live)
            b = momentum * b + delta
            theta = theta - rate * (delta + momentum * b)
            for i in live:
                w[i], seen[i] = theta, 0
    return torch.stack(w)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("interval", "rate", "momentum"), [(1, 0.7, 0.5), (3, 0.7, 0.9), (5, 0.4, 0.0)])
def test_diloco_is_the_plain_loop(size, interval, rate, momentum):
    batches = PROBLEM.batches(size, 17)
    found = run(diloco(interval=interval, rate=rate, momentum=momentum), batches, momentum=0.5)
    loop = diloco_loop(batches, interval=interval, rate=rate, momentum=momentum, inner=0.5)
    assert close(found, loop)


@pytest.mark.parametrize("counts", [[12, 5, 12], [3, 12, 8, 12], [1, 1, 12]])
def test_when_workers_leave_the_rest_go_on_whatever_the_times(counts):
    batches = PROBLEM.batches(len(counts), counts)
    loop = diloco_loop(batches, interval=2, rate=0.7, momentum=0.6)
    for seed in range(3):
        found = run(
            diloco(interval=2, momentum=0.6),
            batches,
            compute=RandomCompute(),
            network=random_network(len(counts), seed),
            seed=seed,
        )
        assert close(found, loop)


def test_means_are_weighted_by_the_samples_since_the_last_one():
    batches = [[(0, 1, 2, 3)] * 3 + [(5,)] * 3, [(4,)] * 3 + [(6, 7, 8)] * 3]
    found = run(diloco(interval=3, momentum=0.5), batches)
    assert close(found, diloco_loop(batches, interval=3, rate=0.7, momentum=0.5))


@pytest.mark.parametrize("size", SIZES)
def test_with_a_plain_outer_step_of_1_it_is_allreduce_and_local_sgd(size):
    """B44. Of local momenta, too, only the mean matters as long as no worker takes two steps by itself."""
    batches = PROBLEM.batches(size, 12)
    plain = {"rate": 1.0, "momentum": 0.0}
    assert close(run(diloco(interval=1, **plain), batches), run(allreduce(), batches))
    for interval in (1, 4):
        found = run(diloco(interval=interval, **plain), batches, momentum=0.6)
        assert close(found, run(local_sgd(tau=interval), batches, momentum=0.6))
    if size > 1:
        together = run(allreduce(), batches, momentum=0.6)
        assert close(run(diloco(interval=1, **plain), batches, momentum=0.6), together)
        assert not close(run(diloco(interval=2, **plain), batches, momentum=0.6), together)


@pytest.mark.parametrize("copies", [2, 4, 3])
def test_workers_with_equal_data_are_one_worker(copies):
    """B45; three equal numbers added and divided by 3 may be rounded."""
    (own,) = PROBLEM.batches(1, 12)
    alone = run(diloco(interval=4), [own], momentum=0.5)
    several = run(diloco(interval=4), [own] * copies, momentum=0.5)
    same = equal if copies in (2, 4) else close
    assert same(several, alone.expand(copies, -1))


def test_alone_the_outer_optimizer_acts():
    batches = PROBLEM.batches(1, 12)
    plain = run(allreduce(), batches)
    assert not diloco().identity_alone and not slowmo().identity_alone
    assert not close(run(diloco(interval=4), batches), plain)
    assert not close(run(slowmo(tau=4), batches), plain)


def test_a_run_shorter_than_the_interval_is_training_apart():
    """Nothing is exchanged; the model of such a run is the mean of the replicas."""
    batches, records = PROBLEM.batches(3, 9), []
    simulation = PROBLEM.simulation(diloco(interval=10), batches, observers=[records.append])
    simulation.run()
    for i in range(3):
        w = PROBLEM.start
        for batch in batches[i]:
            w = w - LR * PROBLEM.gradient(w, batch)
        assert close(weights(simulation)[i], w)
    assert not any(isinstance(record, Reduced) for record in records)


@pytest.mark.parametrize(("strategy", "moments"), [(slowmo(tau=4), 1), (slowmo(tau=4, moments="average"), 2)])
def test_bytes_are_the_formula(strategy, moments):
    """8 bytes a value here: 2 (P - 1) / P of the tensor each time, and as much for each averaged moment."""
    sent = []
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(4, 20),
        momentum=0.5,
        network=NETWORKS["1gbit"],
        observers=[lambda record: sent.append(record.nbytes) if isinstance(record, Reduced) else None],
    )
    simulation.run()
    assert sent == [2 * 3 * 20 * 8 // 4] * (4 * 20 // 4) * moments


@pytest.mark.parametrize(
    "build",
    [
        lambda: slowmo(tau=0),
        lambda: slowmo(alpha=0),
        lambda: slowmo(beta=1.0),
        lambda: slowmo(beta=-0.1),
        lambda: slowmo(moments="lost"),
        lambda: diloco(interval=2.5),
        lambda: diloco(rate=float("inf")),
        lambda: diloco(momentum=True),
        lambda: diloco(moments=None),
    ],
)
def test_what_cannot_be_is_refused(build):
    with pytest.raises(UsageError):
        build()
