"""What becomes of momentum where nobody makes a round among all: each policy against plain loops in float64."""

from __future__ import annotations

import pytest
import torch

from fast.codecs import top_k
from fast.errors import UsageError
from fast.parts import Channels, Ring
from fast.parts.topology import Exponential
from fast.parts.topology.spectrum import mixing_matrix
from fast.strategies import catalogue
from fast.strategies.decentral.moments import POLICIES
from fast.strategies.decentral.pairwise import drawn_pairs
from fast.strategies.presets import ad_psgd, choco, easgd, gosgd, noloco, osgp, sgp, tree_easgd
from fast.testing.topology import push_matrix
from fast.trace import Sent

from .problem import LeastSquares, PlainReplica, RandomCompute, RoundRobin, close, random_network, weights

PROBLEM = LeastSquares()
LR, MU, STEPS = 0.05, 0.9, 12
UNBALANCED = Channels(one_way=[(0, 1), (0, 2), (1, 2), (2, 3), (3, 0), (1, 3)])
"""Among four: nobody hears as many as it tells."""
each_policy = pytest.mark.parametrize("policy", POLICIES)


class Group:
    """Everybody's weights x and momentum v, in rows, and what a policy makes of v after an exchange."""

    def __init__(self, size, policy):
        self.policy, self.batches = policy, PROBLEM.batches(size, STEPS)
        self.x = PROBLEM.start.repeat(size, 1)
        self.v = torch.zeros_like(self.x)
        self.before, self.steps_since = (self.x.clone(), self.v.clone()), [0] * size

    def gradient(self, i, step):
        return PROBLEM.gradient(self.x[i], self.batches[i][step])

    def move(self, i, gradient):
        self.v[i] = MU * self.v[i] + gradient
        self.x[i] = self.x[i] - LR * self.v[i]
        self.steps_since[i] += 1

    def move_all(self, step):
        for i in range(len(self.x)):
            self.move(i, self.gradient(i, step))

    @property
    def averages(self):
        return self.policy == "average"

    def settle(self, i):
        x, v = self.before
        if self.policy == "reset":
            self.v[i] = 0
        if self.policy == "correct" and self.steps_since[i]:
            self.v[i] = MU * v[i] + (1 - MU) * (x[i] - self.x[i]) / (LR * self.steps_since[i])
        x[i], v[i], self.steps_since[i] = self.x[i], self.v[i], 0


def check(strategy, group, **options):
    """The simulated workers end with these weights and this momentum."""
    simulation = PROBLEM.simulation(strategy, group.batches, lr=LR, momentum=MU, **options)
    simulation.run()
    assert close(weights(simulation), group.x)
    assert close(torch.stack([worker.me.replica.velocity for worker in simulation.workers]), group.v)


def wild(size, seed):
    """In lock-step nothing depends on time."""
    return {"compute": RandomCompute(), "network": random_network(size, seed), "seed": seed}


# In lock-step


@each_policy
@pytest.mark.parametrize(("topology", "size"), [(Exponential(), 5), (UNBALANCED, 4)], ids=repr)
def test_sgp_parts_momentum_by_the_same_shares(policy, topology, size):
    """u_j <- sum_i p_ji w_i u_i / w_j: the mean of what came, by mass."""
    group, mass = Group(size, policy), torch.ones(size, dtype=torch.float64)
    for step in range(STEPS):
        shares, z = push_matrix(topology, size, step), group.x.clone()
        group.move_all(step)
        parted = shares @ (mass[:, None] * z + group.x - z)
        momentum = shares @ (mass[:, None] * group.v)
        mass = shares @ mass
        group.x = parted / mass[:, None]
        if group.averages:
            group.v = momentum / mass[:, None]
        for i in range(size):
            group.settle(i)
    check(sgp(topology=topology, moments=policy), group, **wild(size, 3))


