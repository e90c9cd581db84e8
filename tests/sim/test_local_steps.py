"""Local steps and what becomes of the optimizer's moments, against plain loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fast.adapters import TorchReplica
from fast.collectives.canonical import canonical_mean
from fast.errors import UsageError
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.sim.faults import Director, parse_scenario
from fast.strategies.decentral.moments import POLICIES
from fast.strategies.presets import allreduce, local_sgd, one_shot, post_local_sgd, sparknet
from fast.trace import Meter

from .problem import DIM, LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
SIZES = [1, 2, 3, 5]
MU, LR = 0.6, 0.05
every_policy = pytest.mark.parametrize("policy", POLICIES)


def loop(batches, tau, policy="keep", *, mu=MU, lr=LR, joins=None):
    """Every worker's weights and momentum at the end. `joins` = (worker, step, whom it adopts)."""
    size, zero = len(batches), torch.zeros_like(PROBLEM.start)
    w, v, seen = [PROBLEM.start] * size, [zero] * size, [0] * size
    x, m, walked = list(w), list(v), [0.0] * size  # as they were right after the exchange before
    own = [list(each) for each in batches]
    late, since, donor = joins or (None, 0, None)
    for step in range(max(map(len, batches))):
        if step == since and late is not None:
            w[late], v[late] = w[donor], v[donor]
            x[late], m[late] = w[late], v[late]
        live = [i for i in range(size) if own[i] and (i != late or step >= since)]
        for i in live:
            batch = own[i].pop(0)
            v[i] = mu * v[i] + PROBLEM.gradient(w[i], batch)
            w[i] = w[i] - lr * v[i]
            seen[i] += len(batch)
            walked[i] += lr
        if (step + 1) % tau or size == 1:
            continue
        total = sum(seen[i] for i in live)
        mean_w, mean_v = (sum(seen[i] * each[i] for i in live) / total for each in (w, v))
        for i in live:
            w[i] = mean_w
            corrected = mu * m[i] + (1 - mu) * (x[i] - w[i]) / walked[i]
            v[i] = {"keep": v[i], "average": mean_v, "reset": zero, "correct": corrected}[policy]
            x[i], m[i], seen[i], walked[i] = w[i], v[i], 0, 0.0
    return torch.stack(w), torch.stack(v)


def run(strategy, batches, *, momentum=MU, lr=LR, on_step=None, **options):
    simulation = PROBLEM.simulation(strategy, batches, lr=lr, momentum=momentum, **options)
    simulation.run(on_step=on_step)
    return simulation


def momenta(simulation):
    return torch.stack([p.me.replica.velocity for p in simulation.workers])


def of_sizes(steps, sizes):
    """Worker i's batches have `sizes[i]` rows."""
    rows = PROBLEM.batches(len(sizes), steps, size=max(sizes))
    return [[batch[:size] for batch in own] for own, size in zip(rows, sizes, strict=True)]


# The policies


@every_policy
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tau", [1, 3])
def test_local_sgd_with_every_policy_is_the_loop(policy, size, tau):
    batches = PROBLEM.batches(size, 11)
    found = run(local_sgd(tau=tau, moments=policy), batches)
    w, v = loop(batches, tau, policy)
    assert close(weights(found), w)
    assert close(momenta(found), v)


def test_the_policies_differ():
    """Else the loops above would prove nothing."""
    ends = [loop(PROBLEM.batches(3, 12), 3, policy)[0] for policy in POLICIES]
    for n, one in enumerate(ends):
        for other in ends[n + 1 :]:
            assert not close(one, other, 1e-3)


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    tau=st.integers(1, 6),
    mu=st.floats(0.1, 0.95),
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    server=st.booleans(),
    seed=st.integers(0, 99),
)
def test_whoever_leaves_and_however_much_each_has_seen(policy, tau, mu, counts, sizes, server, seed):
    """Also through a master, and whatever the times."""
    batches = of_sizes(counts, sizes[: len(counts)])
    strategy = (sparknet if server else local_sgd)(tau=tau, moments=policy)
    peers = len(counts) + server
    times = {"compute": RandomCompute(), "network": random_network(len(counts), seed, peers), "seed": seed}
    found = run(strategy, batches, momentum=mu, **times)
    w, v = loop(batches, tau, policy, mu=mu)
    assert close(weights(found), w, 1e-10)
    assert close(momenta(found), v, 1e-10)


