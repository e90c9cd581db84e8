"""Neighbours against plain loops: mixing and what it does to moments, rules for late gradients, and leavers."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.codecs import top_k
from fast.errors import UsageError
from fast.parts import Channels, Full, Grid, Ring, Rotating, Star, Torus, Tree, mean, sum_
from fast.parts.topology import Exponential, Hypercube
from fast.parts.topology.spectrum import mixing_matrix, spectrum_of
from fast.rules import by_age, median, momentum_corrected
from fast.sim import Compute, Network
from fast.strategies.presets import allreduce, choco, dpsgd, torus
from fast.trace import Dropped, Included, Sent

from .problem import INSTANT, LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR, STEP_S = 0.05, 0.02


class Constant(LeastSquares):
    """Every worker has the same gradient in every step, whatever its weights are: its row of `a`."""

    def gradient(self, weights, batch):
        return self.a[batch[0]].clone()


def apart(simulation):
    """How far the replicas are from their mean."""
    found = weights(simulation)
    return float((found - found.mean(0)).norm())


def scattered(size, seed=0):
    return list(torch.randn(size, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


# Mixing


@given(st.integers(2, 6), st.integers(0, 10**6))
@settings(max_examples=15)
def test_the_mean_moves_by_the_mean_gradient_on_any_graph(size, seed):
    """B51, also where the graph falls apart."""
    drawn = torch.Generator().manual_seed(seed)
    pairs = [(i, j) for i in range(size) for j in range(i) if torch.rand(1, generator=drawn) < 0.6]
    log, means = [], [PROBLEM.start]
    simulation = PROBLEM.simulation(
        dpsgd(topology=Channels(pairs)), PROBLEM.batches(size, 4), log=log, compute=Compute()
    )

    def look(me, now):
        if len({worker.me.steps for worker in simulation.workers}) == 1:
            means.append(weights(simulation).mean(0))

    simulation.run(on_step=look)
    assert len(means) == 5
    for step in range(4):
        gradient = torch.stack(log[step * size : (step + 1) * size]).mean(0)
        assert close(means[step + 1], means[step] - LR * gradient)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_adapt_then_combine_on_the_full_graph_is_synchronous_sgd(size):
    """B52, and its negative control: in D-PSGD's order every replica keeps its last own step."""
    batches = PROBLEM.batches(size, 10)
    together = PROBLEM.simulation(allreduce(), batches)
    adapting = PROBLEM.simulation(choco(codec=top_k(1.0), gamma=1.0, topology=Full()), batches)
    combining = PROBLEM.simulation(dpsgd(topology=Full()), batches)
    for simulation in (together, adapting, combining):
        simulation.run()
    assert close(weights(adapting), weights(together))
    assert not close(weights(combining), weights(together), 1e-3)
    assert apart(combining) > 0.01 > 1e-12 > apart(together)


@pytest.mark.parametrize(
    "topology", [Ring(), Torus(), Star(), Grid(), Exponential(), Hypercube(one_peer=True)], ids=repr
)
def test_without_gradients_the_distance_decays_as_the_spectrum_says(topology):
    """B49, in the simulator: from anywhere, by the second eigenvalue per step."""
    size, steps = 8, 40
    simulation = PROBLEM.simulation(
        dpsgd(topology=topology), [[(0,)] * steps] * size, lr=0.0, starts=scattered(size)
    )
    distances = {0: apart(simulation)}
    simulation.run(on_step=lambda me, now: distances.update({me.steps: apart(simulation)}))
    found = spectrum_of(topology, size)
    if found.factor == 0:
        assert distances[found.rounds] < 1e-12
        return
    assert all(distances[t] <= found.after(t) * distances[0] + 1e-12 for t in range(steps + 1))
    early, late = (24, 40) if found.factor > 0.6 else (8, 24)
    assert distances[late] / distances[early] == pytest.approx(found.after(late - early), rel=0.05)