@each_policy
@pytest.mark.parametrize("overlap", [1, 3])
def test_osgp_takes_momentum_in_as_late_as_the_weights(policy, overlap):
    size, on_the_way = 5, []
    group, mass = Group(size, policy), torch.ones(size, dtype=torch.float64)
    for step in range(STEPS):
        shares = push_matrix(Exponential(), size, step)
        kept, z = shares.diagonal(), group.x.clone()
        given = shares - torch.diag(kept)
        on_the_way.append((given @ (mass[:, None] * z), given @ (mass[:, None] * group.v), given @ mass))
        mass = kept * mass
        group.move_all(step)
        x, u = mass[:, None] * z + group.x - z, mass[:, None] * group.v
        exchanged = len(on_the_way) >= overlap
        if exchanged:
            came = on_the_way.pop(0)
            x, u, mass = x + came[0], u + came[1], mass + came[2]
        group.x = x / mass[:, None]
        if group.averages:
            group.v = u / mass[:, None]
        for i in range(size if exchanged else 0):
            group.settle(i)
    check(osgp(overlap=overlap, moments=policy), group, **wild(size, 4))


@each_policy
def test_noloco_averages_momentum_in_the_pair(policy):
    """One of five stays alone in each round: it has nobody to average with, and still goes on from its slow weights."""
    size, interval, rate, outer, seed = 5, 3, 0.7, 0.5, 2
    group = Group(size, policy)
    slow, memory = group.x.clone(), torch.zeros_like(group.x)
    for step in range(STEPS):
        group.move_all(step)
        if (step + 1) % interval:
            continue
        met = drawn_pairs(size, seed, (step + 1) // interval)
        pairs = [[i] if met[i] is None else [i, met[i]] for i in range(size)]
        fast, v, before = group.x.clone(), group.v.clone(), slow.clone()
        for i, pair in enumerate(pairs):
            memory[i] = outer * memory[i] + rate * (fast[pair].mean(0) - before[i])
            slow[i] = group.x[i] = before[i] + memory[i]
            if group.averages:
                group.v[i] = v[pair].mean(0)
            group.settle(i)
    check(noloco(interval=interval, rate=rate, momentum=outer, moments=policy), group, **wild(size, seed))


@each_policy
def test_choco_mixes_momentum_by_its_matrix(policy):
    """Momentum isn't compressed, and moves all the way: gamma is for what is known of others' weights."""
    size, gamma, keep = 5, 0.4, 6
    group, w = Group(size, policy), mixing_matrix(Ring(), 5)
    known = group.x.clone()
    for step in range(STEPS):
        group.move_all(step)
        apart = group.x - known
        largest = apart.abs().topk(keep, dim=1).indices
        known += torch.zeros_like(apart).scatter(1, largest, apart.gather(1, largest))
        group.x = group.x + gamma * (w @ known - known)
        if group.averages:
            group.v = w @ group.v
        for i in range(size):
            group.settle(i)
    check(choco(codec=top_k(0.3), gamma=gamma, moments=policy), group, **wild(size, 5))


# By turns: workers step one after another, and letters arrive at once. Worker 0 leaves before worker 1's last step


@each_policy
def test_gosgd_mixes_momentum_by_the_same_shares(policy):
    """With p = 1 two workers send to each other after every step."""
    group, share, waiting = Group(2, policy), [0.5, 0.5], [None, None]
    for step in range(STEPS):
        for i in range(2):
            gradient = group.gradient(i, step)
            if waiting[i] is not None:
                part, x, v = waiting[i]
                group.x[i] = (share[i] * group.x[i] + part * x) / (share[i] + part)
                if group.averages:
                    group.v[i] = (share[i] * group.v[i] + part * v) / (share[i] + part)
                share[i] += part
                group.settle(i)
                waiting[i] = None
            group.move(i, gradient)
            share[i] /= 2
            waiting[1 - i] = (share[i], group.x[i].clone(), group.v[i].clone())
    check(gosgd(p=1, moments=policy), group, compute=RoundRobin())


@each_policy
def test_tree_easgd_pulls_momentum_as_far_as_weights(policy):
    """Worker 1, below worker 0, sends up every 2 steps and gets something every 3."""
    group, alpha, waiting = Group(2, policy), 0.3, [None, None]

    def read(i):
        if waiting[i] is not None:
            group.x[i] = group.x[i] - alpha * (group.x[i] - waiting[i][0])
            if group.averages:
                group.v[i] = group.v[i] - alpha * (group.v[i] - waiting[i][1])
            group.settle(i)
            waiting[i] = None

    for step in range(STEPS):
        for i in range(2):
            gradient = group.gradient(i, step)
            read(i)
            group.move(i, gradient)
            if (step + 1) % (2 if i else 3) == 0:
                waiting[1 - i] = (group.x[i].clone(), group.v[i].clone())
    check(tree_easgd(up=2, down=3, alpha=alpha, moments=policy), group, compute=RoundRobin())


@pytest.mark.parametrize("policy", ["keep", "reset", "correct"])
def test_easgd_lets_a_worker_adjust_its_momentum_after_the_pull(policy):
    group, tau, alpha = Group(3, policy), 2, 0.2
    centre = PROBLEM.start.clone()
    for step in range(STEPS):
        for i in range(3):
            delta = alpha * (group.x[i] - centre)
            group.move(i, group.gradient(i, step))
            if (step + 1) % tau == 0:
                centre, group.x[i] = centre + delta, group.x[i] - delta
                group.settle(i)
    check(easgd(tau=tau, alpha=alpha, moments=policy), group, compute=RoundRobin())


@pytest.mark.parametrize("policy", ["keep", "reset", "correct"])
def test_ad_psgd_lets_both_of_a_pair_adjust_their_momentum(policy):
    """Worker 0 asks; worker 1 answers at the end of its step; worker 0 moves at the end of its next one."""
    group, answer = Group(2, policy), None
    asked = group.x[0].clone()
    for step in range(STEPS):
        gradient = group.gradient(0, step)
        if answer is not None:
            group.x[0] = group.x[0] - answer
            group.settle(0)
        group.move(0, gradient)
        if answer is not None:
            asked = group.x[0].clone()
        gradient = group.gradient(1, step)
        if step + 1 < STEPS:
            answer = (asked - group.x[1]) / 2
            group.x[1] = group.x[1] + answer
            group.settle(1)
        group.move(1, gradient)
    check(ad_psgd(moments=policy), group, compute=RoundRobin())


# What holds for all of them

WITH_CHOICE = [name for name, preset in catalogue().items() if preset.moments]


@pytest.mark.parametrize("name", WITH_CHOICE)
def test_alone_no_policy_changes_a_bit(name):
    preset = catalogue()[name]
    ends = []
    for policy in preset.moments:
        simulation = PROBLEM.simulation(preset(moments=policy), PROBLEM.batches(1, 8), momentum=MU)
        simulation.run()
        ends.append(weights(simulation))
    assert not preset().identity_alone or all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize(
    ("strategy", "times"), [(sgp, 2), (osgp, 2), (gosgd, 2), (tree_easgd, 2), (noloco, 1.5)]
)
def test_averaged_momentum_is_as_much_again(strategy, times):
    """In the same letters; of noloco's two tensors per exchange it is a third, in a letter of its own."""
    arguments = {gosgd: {"p": 0.5}, tree_easgd: {"up": 2, "down": 2}, noloco: {"interval": 2}}.get(
        strategy, {}
    )
    sent = []
    for policy in ("keep", "average"):
        records = []
        made = strategy(**arguments, moments=policy)
        PROBLEM.simulation(made, PROBLEM.batches(4, 6), momentum=MU, observers=[records.append]).run()
        letters = [record for record in records if isinstance(record, Sent)]
        sent.append(sum(record.nbytes - 256 * len(record.to) for record in letters))
    assert sent[1] == times * sent[0] > 0


@pytest.mark.parametrize("strategy", [easgd, ad_psgd])
def test_where_nobody_could_average_that_is_said(strategy):
    with pytest.raises(UsageError, match=r"moments='average'\): .*'keep', 'reset' or 'correct'"):
        strategy(moments="average")


@pytest.mark.parametrize("strategy", [sgp, gosgd, tree_easgd])
def test_moments_that_travel_with_weights_are_known_from_the_start(strategy, monkeypatch):
    def unknown(self):
        raise UsageError("it is none of torch's own")

    monkeypatch.setattr(PlainReplica, "optimizer_spec", unknown)
    with pytest.raises(UsageError, match="Use one of torch's own optimizers"):
        PROBLEM.simulation(strategy(moments="average"), PROBLEM.batches(2, 2), momentum=MU).run()