@every_policy
@pytest.mark.parametrize("make", [local_sgd, post_local_sgd, sparknet])
def test_alone_every_policy_is_plain_training_bit_for_bit(policy, make):
    batches = PROBLEM.batches(1, 9)
    found = run(make(tau=2, moments=policy), batches)
    w, v = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
    for batch in batches[0]:
        v = MU * v + PROBLEM.gradient(w, batch)
        w -= LR * v
    assert all(equal(p.me.weights, w) for p in found.participants)


def test_quasi_global_momentum_makes_the_common_way_the_momentum():
    """After one exchange of equal workers with the same data, it is (1 - mu) times the mean of their steps."""
    batches = [PROBLEM.batches(1, 4)[0]] * 3
    found = run(local_sgd(tau=4, moments="correct"), batches)
    alone = run(local_sgd(tau=9), batches[:1])
    way = (PROBLEM.start - weights(alone)[0]) / (4 * LR)
    assert close(momenta(found)[1], (1 - MU) * way)


# The same as others


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("policy", "mu"), [("keep", 0.0), ("average", 0.9)])
def test_with_tau_1_it_is_allreduce(size, policy, mu):
    """B39: plain SGD, or momentum that is averaged too."""
    batches = of_sizes(12, range(1, size + 1))
    local = run(local_sgd(tau=1, moments=policy), batches, momentum=mu)
    together = run(allreduce(), batches, momentum=mu)
    assert close(weights(local), weights(together))
    assert not mu or close(momenta(local), momenta(together))


@pytest.mark.parametrize("policy", ["reset", "correct"])
def test_with_tau_1_and_momentum_that_is_not_averaged_it_is_something_else(policy):
    batches = PROBLEM.batches(3, 12)
    together = weights(run(allreduce(), batches, momentum=0.9))
    assert not close(weights(run(local_sgd(tau=1, moments=policy), batches, momentum=0.9)), together, 1e-3)


def test_with_tau_1_momentum_that_is_kept_differs_from_worker_to_worker():
    """B39's negative control. The mean of linear recursions is the recursion of the mean, so with equal
    shares the weights are all-reduce's all the same, and only the momenta differ; with another worker's share
    in each step, which short batches give, they are not."""
    equal_shares = PROBLEM.batches(3, 12)
    kept = run(local_sgd(tau=1), equal_shares, momentum=0.9)
    assert close(weights(kept), weights(run(allreduce(), equal_shares, momentum=0.9)))
    assert not close(momenta(kept)[0], momenta(kept)[1], 1e-3)
    changing = [
        [batch[: 1 + (step + i) % 2] for step, batch in enumerate(own)] for i, own in enumerate(equal_shares)
    ]
    together = weights(run(allreduce(), changing, momentum=0.9))
    assert not close(weights(run(local_sgd(tau=1), changing, momentum=0.9)), together, 1e-3)
    assert close(weights(run(local_sgd(tau=1, moments="average"), changing, momentum=0.9)), together)


@pytest.mark.parametrize("size", SIZES)
def test_with_tau_as_large_as_the_training_it_is_one_shot(size):
    """B40, bit for bit: nobody hears of anybody, then the mean of all."""
    batches = PROBLEM.batches(size, 8)
    once, local = run(one_shot(), batches), run(local_sgd(tau=8), batches)
    for own, row in zip(batches, weights(once), strict=True):
        assert close(row, loop([own], 1)[0][0])
    mean = canonical_mean(list(weights(once)), [1.0] * size)
    assert all(equal(row, mean) for row in weights(local))
    assert size == 1 or not close(weights(once)[0], mean, 1e-3)


@every_policy
@pytest.mark.parametrize("counts", [[9, 9, 9], [9, 4, 7], [2, 9, 9]], ids=repr)
def test_through_a_master_it_is_the_same_bit_for_bit(policy, counts):
    batches = of_sizes(counts, [1, 3, 2])
    among = run(local_sgd(tau=3, moments=policy), batches)
    master = run(
        sparknet(tau=3, moments=policy), batches, network=Network(1e6, 1e-3), compute=RandomCompute()
    )
    assert equal(weights(among), weights(master))
    assert equal(momenta(among), momenta(master))


