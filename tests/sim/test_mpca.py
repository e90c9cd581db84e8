"""The reconstruction of MPCA-SGD, against plain loops in float64."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.errors import UsageError
from fast.sim import Compute, Network
from fast.sim.checkers import Checkers
from fast.sim.faults import Director, parse_scenario
from fast.strategies.central.tree import children
from fast.strategies.decentral.mpca import FollowMaster
from fast.strategies.presets import easgd, local_sgd, mpca_sgd, sparknet
from fast.trace import Sent, Waited

from .problem import DIM, LeastSquares, RandomCompute, close, equal, random_network, weights

PROBLEM = LeastSquares()
LR = 0.01
SOON = Network(float("inf"), 1e-3)
"""A letter takes much less than a step, and is read in the next one."""


def apart(size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(DIM, generator=generator, dtype=torch.float64) for _ in range(size)]


def run(strategy, counts, **options):
    size = len(counts)
    simulation = PROBLEM.simulation(
        strategy, PROBLEM.batches(size, counts), **{"lr": LR, "network": SOON, **options}
    )
    simulation.run()
    return simulation


# Values


def two_workers(batches, *, tau, rho, kappa, rate, momentum):
    """Both right below the master: what they send after a step is answered before their next one ends."""
    m, v, x = PROBLEM.start, torch.zeros_like(PROBLEM.start), [PROBLEM.start] * 2
    known, before, came, period, taken, answer = m, m, 0, 1, 0, None
    for step in range(len(batches[0])):
        g = [PROBLEM.gradient(w, own[step]) for w, own in zip(x, batches, strict=True)]
        if answer is not None:
            known, before, period, came, answer = answer, known, step - came, step, None
        p = known + kappa * min(1.0, (step - came) / period) * (known - before)
        x = [w - LR * (gradient + rho * (w - p)) for w, gradient in zip(x, g, strict=True)]
        if step + 1 - taken >= tau and answer is None:
            taken = step + 1
            v = momentum * v + (x[0] + x[1]) / 2 - m
            answer = m = m + rate * v
    return m, torch.stack(x)


@pytest.mark.parametrize(
    ("tau", "rho", "kappa", "rate", "momentum"),
    [(1, 2.0, 1.0, 1.0, 0.0), (3, 5.0, 0.5, 1.0, 0.0), (4, 1.0, 1.0, 0.7, 0.4), (5, 3.0, 0.0, 1.0, 0.0)],
)
def test_it_is_the_plain_loop(tau, rho, kappa, rate, momentum):
    simulation = run(mpca_sgd(tau, rho, kappa, rate, momentum), [23] * 2)
    master, workers = two_workers(
        PROBLEM.batches(2, 23), tau=tau, rho=rho, kappa=kappa, rate=rate, momentum=momentum
    )
    assert close(simulation.me(2).weights, master) and close(weights(simulation), workers)
    assert not close(master, PROBLEM.start, 1e-2)


class Noting(FollowMaster):
    """Keeps what each step's gradient was made of, and what it became."""

    def __init__(self, **options):
        super().__init__(**options)
        self.noted = []

    def _penalised(self, me):
        state = me.state
        made_of = [each.clone() for each in (me.weights, me.gradient, state.master, state.before)]
        became = super()._penalised(me)
        self.noted.append((me.steps - state.came, state.period, *made_of, became.clone()))
        return became


def test_a_late_master_is_expected_no_further_ahead_than_it_went_in_one_period():
    strategy = Noting(tau=2, rho=2.0, kappa=0.7)
    run(strategy, [40] * 4, compute=RandomCompute(), network=random_network(4, 2, 5))
    late = [age > period and not close(m, b, 1e-6) for age, period, _, _, m, b, _ in strategy.noted]
    assert sum(late) > 5, "it was never late"
    for age, period, w, g, master, before, became in strategy.noted:
        expected = master + 0.7 * min(age / period, 1.0) * (master - before)
        assert close(became, g + 2.0 * (w - expected))


@pytest.mark.parametrize("size", [2, 3, 6, 9])
@pytest.mark.parametrize("tau", [1, 4])
def test_without_a_penalty_and_with_replacing_it_is_sparknet(size, tau):
    """B38: the same means, whoever is slow; the sum is made along the tree."""
    options = {"compute": RandomCompute(), "network": random_network(size, 2, size + 1), "momentum": 0.5}
    found, needed = (
        run(strategy, [12] * size, **options)
        for strategy in (mpca_sgd(tau=tau, rho=0.0, replace=True), sparknet(tau=tau))
    )
    assert close(weights(found), weights(needed))
    assert close(found.me(size).weights, weights(needed)[0])


def test_the_control_who_does_not_wait_is_elsewhere():
    found, needed = (run(s, [12] * 3) for s in (mpca_sgd(tau=4, rho=0.0), local_sgd(tau=4)))
    assert not close(weights(found), weights(needed), 1e-4)


