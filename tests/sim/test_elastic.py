"""Elastic averaging with a centre, against plain loops in float64."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.core import Letter, Me
from fast.errors import UsageError, Violation
from fast.sim import Compute, Network
from fast.sim.checkers import Checkers
from fast.sim.checkers.sums import SumOfWeights
from fast.sim.cluster import Cluster, Work
from fast.sim.faults import Director, parse_scenario
from fast.strategies.presets import eamsgd, easgd
from fast.trace import Dropped, Included, Sent, Waited

from .problem import DIM, LeastSquares, RandomCompute, RoundRobin, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.01


def apart(size: int, seed: int = 1) -> list[torch.Tensor]:
    """Where workers begin when they don't begin together; the centre begins with the first."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(DIM, generator=generator, dtype=torch.float64) for _ in range(size)]


# Values


def in_turns(batches, *, tau, alpha, momentum=0.0, nesterov=0.0):
    """Workers one after another, as in the paper: `momentum` is the optimizer's, `nesterov` the method's."""
    size = len(batches)
    c, x = PROBLEM.start, [PROBLEM.start] * size
    b, v = ([torch.zeros_like(c)] * size for _ in range(2))
    for step in range(len(batches[0])):
        for i in range(size):
            g = PROBLEM.gradient(x[i] + nesterov * v[i], batches[i][step])
            delta = torch.zeros_like(c)
            if (step + 1) % tau == 0:
                delta = alpha * (x[i] - c)
                c = c + delta
            b[i] = momentum * b[i] + g
            v[i] = nesterov * v[i] - LR * b[i]
            x[i] = x[i] + v[i] - delta
    return c, torch.stack(x)


def all_at_once(batches, *, tau, alpha, beta):
    c, x = PROBLEM.start, [PROBLEM.start] * len(batches)
    for step in range(len(batches[0])):
        g = [PROBLEM.gradient(w, own[step]) for w, own in zip(x, batches, strict=True)]
        meets = (step + 1) % tau == 0
        mean = torch.stack(x).mean(0)
        x = [w - LR * gradient - meets * alpha * (w - c) for w, gradient in zip(x, g, strict=True)]
        c = c + meets * beta * (mean - c)
    return c, torch.stack(x)


def ends(strategy, batches, **options):
    simulation = PROBLEM.simulation(strategy, batches, lr=LR, **options)
    simulation.run()
    return simulation.me(len(batches)).weights, weights(simulation)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize(("tau", "alpha"), [(1, None), (3, None), (4, 0.4)])
def test_it_is_the_plain_loop(tau, alpha, momentum):
    batches = PROBLEM.batches(4, 24)
    centre, workers = ends(easgd(tau=tau, alpha=alpha), batches, momentum=momentum, compute=RoundRobin())
    needed = in_turns(batches, tau=tau, alpha=0.9 / 4 if alpha is None else alpha, momentum=momentum)
    assert close(centre, needed[0]) and close(workers, needed[1])
    assert not close(centre, PROBLEM.start, 1e-2)


@pytest.mark.parametrize(
    ("tau", "alpha", "beta"), [(1, None, None), (3, 0.1, None), (2, None, 0.6), (2, 0.3, 0.5)]
)
def test_all_at_once_is_the_plain_loop_whoever_is_slow(tau, alpha, beta):
    batches = PROBLEM.batches(4, 12)
    options = {"compute": RandomCompute(), "network": random_network(4, 3, 5), "seed": 3}
    centre, workers = ends(easgd(tau=tau, alpha=alpha, beta=beta, synchronous=True), batches, **options)
    moves = alpha if alpha is not None else (0.9 if beta is None else beta) / 4
    needed = all_at_once(batches, tau=tau, alpha=moves, beta=4 * moves if beta is None else beta)
    assert close(centre, needed[0]) and close(workers, needed[1])


def test_the_delta_is_that_of_before_the_step():
    """The control: taken after it, the loop would end elsewhere."""
    batches = PROBLEM.batches(2, 6)
    centre, _ = ends(easgd(tau=1), batches, compute=RoundRobin())
    c, x = PROBLEM.start, [PROBLEM.start] * 2
    for step in range(6):
        for i in range(2):
            x[i] = x[i] - LR * PROBLEM.gradient(x[i], batches[i][step])
            delta = 0.45 * (x[i] - c)
            c, x[i] = c + delta, x[i] - delta
    assert not close(centre, c, 1e-4)