def test_the_master_has_the_last_mean():
    """Steps after it don't count, and neither do moments that went through it."""
    batches = PROBLEM.batches(3, 8)
    found = run(sparknet(tau=3, moments="average"), batches)
    assert close(found.me(3).weights, loop([own[:6] for own in batches], 3, "average")[0][0])
    assert found.me(3).version == 0


# First together, then on their own


@pytest.mark.parametrize("after", [0, 1, 5, 12, 20])
def test_post_local_is_allreduce_until_the_switch_and_the_loop_after_it(after):
    """B42: before it bit for bit."""
    batches, ends = of_sizes(12, [2, 3, 1]), []
    found = run(
        post_local_sgd(tau=3, after=after),
        batches,
        on_step=lambda me, now: ends.append((me.steps, me.weights.clone())),
    )
    together = run(allreduce(), [own[:after] for own in batches]) if after else None
    for steps, reached in ends:
        if steps == min(after, 12):
            assert equal(reached, weights(together)[0])
    if after == 0:
        assert equal(weights(found), weights(run(local_sgd(tau=3), batches)))
    if after == 5:  # local from step 5 on, so the first mean comes after one step of each
        w, v, seen = [weights(together)[0]] * 3, [momenta(together)[0]] * 3, [0] * 3
        for step in range(5, 12):
            for i, own in enumerate(batches):
                v[i] = MU * v[i] + PROBLEM.gradient(w[i], own[step])
                w[i], seen[i] = w[i] - LR * v[i], seen[i] + len(own[step])
            if (step + 1) % 3 == 0:
                w, seen = [sum(n * each for n, each in zip(seen, w, strict=True)) / sum(seen)] * 3, [0] * 3
        assert close(weights(found), torch.stack(w))


def switched(strategy, falls, *, steps=14, workers=3):
    """In which step each worker took its first step of its own. `falls` = {worker: after which step its rate falls}."""
    first = {}

    def on_step(me, now):
        if me.state.local:
            first.setdefault(me.id, me.steps - 1)
        if falls.get(me.id) == me.steps:
            me.replica.lr /= 2

    times = {"compute": RandomCompute(), "network": random_network(workers, 1), "seed": 1}
    run(strategy, PROBLEM.batches(workers, steps), on_step=on_step, **times)
    return first


def test_the_switch_comes_when_the_rate_has_fallen_for_all_at_once():
    strategy = post_local_sgd(tau=4)
    assert switched(strategy, {}) == {}
    assert switched(strategy, {0: 4, 1: 4, 2: 4}) == dict.fromkeys(range(3), 4)
    assert switched(strategy, {0: 5, 1: 5, 2: 5}) == dict.fromkeys(range(3), 8)
    assert switched(strategy, {1: 3}) == dict.fromkeys(range(3), 4), "one of them is enough"
    assert switched(strategy, {0: 9, 2: 6}) == dict.fromkeys(range(3), 8)


def test_a_rate_that_rises_is_a_warm_up():
    def warm(me, now):
        me.replica.lr *= 1.1
        assert not me.state.local

    run(post_local_sgd(tau=2), PROBLEM.batches(2, 8), lr=0.01, on_step=warm)


def test_the_way_since_the_switch_is_what_is_corrected():
    batches = PROBLEM.batches(2, 9)
    found = run(post_local_sgd(tau=3, after=6, moments="correct"), batches)
    together = run(allreduce(), [own[:6] for own in batches])
    w, v = [weights(together)[0]] * 2, [momenta(together)[0]] * 2
    for step in range(6, 9):
        for i, own in enumerate(batches):
            v[i] = MU * v[i] + PROBLEM.gradient(w[i], own[step])
            w[i] = w[i] - LR * v[i]
    mean = (w[0] + w[1]) / 2
    corrected = MU * momenta(together)[0] + (1 - MU) * (weights(together)[0] - mean) / (3 * LR)
    assert close(weights(found)[1], mean)
    assert close(momenta(found)[1], corrected)