def moments_loop(policy, topology, batches, mu=0.9, steps=10):
    """x <- W x - eta v with v <- mu v + g, and what a policy makes of v afterwards."""
    size, w = len(batches), mixing_matrix(topology, len(batches))
    x = PROBLEM.start.repeat(size, 1)
    v, past = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(steps):
        g = torch.stack([PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)])
        v = mu * v + g
        after = w @ x - LR * v
        if policy == "average":
            v = w @ v
        if policy == "reset":
            v = torch.zeros_like(v)
        if policy == "correct":
            v = past = mu * past + (1 - mu) * (x - after) / LR
        x = after
    return x, v


@pytest.mark.parametrize("topology", [Ring(), Tree()], ids=repr)
@pytest.mark.parametrize("policy", ["keep", "average", "reset", "correct"])
def test_moments(policy, topology):
    batches = PROBLEM.batches(5, 10)
    simulation = PROBLEM.simulation(
        dpsgd(topology=topology, moments=policy), batches, momentum=0.9,
        compute=RandomCompute(), network=random_network(5, 2), seed=2,
    )  # fmt: skip
    simulation.run()
    x, v = moments_loop(policy, topology, batches)
    assert close(weights(simulation), x)
    assert close(torch.stack([worker.me.replica.velocity for worker in simulation.workers]), v)


def test_the_policies_differ():
    """The negative control of the loops above."""
    batches = PROBLEM.batches(5, 10)
    ends = [moments_loop(policy, Ring(), batches)[0] for policy in ("keep", "average", "reset", "correct")]
    assert all(not close(a, b, 1e-3) for i, a in enumerate(ends) for b in ends[:i])


@pytest.mark.parametrize("policy", ["keep", "average", "reset", "correct"])
def test_alone_no_policy_changes_a_bit(policy):
    batches = PROBLEM.batches(1, 8)
    simulation = PROBLEM.simulation(dpsgd(moments=policy), batches, momentum=0.9)
    simulation.run()
    w, v = PROBLEM.start.clone(), torch.zeros(20, dtype=torch.float64)
    for batch in batches[0]:
        v = 0.9 * v + PROBLEM.gradient(w, batch)
        w -= LR * v
    assert equal(weights(simulation)[0], w)


def test_what_averaging_moments_costs():
    """The weights to two neighbours, and the momentum to both of them."""
    sent = {}
    for policy in ("keep", "average"):
        records = []
        PROBLEM.simulation(
            dpsgd(moments=policy), PROBLEM.batches(4, 6), momentum=0.9, observers=[records.append]
        ).run()
        counted = Counter()
        for record in records:
            if isinstance(record, Sent):
                counted[record.tag] += len(record.to)
        sent[policy] = counted
    assert sent["keep"] == {"mix": 4 * 2 * 7}  # the last ones of those who leave, too
    assert sent["average"] == {"mix": 4 * 2 * 7, "moments": 4 * 2 * 6}


def test_a_policy_has_a_name():
    with pytest.raises(UsageError, match="'keep'"):
        dpsgd(moments="mean")


def test_one_way_links_without_mixing_weights_are_refused_before_anything_starts():
    unbalanced = Channels(one_way=[(0, 1), (0, 2), (1, 2), (2, 0)])
    for topology in (unbalanced, Rotating([Ring(), unbalanced])):
        with pytest.raises(UsageError, match="Use a strategy with push-sum"):
            dpsgd(topology=topology).check(3)
    for topology in (Exponential(), Exponential(one_peer=False), Channels(one_way=[(0, 1), (1, 2), (2, 0)])):
        dpsgd(topology=topology).check(3)


def test_on_a_long_way_round_letters_of_many_steps_may_wait_at_a_straggler():
    """One-way links hold nobody back but in a circle: on one of 70 who tells the straggler is up to 69 steps ahead."""
    size, steps, most = 70, 72, 0

    def look(me, now):
        nonlocal most
        most = max(most, len(simulation.unread(1)))

    circle = Channels(one_way=[(i, (i + 1) % size) for i in range(size)])
    slow = Compute(workers_s={1: 10.0})
    simulation = PROBLEM.simulation(dpsgd(topology=circle), [[(0,)] * steps] * size, compute=slow)
    simulation.run(on_step=look)
    assert [p.me.steps for p in simulation.workers] == [steps] * size
    assert most > 64


# Gradients to neighbours, and rules for those that are late