@pytest.mark.parametrize("mu", [0.5, 0.9])
@pytest.mark.parametrize("tau", [1, 4])
def test_eamsgd_is_the_plain_loop(mu, tau):
    batches = PROBLEM.batches(3, 20)
    centre, workers = ends(eamsgd(momentum=mu, tau=tau), batches, compute=RoundRobin())
    needed = in_turns(batches, tau=tau, alpha=0.3, nesterov=mu)
    assert close(centre, needed[0]) and close(workers, needed[1])
    assert not close(centre, in_turns(batches, tau=tau, alpha=0.3)[0], 1e-3)


@pytest.mark.parametrize("synchronous", [False, True])
def test_eamsgd_without_momentum_is_easgd_bit_for_bit(synchronous):
    """B36."""
    options = {"compute": RandomCompute(), "network": random_network(4, 5, 5), "momentum": 0.4}
    found = [
        ends(strategy, PROBLEM.batches(4, 12), **options)
        for strategy in (eamsgd(0.0, tau=3, synchronous=synchronous), easgd(tau=3, synchronous=synchronous))
    ]
    assert all(equal(a, b) for a, b in zip(*found, strict=True))


def test_a_worker_alone_is_plain_training_bit_for_bit():
    batches, w = PROBLEM.batches(1, 9), PROBLEM.start.clone()
    for batch in batches[0]:
        w -= LR * PROBLEM.gradient(w, batch)
    for strategy in (easgd(tau=2), eamsgd(0.9, tau=2), easgd(tau=2, synchronous=True)):
        assert strategy.servers(1) == 0
        simulation = PROBLEM.simulation(strategy, batches, lr=LR)
        simulation.run()
        assert equal(weights(simulation)[0], w)


# Without gradients: B32, B33, B34, B36


def carried(letter: Letter) -> torch.Tensor | None:
    """What a letter takes from its receiver when it is read."""
    return -letter.tensor if letter.tag == "delta" else None


def watched(strategy, counts, *, starts=None, lr=0.0, sentences="", absent=(), seed=0, **options):
    """A run in which the sum of all weights and of the deltas on their way is looked at after every event."""
    size, checkers = len(counts), Checkers(strategy)
    sums = SumOfWeights(lambda me: me.weights, carried)
    checkers.checkers += (sums,)
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(size, counts),
        lr=lr,
        starts=starts or apart(size),
        observers=[checkers],
        faults=Director(parse_scenario(sentences), seed),
        spoil_letters=True,
        seed=seed,
        absent=absent,
        **{"compute": RandomCompute(), "network": random_network(size, seed, size + 1), **options},
    )
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event)
    checkers.finish()
    assert sums.events > sum(counts)
    return simulation


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_the_sum_is_conserved_and_all_come_to_its_mean(size, synchronous):
    starts = apart(size)
    simulation = watched(
        easgd(tau=1, synchronous=synchronous),
        [70] * size,
        starts=starts,
        compute=RoundRobin(),
        network=Network(1e8, 1e-3),
    )
    mean = (sum(starts) + starts[0]) / (size + 1)
    everybody = torch.cat([weights(simulation), simulation.me(size).weights[None]])
    assert close(everybody, mean.expand_as(everybody), 1e-6)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=2, max_size=5),
    tau=st.integers(1, 3),
    alpha=st.sampled_from([0.05, 0.3, 0.5]),
    synchronous=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_the_sum_is_conserved_whatever_the_order_and_whoever_leaves(counts, tau, alpha, synchronous, seed):
    counts[-1] = max(1, *counts)
    watched(
        easgd(tau=tau, alpha=min(alpha, 2 / (len(counts) + 1)), synchronous=synchronous), counts, seed=seed
    )


def test_the_sum_is_conserved_when_workers_die_and_come():
    """Less what went with the dead, plus what the newcomer brought."""
    simulation = watched(
        easgd(tau=1),
        [60] * 4,
        sentences="worker 1 dies at 9ms; worker 3 joins at 12ms; worker 2 freezes at 5ms for 9ms",
        absent=[3],
    )
    assert simulation.participants[1].dead and simulation.me(3).fresh