# Bytes


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("tau", [1, 4])
def test_bytes_are_the_formula(workers, tau):
    """Per worker and step: 8 d (P - 1) / (P tau), with averaged momentum twice that; to a master 4 d / tau, and as
    much from it. Values have 8 bytes here."""
    steps, mean = 4 * tau, 2 * (workers - 1) * 8 * DIM // workers
    assert sent(local_sgd(tau=tau), workers, steps) == [4 * mean] * workers
    assert sent(local_sgd(tau=tau, moments="average"), workers, steps) == [8 * mean] * workers
    assert sent(local_sgd(tau=tau, moments="correct"), workers, steps) == [4 * mean] * workers
    assert sent(post_local_sgd(tau=tau, after=2 * tau), workers, steps) == [(2 * tau + 2) * mean] * workers
    asking = steps // tau * (2 * (workers - 1) * 8 // workers)  # whether a rate has fallen: one value
    assert sent(post_local_sgd(tau=tau), workers, steps) == [steps * mean + asking] * workers
    letter = 256 + 8 * DIM
    assert sent(sparknet(tau=tau), workers, steps) == [4 * letter] * workers + [4 * workers * letter]
    assert sent(one_shot(), workers, steps) == [0] * workers


def sent(strategy, workers, steps):
    """By each participant while nobody has left."""
    meters = [Meter() for _ in range(workers + strategy.servers(workers))]
    batches = PROBLEM.batches(workers, steps + 1)
    simulation = PROBLEM.simulation(
        strategy, batches, momentum=MU, observers=[lambda record: meters[record.who](record)]
    )
    simulation.run(pause_after=steps)
    return [meter.bytes_sent for meter in meters]


# Who comes late


@every_policy
def test_who_comes_late_adopts_the_moments_too(policy):
    """It joins at 90 ms and takes part from step 5 on, with weights and momentum of the first who gets there."""
    batches = PROBLEM.batches(3, 11)
    batches[2] = batches[2][:6]
    scenario = parse_scenario("worker 2 joins at 90ms")
    options = {"faults": Director(scenario, 0), "absent": scenario.absent}
    found = run(local_sgd(tau=4, moments=policy), batches, **options)
    w, v = loop(batches, 4, policy, joins=(2, 5, 0))
    assert close(weights(found), w)
    assert close(momenta(found), v)


def test_who_comes_late_can_not_know_whether_a_rate_had_fallen():
    assert post_local_sgd(after=4).admits and not post_local_sgd().admits
    scenario = parse_scenario("worker 2 joins at 90ms")
    batches = PROBLEM.batches(3, 11)
    options = {"faults": Director(scenario, 0), "absent": scenario.absent}
    found = run(post_local_sgd(tau=3, after=2), batches, **options)
    assert all(p.me.state.local for p in found.workers)
    with pytest.raises(UsageError, match="can't take in workers"):
        run(post_local_sgd(tau=3), batches, **options)


# What is refused


def test_an_unknown_policy_is_refused():
    for make in (local_sgd, post_local_sgd, sparknet):
        with pytest.raises(UsageError, match=r"moments='kept': .* 'keep' .* 'average', 'reset' or 'correct'"):
            make(moments="kept")


@pytest.mark.parametrize("make", [local_sgd, post_local_sgd, sparknet])
def test_correcting_needs_momentum_and_says_so_before_anything_is_trained(make):
    simulation = PROBLEM.simulation(make(moments="correct"), PROBLEM.batches(2, 3))
    with pytest.raises(UsageError, match=r"the optimizer is SGD without it\. Take torch.optim.SGD"):
        simulation.run()
    assert [p.me.steps for p in simulation.workers] == [0, 0]


def torch_simulation(strategy, make_optimizer, batches, **options):
    """The same problem as a torch model with two parameters, each `DIM` / 2 of the weights."""
    workers = []
    for own in batches:
        model = nn.ParameterList([PROBLEM.start[: DIM // 2].clone(), PROBLEM.start[DIM // 2 :].clone()])
        replica = TorchReplica(model, make_optimizer(list(model)))

        def compute(batch, model=model, replica=replica):
            rows = list(batch)
            error = PROBLEM.a[rows] @ torch.cat(list(model)) - PROBLEM.b[rows]
            replica.backward((error**2).sum() / (2 * len(rows)))

        workers.append(SimWorker(replica, iter(own), compute))
    return Simulation(strategy, workers, compute=Compute(), network=Network(float("inf"), 0.0), **options)


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (lambda p: torch.optim.Adam(p), "Adam"),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9), "RMSprop"),
        (lambda p: Own(p, lr=0.1, momentum=0.9), "none of torch's own"),
    ],
)
def test_correcting_is_for_sgd_only(optimizer, name):
    simulation = torch_simulation(local_sgd(moments="correct"), optimizer, PROBLEM.batches(2, 3))
    with pytest.raises(UsageError, match=f"the optimizer is {name}. Take"):
        simulation.run()


