"""Push-sum against plain loops over columns of shares: sums, masses, models; and what departures do to them."""

import pytest
import torch

from fast.errors import UsageError
from fast.parts import Channels, Exponential, Full, Hypercube, Ring, Rotating, Shuffled, Star, Torus, Tree
from fast.parts.topology.spectrum import spectrum_of
from fast.sim import NETWORKS, Compute
from fast.sim.checkers.sums import SumOfWeights
from fast.strategies.decentral.pushsum import NEWS, PushSum, some_of
from fast.strategies.presets import dpsgd, osgp, sgp
from fast.testing.topology import mixing_matrix, push_matrix
from fast.trace import Included, Sent

from .problem import DIM, LeastSquares, RandomCompute, close, equal, random_network, weights
from .schedules import FEW_AND_MANY, counts_of, run_watched

PROBLEM = LeastSquares()
LR = 0.05
UNBALANCED = Channels(one_way=[(0, 1), (0, 2), (1, 2), (2, 3), (3, 0), (1, 3)])
"""Among four: nobody hears as many as it tells."""
GRAPHS = [
    (Exponential(), 1), (Exponential(), 2), (Exponential(), 3), (Exponential(), 8),
    (Exponential(one_peer=False), 5), (UNBALANCED, 4), (Star(), 5), (Rotating([Ring(), Exponential()]), 6),
]  # fmt: skip
each_graph = pytest.mark.parametrize(("topology", "size"), GRAPHS, ids=repr)