def test_the_control_a_centre_that_moves_further_than_the_workers():
    """B36: with beta other than P alpha nothing is conserved."""
    for synchronous in (False, True):
        with pytest.raises(Violation, match="the sum of all weights"):
            watched(easgd(tau=1, alpha=0.2, beta=0.5, synchronous=synchronous), [9] * 4)
        watched(easgd(tau=1, alpha=0.2, beta=0.8, synchronous=synchronous), [9] * 4)


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.5])
def test_the_distance_to_the_centre_shrinks_by_the_same_factor_every_time(alpha):
    """B33: one worker that meets the centre (the other one takes no step)."""
    starts, distances = [*reversed(apart(2))], []
    simulation = PROBLEM.simulation(
        easgd(tau=1, alpha=alpha), PROBLEM.batches(2, [0, 6]), lr=0.0, starts=starts
    )
    simulation.run(on_step=lambda me, now: distances.append(me.weights - simulation.me(2).weights))
    first = starts[1] - starts[0]
    for exchanges, distance in enumerate(distances, 1):
        assert close(distance, (1 - 2 * alpha) ** exchanges * first)
    assert len(distances) == 6


@pytest.mark.parametrize("synchronous", [False, True])
def test_without_a_spring_workers_train_alone(synchronous):
    """B34."""
    batches = PROBLEM.batches(3, 9)
    centre, workers = ends(easgd(tau=1, alpha=0.0, synchronous=synchronous), batches, momentum=0.5)
    assert equal(centre, PROBLEM.start)
    for own, found in zip(batches, workers, strict=True):
        w, b = PROBLEM.start.clone(), torch.zeros_like(PROBLEM.start)
        for batch in own:
            b = 0.5 * b + PROBLEM.gradient(w, batch)
            w -= LR * b
        assert equal(found, w)


@pytest.mark.parametrize("synchronous", [False, True])
def test_who_is_at_the_centre_stays_there(synchronous):
    """B34."""
    simulation = PROBLEM.simulation(easgd(tau=1, synchronous=synchronous), PROBLEM.batches(4, 9), lr=0.0)
    simulation.run()
    assert all(equal(p.me.weights, PROBLEM.start) for p in simulation.participants)


# What it costs, and who waits


@pytest.mark.parametrize("strategy", [easgd(tau=4), easgd(tau=4, synchronous=True), eamsgd(tau=4)], ids=repr)
def test_weights_go_up_and_differences_down_every_tau_steps(strategy):
    sent = Counter()

    def watch(record):
        if isinstance(record, Sent):
            sent[record.who, record.tag] += record.nbytes

    ends(strategy, PROBLEM.batches(3, 22), observers=[watch])
    letter = 8 * DIM + 256
    assert sent == {**{(i, "replica"): 5 * letter for i in range(3)}, (3, "delta"): 3 * 5 * letter}


def test_in_turns_all_others_meet_the_centre_in_between():
    found = []

    def watch(record):
        if isinstance(record, Included):
            found.append(record.staleness)

    ends(easgd(tau=2), PROBLEM.batches(4, 8), compute=RoundRobin(), observers=[watch])
    assert found == [0, 1, 2, 3] + [3] * 12


def test_a_fast_worker_can_not_fill_the_servers_queue():
    """It waits there for its answer, and that is whom its waiting is attributed to."""
    most, waited = Counter(), Counter()

    def watch(record):
        if isinstance(record, Waited):
            waited[record.who, record.on, record.why] += record.waited_ns

    def look(simulation):
        letters = [letter for _, letter in simulation.on_the_way()] + simulation.unread(2)
        there = Counter(letter.sender for letter in letters if letter.tag == "replica")
        for sender, count in there.items():
            most[sender] = max(most[sender], count)

    cluster = Cluster(
        Compute(workers_s={0: 1e-5, 1: 0.5}), Network(1e8, 1e-4), Work(servers=Work(send_s=1e-3))
    )
    simulation = PROBLEM.simulation(
        easgd(tau=1),
        PROBLEM.batches(2, [200, 2]),
        lr=1e-4,
        observers=[watch],
        cluster=cluster,
        network=None,
        compute=None,
    )
    simulation.run(after_event=look)
    assert most == {0: 1, 1: 1}
    assert {key for key in waited if key[0] == 0} == {(0, (2,), "delta")}
    assert waited[0, (2,), "delta"] > 0.1e9