def test_without_extrapolation_a_step_is_half_of_easgds_exchange():
    """B38: kappa = 0 and eta rho = alpha, with a master and a centre that stay where they are."""
    alpha, starts = 0.3, apart(3)
    mpca = run(mpca_sgd(tau=1000, rho=alpha / LR, kappa=0.0), [12] * 3)
    elastic = run(easgd(tau=1, alpha=alpha, beta=0.0), [12] * 3)
    assert close(weights(mpca), weights(elastic))
    assert equal(mpca.me(3).weights, PROBLEM.start) and equal(elastic.me(3).weights, PROBLEM.start)
    free = run(mpca_sgd(tau=1000, rho=0.0), [12] * 3, starts=starts)
    assert not close(weights(mpca), weights(free), 1e-3)


def test_alone_it_is_plain_training_bit_for_bit():
    batches, w = PROBLEM.batches(1, 9), PROBLEM.start.clone()
    for batch in batches[0]:
        w -= LR * PROBLEM.gradient(w, batch)
    for replace in (False, True):
        assert equal(weights(run(mpca_sgd(tau=2, replace=replace), [9]))[0], w)


# The exchange


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("replace", [False, True])
def test_the_master_becomes_the_mean_of_all_snapshots(size, replace):
    starts, end = apart(size), At(0.3)
    strategy = mpca_sgd(tau=3, rho=0.0, replace=replace)
    checked(strategy, [30] * size, lr=0.0, starts=starts, stop=end)
    assert len(end.there) == size
    assert close(end.master, torch.stack(starts).mean(0))


def sent_by(strategy, counts, **options):
    sent = []

    def watch(record):
        if isinstance(record, Sent):
            sent.extend((record.who, to, record.tag, record.step) for to in record.to)
            assert record.nbytes == len(record.to) * (8 * DIM + 256)

    simulation = run(strategy, counts, observers=[watch], **options)
    return simulation, sent


def test_sums_go_up_the_tree_and_the_master_comes_down_it():
    """Place 0 is the server's, place i + 1 that of worker i."""
    simulation, sent = sent_by(mpca_sgd(tau=8), [30] * 6)
    rounds = simulation.me(6).state.round
    peers = {0: 6, **{place: place - 1 for place in range(1, 7)}}
    edges = {(peers[child], peers[place]) for place in range(7) for child in children(place, 7)}
    assert rounds == 3
    assert Counter((who, to) for who, to, tag, _ in sent if tag == "snapshots") == dict.fromkeys(
        edges, rounds
    )
    down = Counter((who, to) for who, to, tag, _ in sent if tag == "master")
    assert down == dict.fromkeys({(b, a) for a, b in edges}, rounds)


@pytest.mark.parametrize(("latency_s", "every"), [(1e-3, [4, 4, 4, 4]), (0.059, [6, 6, 6])])
def test_a_snapshot_comes_tau_steps_after_the_last_or_when_that_is_answered(latency_s, every):
    """A step takes 20 ms. Answers that take 118 ms are read 6 steps later, and then the next one is sent."""
    _, sent = sent_by(mpca_sgd(tau=4), [26] * 2, network=Network(float("inf"), latency_s))
    steps = [step for who, _, tag, step in sent if who == 0 and tag == "snapshots"]
    assert steps[0] == 3
    assert [b - a for a, b in pairwise(steps)][: len(every)] == every


def test_nobody_ever_waits():
    waited = []

    def watch(record):
        if isinstance(record, Waited) and record.who < 5:
            waited.append(record)

    options = {"compute": RandomCompute(), "network": random_network(5, 9, 6)}
    run(mpca_sgd(tau=1), [15] * 5, observers=[watch], **options)
    assert not waited


# Leaving, dying, coming


def checked(strategy, counts, *, sentences="", seed=0, stop=None, **options):
    checkers, size = Checkers(strategy), len(counts)
    simulation = PROBLEM.simulation(
        strategy,
        PROBLEM.batches(size, counts),
        observers=[checkers],
        faults=Director(parse_scenario(sentences), seed),
        spoil_letters=True,
        seed=seed,
        **{"lr": LR, "network": SOON, **options},
    )
    checkers.attach(simulation)
    simulation.run(after_event=checkers.after_event, stop=stop)
    checkers.finish()
    return simulation


class At:
    """All stop at this time. What the master was, and who was there, is kept."""

    def __init__(self, time_s):
        self.time_ns, self.master, self.there = time_s * 1e9, None, []

    def __call__(self, simulation):
        if simulation.now_ns < self.time_ns:
            return False
        if self.master is None:
            self.master = simulation.servers[0].me.weights.clone()
            self.there = [p.me.id for p in simulation.workers if p.alive]
        return True