def starts_of(size, seed=0):
    return list(torch.randn(size, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def masses(simulation):
    return torch.tensor([p.me.state.mass for p in simulation.workers], dtype=torch.float64)


def build(strategy, size, steps, *, seed=None, **options):
    """Everything from equal times and no network to random ones, by seed."""
    wild = {}
    if seed is not None:
        wild = {"compute": RandomCompute(), "network": random_network(size, seed), "seed": seed}
    return PROBLEM.simulation(strategy, PROBLEM.batches(size, steps), **{"lr": LR, **wild, **options})


# Against plain loops


def pushed(topology, size, steps, overlap=0, momentum=0.0):
    """x, w and z = x / w as matrices and columns: the model after each step, and the masses at the end."""
    batches = PROBLEM.batches(size, steps)
    x, w = PROBLEM.start.repeat(size, 1), torch.ones(size, dtype=torch.float64)
    v, sent = torch.zeros_like(x), []
    for step in range(steps):
        shares = push_matrix(topology, size, step)
        kept = torch.diag(shares.diagonal())
        z = x / w[:, None]
        if overlap:
            sent.append(((shares - kept) @ x, (shares - kept) @ w))
            x, w = kept @ x, kept @ w
        v = momentum * v + torch.stack([PROBLEM.gradient(z[i], batches[i][step]) for i in range(size)])
        x = x - LR * v
        if not overlap:
            x, w = shares @ x, shares @ w
        elif len(sent) >= overlap:
            came = sent.pop(0)
            x, w = x + came[0], w + came[1]
    return x / w[:, None], w


@each_graph
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgp_is_the_matrix_loop(topology, size, momentum):
    simulation = build(sgp(topology=topology), size, 10, seed=size, momentum=momentum)
    simulation.run()
    z, w = pushed(topology, size, 10, momentum=momentum)
    assert close(weights(simulation), z)
    assert close(masses(simulation), w)


@each_graph
@pytest.mark.parametrize("overlap", [1, 2, 4])
def test_osgp_takes_letters_in_exactly_that_much_later(topology, size, overlap):
    simulation = build(osgp(topology=topology, overlap=overlap), size, 10, seed=size)
    simulation.run()
    z, _ = pushed(topology, size, 10, overlap=overlap)
    assert close(weights(simulation), z)


@pytest.mark.parametrize(
    ("topology", "size"), [(Exponential(), 8), (Ring(), 5), (Torus(), 9), (Full(), 4)], ids=repr
)
def test_with_a_doubly_stochastic_matrix_sgp_is_adapt_then_combine_and_masses_stay_1(topology, size):
    """B55."""
    simulation = build(sgp(topology=topology), size, 12)
    simulation.run()
    batches, x = PROBLEM.batches(size, 12), PROBLEM.start.repeat(size, 1)
    for step in range(12):
        g = torch.stack([PROBLEM.gradient(x[i], batches[i][step]) for i in range(size)])
        x = mixing_matrix(topology, size, step) @ (x - LR * g)
    assert close(weights(simulation), x)
    assert close(masses(simulation), torch.ones(size, dtype=torch.float64))


@pytest.mark.parametrize(("topology", "size"), [(Exponential(), 8), (Ring(), 5)], ids=repr)
def test_overlapped_by_one_step_it_is_dpsgd_there_and_sgp_is_not(topology, size):
    overlapped, plain, mixed = (
        build(strategy(topology=topology), size, 12) for strategy in (osgp, sgp, dpsgd)
    )
    for simulation in (overlapped, plain, mixed):
        simulation.run()
    assert close(weights(overlapped), weights(mixed))
    assert not close(weights(plain), weights(mixed), 1e-3)


@pytest.mark.parametrize("strategy", [sgp(), osgp(), osgp(overlap=3)], ids=repr)
def test_alone_it_is_plain_sgd_bit_for_bit(strategy):
    simulation = build(strategy, 1, 12, momentum=0.9)
    simulation.run()
    w, v = PROBLEM.start, torch.zeros(DIM, dtype=torch.float64)
    for batch in PROBLEM.batches(1, 12)[0]:
        v = 0.9 * v + PROBLEM.gradient(w, batch)
        w = w - LR * v
    assert equal(weights(simulation)[0], w)


# B54: the sums


class Sums:
    """After every event, with gradients that change nothing: all mass, and all x, wherever they are."""

    def __init__(self, starts):
        self.starts = starts
        self.events = self.under_way = 0

    def __call__(self, simulation):
        if any(p.me.state is None for p in simulation.workers):
            return
        letters = [letter for _, letter in simulation.on_the_way()]
        letters += [letter for p in simulation.workers for letter in simulation.unread(p.me.id)]
        held = [p.me.state.mass * p.me.weights for p in simulation.workers]
        assert close(sum(held) + sum(letter.tensor for letter in letters), sum(self.starts))
        mass = float(masses(simulation).sum()) + sum(letter.note["mass"] for letter in letters)
        assert abs(mass - len(self.starts)) < 1e-12
        self.events += 1
        self.under_way += bool(letters)


@pytest.mark.parametrize("overlap", [0, 1, 3])
@pytest.mark.parametrize(("topology", "size"), [(UNBALANCED, 4), (Exponential(), 6), (Star(), 5)], ids=repr)
def test_the_sums_stay_what_they_are_at_every_event(topology, size, overlap):
    check = Sums(starts_of(size))
    simulation = build(
        PushSum(topology=topology, overlap=overlap), size, 15, seed=3, lr=0.0, starts=check.starts
    )
    simulation.run(pause_after=14, after_event=check)
    assert check.events > 14 * size and check.under_way > 14


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_models_tend_to_the_mean_where_rows_do_not_add_up_and_plain_x_does_not(overlap):
    starts = starts_of(4)
    simulation = build(PushSum(topology=UNBALANCED, overlap=overlap), 4, 90, lr=0.0, starts=starts)
    simulation.run(pause_after=89)
    mean = (sum(starts) / 4).expand(4, DIM)
    assert close(weights(simulation), mean, 1e-2 if overlap == 3 else 1e-9)
    x = masses(simulation)[:, None] * weights(simulation)
    assert not close(x, mean, 0.05)


@pytest.mark.parametrize(("topology", "size"), [(Star(), 5), (Tree(), 7), (UNBALANCED, 4)], ids=repr)
def test_without_gradients_models_come_together_as_the_spectrum_of_push_sum_says(topology, size):
    """B49. Plain mixing on a star would take the factor 1 - 1 / P, the shares of push-sum take 1 / 2."""
    distances = {}

    def look(me, now):
        found = weights(simulation)
        distances[me.steps] = float((found - found.mean(0)).norm())

    simulation = build(sgp(topology=topology), size, 40, lr=0.0, starts=starts_of(size))
    simulation.run(on_step=look)
    factor = (distances[34] / distances[18]) ** (1 / 16)
    assert factor == pytest.approx(spectrum_of(topology, size, push=True).factor, rel=0.02)


# Times, letters


@pytest.mark.parametrize("strategy", [sgp(), osgp(), osgp(overlap=2), sgp(topology=UNBALANCED)], ids=repr)
@pytest.mark.parametrize("counts", [[12] * 4, [14, 4, 14, 9]], ids=repr)
def test_times_change_no_bit(strategy, counts):
    """Also where somebody leaves: whose letters are missing, and who hears of it when, depends on steps only."""
    ends = []
    for seed in (None, 1, 2):
        simulation = build(strategy, 4, counts, seed=seed)
        simulation.run()
        ends.append(weights(simulation))
    assert all(equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("overlap", [1, 3])
def test_however_far_ahead_of_a_leaver_others_are_all_change_their_view_at_the_same_step(overlap):
    """On a one-way ring of five the last one is up to 4 * overlap steps ahead of the slow first one."""
    ring = Channels(one_way=[(i, (i + 1) % 5) for i in range(5)])
    counts, ends, furthest = [4, 40, 40, 40, 40], [], 0
    for slow_s in (0.02, 5.0):
        simulation = build(
            PushSum(topology=ring, overlap=overlap), 5, counts, compute=Compute(workers_s={0: slow_s})
        )
        ahead = []
        simulation.run(on_step=lambda me, now, seen=ahead: seen.append(me.steps) if now < 20e9 else None)
        ends.append(weights(simulation))
        furthest = max(ahead)
    assert equal(ends[0], ends[1])
    assert furthest == 3 + 4 * overlap


@pytest.mark.parametrize(("strategy", "rounds"), [(sgp(), 10), (osgp(), 11)], ids=repr)
def test_one_letter_per_worker_and_step(strategy, rounds):
    sent = []
    simulation = build(strategy, 8, 11, observers=[sent.append], network=NETWORKS["1gbit"])
    simulation.run(pause_after=10)
    sent = [record for record in sent if isinstance(record, Sent)]
    assert [sum(record.who == i for record in sent) for i in range(8)] == [rounds] * 8
    assert {record.nbytes for record in sent} == {8 * DIM + 256}


@pytest.mark.parametrize("overlap", [1, 2, 4])
def test_letters_are_overlap_minus_1_steps_old(overlap):
    seen = []
    simulation = build(osgp(overlap=overlap), 5, 20, seed=1, observers=[seen.append])
    simulation.run()
    assert {record.staleness for record in seen if isinstance(record, Included)} == {overlap - 1}


# Leaving


@pytest.mark.parametrize("seeds", FEW_AND_MANY)
@pytest.mark.parametrize("strategy", [sgp(), osgp(), osgp(overlap=2)], ids=repr)
def test_no_schedule_locks_up_or_loses_mass(strategy, seeds):
    """Nor x: what goes to somebody who has left counts as dropped."""
    for seed in seeds:
        sums = SumOfWeights(lambda me: me.state.mass * me.weights, lambda letter: letter.tensor)
        run_watched(strategy, counts_of(seed), seed, sums)


def left_alone(strategy, *, size=8, leaves=5, steps=34):
    """Worker 3 leaves after a few steps, and gradients change nothing."""
    counts = [steps] * size
    counts[3] = leaves
    simulation = build(strategy, size, counts, seed=1, lr=0.0, starts=starts_of(size))
    simulation.run(pause_after=steps - 1)
    return simulation, [i for i in range(size) if i != 3]


class Deaf(PushSum):
    """Doesn't listen to the news of departures."""

    def _part(self, me, x):
        me.state.gone = []
        super()._part(me, x)


@pytest.mark.parametrize("overlap", [0, 1])
def test_who_leaves_takes_along_its_mass_and_little_else(overlap):
    """Three workers tell it, each in one of three rounds, and in six rounds everybody has heard that it is gone: so
    each of the three loses half of its mass, at most twice. Without the news they would go on for 24 rounds."""
    simulation, rest = left_alone(PushSum(topology=Exponential(), overlap=overlap))
    deaf, _ = left_alone(Deaf(topology=Exponential(), overlap=overlap))
    kept, kept_by_the_deaf = (float(masses(each)[rest].sum()) for each in (simulation, deaf))
    in_letters = 0.5 if overlap else 1.0  # what they gave away after their last step
    assert 7 - 3 * 0.75 <= kept / in_letters < 7
    assert kept_by_the_deaf / in_letters < 3
    assert all(p.me.state.gone == [] for p in simulation.workers)


@pytest.mark.parametrize("strategy", [sgp(), osgp(), osgp(overlap=2)], ids=repr)
def test_afterwards_a_step_weighs_the_mean_mass_of_the_rest(strategy):
    simulation, rest = left_alone(strategy, size=5, steps=40)
    states = [simulation.me(i).state for i in rest]
    given = [sum(mass for mass, _ in state.under_way) for state in states]
    mean = sum(state.mass + away for state, away in zip(states, given, strict=True)) / 4
    assert 0.4 < mean < 1
    assert {state.unit for state in states} == {states[0].unit}
    assert abs(states[0].unit - mean) < 1e-12


def test_so_the_mean_of_the_rest_moves_by_the_mean_gradient():
    counts, log = [60, 60, 60, 6, 60], []
    simulation = build(sgp(), 5, counts, log=log, lr=0.01)
    simulation.run(pause_after=40)

    rest = [0, 1, 2, 4]

    def centre():
        mass = masses(simulation)[rest, None]
        return (mass * weights(simulation)[rest]).sum(0) / mass.sum()

    before, done = centre(), len(log)
    assert masses(simulation)[rest].sum() < 3.9
    simulation.run(pause_after=41)
    assert len(log) == done + 4
    assert close(centre(), before - 0.01 * sum(log[done:]) / 4)


def test_all_models_still_come_together_when_half_of_them_leave():
    counts = [3, 120, 9, 120, 20, 120, 31, 120]
    simulation = build(sgp(), 8, counts, seed=2, lr=0.0, starts=starts_of(8))
    simulation.run(pause_after=119)
    rest = weights(simulation)[1::2]
    assert close(rest, rest[0].expand_as(rest), 1e-9)


def test_all_hear_of_departures_long_before_they_count():
    """Four of 32 leave, whom five others each hear. In two periods of five steps everybody knows; the view changes when
    32 periods have passed."""
    gone = [5, 11, 17, 23]
    counts = [2 if i in gone else 15 for i in range(32)]
    simulation = PROBLEM.simulation(sgp(), [[(0,)] * count for count in counts], lr=0.0)
    simulation.run(pause_after=2 + 2 * 5 + 1)
    rest = [simulation.me(i) for i in range(32) if i not in gone]
    assert all(len(me.workers) == 32 and me.state.gone == gone for me in rest)


def test_of_too_many_departures_a_letter_tells_some_in_turn():
    gone = [*range(7, 2 * NEWS)]
    told = [some_of(gone, step) for step in range(3)]
    assert all(len(set(each)) == NEWS for each in told)
    assert {who for each in told[:2] for who in each} == {*gone}
    assert some_of([4, 9], 5) in ([4, 9], [9, 4])


# What can't be


@pytest.mark.parametrize("preset", [sgp, osgp])
def test_a_graph_on_which_mass_runs_away_is_refused(preset):
    sink = Channels(one_way=[(0, 1), (1, 2), (2, 1)])
    with pytest.raises(UsageError, match="never hear of others"):
        preset(topology=sink).check(3)
    preset(topology=Channels(one_way=[(0, 1), (1, 2), (2, 0)])).check(3)
    preset(topology=Shuffled(Hypercube(one_peer=True))).check(8)


@pytest.mark.parametrize("overlap", [0, -1, 1.5, True, "1"])
def test_an_overlap_is_a_whole_number(overlap):
    with pytest.raises(UsageError, match=r"osgp\(overlap="):
        osgp(overlap=overlap)