class Own(torch.optim.SGD):
    """Somebody's own optimizer may do what it likes with the names that torch uses."""


# Optimizers of torch


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


@pytest.mark.parametrize("policy", ["keep", "average", "reset"])
def test_adam_with_every_policy_is_the_loop(policy):
    batches, size, tau = PROBLEM.batches(3, 10), 3, 4
    simulation = torch_simulation(local_sgd(tau=tau, moments=policy), adam, batches)
    simulation.run()
    zero = torch.zeros_like(PROBLEM.start)
    w, m, s, t = [PROBLEM.start] * size, [zero] * size, [zero] * size, 0
    for step in range(10):
        t += 1
        for i in range(size):
            g = PROBLEM.gradient(w[i], batches[i][step])
            m[i], s[i] = 0.9 * m[i] + 0.1 * g, 0.999 * s[i] + 0.001 * g * g
            w[i] = w[i] - 0.02 * (m[i] / (1 - 0.9**t)) / ((s[i] / (1 - 0.999**t)).sqrt() + 1e-8)
        if (step + 1) % tau == 0:
            w = [sum(w) / size] * size
            if policy == "average":
                m, s = [sum(m) / size] * size, [sum(s) / size] * size
            if policy == "reset":
                m, s, t = [zero] * size, [zero] * size, 0
    found = [torch.cat(list(p.me.model)) for p in simulation.workers]
    assert close(torch.stack(found), torch.stack(w), 1e-9)


@pytest.mark.parametrize("policy", ["keep", "average"])
def test_with_tau_1_adam_is_not_allreduce_whatever_becomes_of_its_moments(policy):
    """B39 is about sums of gradients. Adam's second moment is one of squares, and the mean of squares is another
    number than the square of the mean."""
    batches, ends = PROBLEM.batches(3, 10), []
    for strategy in (local_sgd(tau=1, moments=policy), allreduce()):
        simulation = torch_simulation(strategy, adam, batches)
        simulation.run()
        ends.append(weights(simulation))
    assert not close(*ends, 1e-3)


def test_correcting_minds_the_groups_and_the_rates_of_every_step():
    """Two groups with a momentum and a rate of their own, and rates that fall in the middle of an interval."""
    mus, batches, tau = (0.9, 0.5), PROBLEM.batches(2, 4), 4
    rates = [(0.04, 0.02), (0.04, 0.02), (0.01, 0.002), (0.01, 0.002)]

    def optimizer(parameters):
        groups = [{"params": [p], "momentum": mu} for p, mu in zip(parameters, mus, strict=True)]
        return torch.optim.SGD(groups, lr=0.5)

    simulation = torch_simulation(local_sgd(tau=tau, moments="correct"), optimizer, batches)

    def set_rates(me, step):
        for group, rate in zip(me.replica.optimizer.param_groups, rates[step], strict=True):
            group["lr"] = rate

    for worker in simulation.workers:
        set_rates(worker.me, 0)
    simulation.run(on_step=lambda me, now: set_rates(me, min(me.steps, 3)))
    parts = [slice(0, DIM // 2), slice(DIM // 2, DIM)]
    w, v = [PROBLEM.start.clone() for _ in range(2)], [torch.zeros_like(PROBLEM.start) for _ in range(2)]
    for step in range(4):
        for i in range(2):
            g = PROBLEM.gradient(w[i], batches[i][step])
            for part, mu, rate in zip(parts, mus, rates[step], strict=True):
                v[i][part] = mu * v[i][part] + g[part]
                w[i][part] -= rate * v[i][part]
    mean = (w[0] + w[1]) / 2
    for n, (part, mu) in enumerate(zip(parts, mus, strict=True)):
        walked = sum(step[n] for step in rates)
        for worker in simulation.workers:
            replica = worker.me.replica
            parameter = replica.optimizer.param_groups[n]["params"][0]
            way = (1 - mu) * (PROBLEM.start[part] - mean[part]) / walked
            assert close(parameter.detach(), mean[part])
            assert close(replica.optimizer.state[parameter]["momentum_buffer"], way)