def test_who_comes_back_does_not_take_what_its_life_before_had_asked_for():
    """The server stands still while worker 1 asks at its first step, dies, comes back at the third and asks again."""
    dropped = []

    def watch(record):
        if isinstance(record, Dropped) and record.who == 1:
            dropped.append((record.tag, record.why))

    scenario = (
        "server 0 freezes at 45ms for 100ms; worker 1 dies at 55ms; deaths are noticed after 5ms; "
        "worker 1 returns at 80ms"
    )
    simulation = PROBLEM.simulation(
        easgd(tau=1),
        PROBLEM.batches(3, 20),
        lr=LR,
        observers=[watch],
        faults=Director(parse_scenario(scenario), 0),
        compute=Compute(workers_s={0: 0.02, 1: 0.05, 2: 0.02}),
        network=Network(1e8, 1e-3),
    )
    simulation.run()
    assert simulation.me(1).fresh and simulation.me(1).steps == 2 + 19
    assert dropped == [("delta", "it answers a worker that was gone meanwhile")]


def test_nor_at_the_very_step_at_which_that_had_asked():
    """All ask at their first step, and the server stands still. Worker 1 dies and comes back to its first step."""
    dropped_at = []

    def watch(record):
        if isinstance(record, Dropped) and (record.who, record.tag) == (1, "delta"):
            dropped_at.append(simulation.me(1).steps)

    scenario = (
        "server 0 freezes at 15ms for 100ms; worker 1 dies at 30ms; deaths are noticed after 5ms; "
        "worker 1 returns at 50ms"
    )
    simulation = PROBLEM.simulation(
        easgd(tau=1),
        PROBLEM.batches(3, 6),
        lr=LR,
        observers=[watch],
        faults=Director(parse_scenario(scenario), 0),
        network=Network(1e8, 1e-3),
    )
    simulation.run()
    assert simulation.me(1).fresh and simulation.me(1).steps == 5
    assert dropped_at == [0]  # by the step that had just asked: one later it would have taken the wrong one


# What can't be


@pytest.mark.parametrize(
    "wrong",
    [{"tau": 0}, {"tau": 2.5}, {"alpha": -0.1}, {"alpha": 1.5}, {"beta": 2}, {"alpha": True}, {"alpha": "x"}],
    ids=repr,
)
def test_what_can_not_be_is_refused(wrong):
    for preset in (easgd, eamsgd):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            preset(**wrong)


@pytest.mark.parametrize("momentum", [1, -0.1, True, "x"])
def test_momentum_stays_below_1(momentum):
    with pytest.raises(UsageError, match="momentum"):
        eamsgd(momentum)


def test_springs_that_would_swing_ever_further_are_refused_before_anything_starts():
    easgd(alpha=0.4, synchronous=True).check(4)
    easgd(alpha=0.5).check(4)  # one after another they are never too stiff
    with pytest.raises(UsageError, match=r"alpha \+ beta = 2.5 is more than 2. Take an alpha up to 0.4"):
        easgd(alpha=0.5, synchronous=True).check(4)


def test_the_control_they_do_swing_ever_further():
    strategy = easgd(tau=1, alpha=0.5, synchronous=True)
    strategy.check = lambda workers: None
    simulation = PROBLEM.simulation(strategy, PROBLEM.batches(4, 20), lr=0.0, starts=apart(4))
    simulation.run()
    assert float(weights(simulation).abs().max()) > 100


def test_the_state_is_the_velocity_only_where_there_is_one():
    strategy = eamsgd(0.9)
    simulation = PROBLEM.simulation(strategy, PROBLEM.batches(2, 3), lr=LR)
    simulation.run()

    def state_of(me: Me) -> object:
        return me.state

    assert [state_of(p.me) is None for p in simulation.participants] == [False, False, True]