@pytest.mark.parametrize("leaver", range(7))
def test_whoever_leaves_the_exchange_goes_on_among_the_others(leaver):
    """Without gradients the master comes to the mean of those who stayed."""
    counts = [5 + leaver % 3 if worker == leaver else 70 for worker in range(7)]
    starts, end = apart(7), At(1.0)
    simulation = checked(mpca_sgd(tau=3, rho=0.0), counts, starts=starts, lr=0.0, stop=end)
    stayed = [start for worker, start in enumerate(starts) if worker != leaver]
    assert end.there == [worker for worker in range(7) if worker != leaver]
    assert close(end.master, torch.stack(stayed).mean(0), 1e-3)
    assert simulation.me(7).state.round > 4


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("latency_s", [1e-3, 0.03])
def test_who_is_below_a_leaver_turns_to_its_parent(steps, latency_s):
    """Worker 2 is below worker 1, which is slow, and leaves before it has passed on the sum, or the answer, or after
    both."""
    starts, end = apart(3), At(1.5)
    simulation = {
        "compute": Compute(workers_s={0: 0.02, 1: 0.05, 2: 0.02}),
        "network": Network(1e9, latency_s),
    }
    checked(mpca_sgd(3, rho=0.0), [90, steps, 90], starts=starts, lr=0.0, stop=end, **simulation)
    assert end.there == [0, 2]
    assert close(end.master, (starts[0] + starts[2]) / 2, 1e-2)


@pytest.mark.parametrize("at", [30, 70, 110])
def test_who_comes_takes_its_place_above_others(at):
    """Worker 1 comes when worker 2, which is below it, has told the master itself."""
    starts, end, sentences = apart(3), At(1.0), f"worker 1 joins at {at}ms"
    simulation = checked(
        mpca_sgd(tau=3, rho=0.0), [60] * 3, starts=starts, lr=0.0, stop=end, sentences=sentences, absent=[1]
    )
    there = torch.stack([simulation.me(worker).weights for worker in range(3)])
    assert end.there == [0, 1, 2] and simulation.me(1).fresh
    assert close(end.master, there.mean(0))


def test_who_comes_back_unseen_is_told_once_more():
    """Worker 4 tells worker 3, which waits for the slow worker 5, dies and comes back while worker 4 computes."""
    end = At(3.5)
    simulation = checked(
        mpca_sgd(tau=1),
        [200] * 6,
        sentences="worker 3 dies at 250ms; deaths are noticed after 5ms; worker 3 returns at 280ms",
        compute=Compute(workers_s={4: 0.2, 5: 1.0}),
        stop=end,
    )
    assert simulation.me(3).fresh and end.there == [*range(6)]
    assert simulation.me(6).state.round >= 2 and not close(end.master, PROBLEM.start, 1e-3)


@pytest.mark.parametrize("leaver", range(7))
def test_nobody_waits_for_who_has_left(leaver):
    counts = [7 if worker == leaver else 30 for worker in range(7)]
    simulation = checked(mpca_sgd(tau=3, replace=True), counts, compute=RandomCompute())
    assert [p.me.steps for p in simulation.workers] == counts
    assert simulation.me(7).state.round == 10


def test_the_last_one_to_leave_is_not_the_model():
    """A short while alone moves the master by its share of the way."""
    starts = apart(4)
    simulation = checked(mpca_sgd(tau=3, rho=0.0), [30, 30, 30, 33], starts=starts, lr=0.0)
    mean, master = torch.stack(starts).mean(0), simulation.me(4).weights
    assert float((master - mean).norm()) < 0.5 * float((starts[3] - mean).norm())


@settings(max_examples=12, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12), min_size=2, max_size=8),
    tau=st.integers(1, 3),
    replace=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_all_end_whoever_leaves_and_the_last_one_still_talks_to_the_master(counts, tau, replace, seed):
    size, counts[-1] = len(counts), 40
    simulation = checked(
        mpca_sgd(tau, rho=0.1, replace=replace),
        counts,
        seed=seed,
        compute=RandomCompute(),
        network=random_network(size, seed, size + 1),
    )
    assert [p.me.steps for p in simulation.workers] == counts
    assert replace or simulation.me(size).state.round >= 1


@settings(max_examples=6, deadline=None)
@given(
    size=st.integers(3, 6),
    dies=st.integers(0, 7),
    joins=st.integers(0, 7),
    at=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    seed=st.integers(0, 10_000),
)
def test_who_dies_or_comes_is_taken_out_or_in(size, dies, joins, at, seed):
    """In the end everybody who is there is in the mean: without gradients and with all of them at one place."""
    dies, joins = dies % size, joins % size
    if dies == joins:
        joins = (dies + 1) % size
    end = At(1.7)
    simulation = checked(
        mpca_sgd(tau=2, rho=0.0),
        [120] * size,
        seed=seed,
        sentences=f"worker {dies} dies at {at[0]}ms; worker {joins} joins at {at[1]}ms; deaths are noticed after 90ms",
        absent=[joins],
        starts=apart(size),
        lr=0.0,
        stop=end,
    )
    there = [simulation.me(worker).weights for worker in end.there]
    assert simulation.me(joins).fresh and len(there) == size - 1
    assert close(end.master, torch.stack(there).mean(0), 1e-3)


# What can't be


@pytest.mark.parametrize(
    "wrong",
    [{"tau": 0}, {"rho": -1}, {"rho": float("inf")}, {"kappa": "x"}, {"rate": 1.5}, {"momentum": True}],
    ids=repr,
)
def test_what_can_not_be_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        mpca_sgd(**wrong)