def delayed(strategy, size, steps, late, momentum=0.0, problem=PROBLEM):
    """All are equally fast, and what is sent in a step is read `late` steps after it."""
    network = Network(float("inf"), (late - 0.5) * STEP_S) if late > 1 else INSTANT
    simulation = problem.simulation(
        strategy, problem.batches(size, steps), momentum=momentum, network=network, compute=Compute(STEP_S)
    )
    simulation.run(pause_after=steps)
    return weights(simulation)


def by_hand(merge, topology, size, steps, late, *, send, momentum=0.0):
    """The same, with `merge(own, heard, age)`; what is sent is remembered by step."""
    x, v = [PROBLEM.start] * size, [torch.zeros(20, dtype=torch.float64)] * size
    batches, sent = PROBLEM.batches(size, steps), {}
    for step in range(steps):
        own = [PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)]
        merged = []
        for i in range(size):
            heard = [sent[step - late][j] for j in topology.links(i, size, 0)] if step >= late else []
            merged.append(merge(own[i], heard, late))
        sent[step] = own if send == "own" else merged
        for i in range(size):
            v[i] = momentum * v[i] + merged[i]
            x[i] = x[i] - LR * v[i]
    return torch.stack(x)


def plain_mean(own, heard, age):
    return (own + sum(heard)) / (1 + len(heard))


def half_for_each_step(own, heard, age):
    return (own + sum(heard) / (1 + age)) / (1 + len(heard) / (1 + age))


@pytest.mark.parametrize("late", [1, 3])
@pytest.mark.parametrize("send", ["own", "merged"])
@pytest.mark.parametrize(
    ("rule", "merge"), [(mean, plain_mean), (by_age(), half_for_each_step)], ids=["mean", "by_age"]
)
def test_rules_on_a_torus(rule, merge, send, late):
    found = delayed(torus(rule=rule, send=send), 6, 10, late)
    assert close(found, by_hand(merge, Torus(), 6, 10, late, send=send))


@pytest.mark.parametrize("late", [1, 3])
def test_momentum_corrected_gradients_act_as_if_they_had_come_in_time(late):
    """Whatever has arrived of a step s counts in the weights after step t like a gradient that was given to heavy
    ball's momentum in step s: its share times (1 - mu^(t - s + 1)) / (1 - mu). No velocity is kept here."""
    size, steps, mu, topology = 4, 9, 0.9, Ring()
    found = delayed(
        torus(rule=momentum_corrected(mu), send="own", topology=topology), size, steps, late, momentum=mu
    )
    batches = PROBLEM.batches(size, steps)
    shares = [[] for _ in range(size)]  # (the step of a gradient, its share times the gradient)
    x, sent = [PROBLEM.start] * size, {}
    for step in range(steps):
        sent[step] = [PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)]
        for i in range(size):
            heard = topology.links(i, size, 0) if step >= late else ()
            share = 1 / (1 + len(heard))
            shares[i].append((step, share * sent[step][i]))
            shares[i] += [(step - late, share * sent[step - late][j]) for j in heard]
            x[i] = PROBLEM.start - LR * sum((1 - mu ** (step - s + 1)) / (1 - mu) * g for s, g in shares[i])
    assert close(found, torch.stack(x), 1e-9)
    plain = delayed(torus(rule=mean, send="own", topology=topology), size, steps, late, momentum=mu)
    assert not close(found, plain, 1e-3)


@pytest.mark.parametrize("late", [1, 3])
def test_momentum_corrected_and_passed_on(late):
    """The plain mean is what is passed on: what is given ahead would be given ahead again at every hop."""
    size, steps, mu, topology = 5, 9, 0.9, Ring()
    x, v, owed = ([start] * size for start in (PROBLEM.start, 0 * PROBLEM.start, 0 * PROBLEM.start))
    batches, sent = PROBLEM.batches(size, steps), {}
    for step in range(steps):
        own = [PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)]
        sent[step] = []
        for i in range(size):
            heard = [sent[step - late][j] for j in topology.links(i, size, 0)] if step >= late else []
            sent[step].append(plain_mean(own[i], heard, late))
            ahead = sum(heard, 0 * own[i]) / (1 + len(heard)) * sum(mu**n for n in range(1, late + 1))
            v[i] = mu * v[i] + sent[step][i] + ahead - owed[i]
            x[i], owed[i] = x[i] - LR * v[i], ahead
    found = delayed(torus(rule=momentum_corrected(mu), topology=topology), size, steps, late, momentum=mu)
    assert close(found, torch.stack(x), 1e-9)


def test_a_function_of_ones_own():
    """Own and heard half and half, whatever the number of those heard."""

    def halves(own, weight, arrived):
        if not arrived:
            return own
        return (own + sum(letter.tensor / letter.count for letter in arrived) / len(arrived)) / 2

    def merge(own, heard, age):
        return (own + sum(heard) / len(heard)) / 2 if heard else own

    strategy = torus(rule=halves)
    assert strategy.call.startswith("torus(rule=halves, send='auto', ")
    found = delayed(strategy, 6, 10, 1)
    assert close(found, by_hand(merge, Torus(), 6, 10, 1, send="own"))


@pytest.mark.parametrize("size", [2, 4, 9])
def test_constant_gradients_move_each_by_the_mean_over_its_neighbourhood(size):
    """B71. Each step after the first moves w_i by eta times the mean over itself and those it hears, for there
    is no delay where gradients never change; and on a torus the mean over replicas by eta times the mean of all."""
    problem, topology = Constant(), Torus()
    runs = [problem.start.repeat(size, 1)]
    for count in range(1, 5):
        simulation = problem.simulation(torus(send="own"), [[(i,)] * count for i in range(size)])
        simulation.run(pause_after=count)
        runs.append(weights(simulation))
    g = problem.a[:size]
    assert close(runs[1] - runs[0], -LR * g)
    for before, after in pairwise(runs[1:]):
        for i in range(size):
            around = [i, *topology.links(i, size, 0)]
            assert close(after[i] - before[i], -LR * g[around].mean(0))
        assert close((after - before).mean(0), -LR * g.mean(0))


def test_sum_on_the_full_graph_is_a_large_batch_with_the_rate_times_p():
    """B71, B17: rounds of one step each, in which everybody has everybody's gradient before the next begins."""
    size, w = 4, PROBLEM.start
    mine = w
    for step in range(6):
        batches = [[rows[step]] for rows in PROBLEM.batches(size, 6)]
        simulation = PROBLEM.simulation(
            torus(rule=sum_, send="own", topology=Full()), batches, starts=[mine] * size, lr=0.01,
            compute=RandomCompute(), network=random_network(size, step), seed=step,
        )  # fmt: skip
        simulation.run(pause_after=1)
        simulation.run()
        assert close(weights(simulation), weights(simulation)[0].expand(size, -1))
        mine = weights(simulation)[0]
        w = w - 0.01 * size * PROBLEM.gradient(w, tuple(row for each in batches for row in each[0]))
    assert close(mine, w)


@pytest.mark.parametrize("topology", [Torus(), Star(), Tree()], ids=repr)
def test_what_is_passed_on_settles_at_the_inverse_of_one_plus_the_laplacian(topology):
    """With constant gradients, a step after many moves the weights by eta (I + L)^-1 g, on any graph."""
    size, steps, problem, runs = 8, 70, Constant(), []
    simulation = problem.simulation(torus(topology=topology), [[(i,)] * steps for i in range(size)])
    for count in (steps - 1, steps):
        simulation.run(pause_after=count)
        runs.append(weights(simulation))
    links = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        links[i, list(topology.links(i, size, 0))] = 1.0
    laplacian = torch.diag(links.sum(1)) - links
    m = torch.linalg.solve(torch.eye(size, dtype=torch.float64) + laplacian, problem.a[:size])
    assert close(runs[1] - runs[0], -LR * m, 1e-7)
    assert close(m.mean(0), problem.a[:size].mean(0))
    assert float(torch.linalg.eigvalsh(torch.eye(size) + laplacian).min()) >= 1 - 1e-6
    around = torch.linalg.eigvalsh((torch.eye(4) + _ring_of_four()) / 3)
    assert float(around.min()) == pytest.approx(-1 / 3)  # what send='own' has instead


def _ring_of_four():
    return torch.tensor([[0.0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])


@pytest.mark.parametrize(
    ("build", "sends"),
    [
        (lambda: torus(), "merged"),
        (lambda: torus(rule=by_age()), "merged"),
        (lambda: torus(rule=momentum_corrected(0.9)), "merged"),
        (lambda: torus(rule=sum_), "own"),
        (lambda: torus(rule=median()), "own"),
        (lambda: torus(rule=lambda own, weight, arrived: own), "own"),
        (lambda: torus(bucket_mb=1.0), "own"),
        (lambda: torus(send="own"), "own"),
        (lambda: torus(rule=median(), send="merged"), "merged"),
    ],
)
def test_what_is_passed_on_unless_told(build, sends):
    strategy = build()
    assert strategy.what == sends
    assert strategy.knobs.get("send", ()) in (
        (),
        *[(other,) for other in ("own", "merged") if other != sends],
    )


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: torus(rule=sum_, send="merged"), "grows without end"),
        (lambda: torus(bucket_mb=1.0, send="merged"), "made of the whole gradient"),
        (lambda: torus(send="all"), "'own'"),
    ],
)
def test_what_cannot_be_passed_on(build, why):
    with pytest.raises(UsageError, match=why):
        build()


# Leavers


def test_after_a_departure_the_mean_of_those_who_stay_moves_by_their_gradient():
    """B70, by values: worker 2 leaves after 3 steps. Its last weights are mixed in step 3; from then on those who
    stay are balanced among themselves, before and after the ring is knit anew."""
    size, counts = 5, [14, 14, 3, 14, 14]
    stay = [0, 1, 3, 4]
    simulation = PROBLEM.simulation(dpsgd(), PROBLEM.batches(size, counts))
    batches, seen, views = PROBLEM.batches(size, counts), {}, {}

    def look(me, now):
        if me.id in stay:
            seen[me.steps, me.id] = me.weights.clone()
            views[me.steps, me.id] = me.view.workers

    simulation.run(on_step=look)
    for step in range(4, 14):
        before = torch.stack([seen[step, i] for i in stay])
        g = torch.stack([PROBLEM.gradient(seen[step, i], batches[i][step]) for i in stay])
        after = torch.stack([seen[step + 1, i] for i in stay])
        assert close(after.mean(0), before.mean(0) - LR * g.mean(0)), step
    assert views[14, 0] == (0, 1, 3, 4) and views[5, 0] == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("seed", range(4))
def test_no_queued_gradient_of_a_leaver_is_lost(seed):
    """B70. Everybody hears everybody and adds up; worker 1 leaves early and letters take many steps. Those who stay
    have all gradients of all workers in the end, the leaver's too, each once."""
    size, counts, log = 4, [9, 3, 9, 9], []
    simulation = PROBLEM.simulation(
        torus(rule=sum_, topology=Full()), PROBLEM.batches(size, counts), lr=0.01, log=log,
        compute=RandomCompute(), network=random_network(size, seed), seed=seed,
    )  # fmt: skip
    simulation.run(pause_after=9)
    simulation.run()
    expected = PROBLEM.start - 0.01 * sum(log)
    for i in (0, 2, 3):
        assert close(weights(simulation)[i], expected)
    assert len(log) == sum(counts)


@pytest.mark.parametrize(
    "rule", [mean, by_age(), momentum_corrected(0.9)], ids=["mean", "by age", "corrected"]
)
@pytest.mark.parametrize("seed", range(3))
def test_letters_to_those_who_stay_are_merged_once_whoever_leaves(rule, seed):
    """And those to a leaver are reported as dropped."""
    records, counts = [], [8, 2, 8, 5, 8, 8]
    PROBLEM.simulation(
        torus(rule=rule), PROBLEM.batches(6, counts, size=1), lr=0.01, observers=[records.append],
        compute=RandomCompute(), network=random_network(6, seed), seed=seed,
    ).run()  # fmt: skip
    fate = Counter()
    for record in records:
        if isinstance(record, Sent):
            fate.update((record.who, to, record.step) for to in record.to)
        if isinstance(record, Included):
            fate.subtract([(record.sender, record.who, record.step)])
        if isinstance(record, Dropped):
            fate.subtract((record.sender, record.to, step) for step in record.steps)
    assert len(fate) > 50 and not any(fate.values())
