"""Sums within groups first: one arithmetic, whoever makes it."""

from __future__ import annotations

import itertools

import pytest
import torch
from grouped_reference import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from switchboard import HEADER_BYTES, Switch, Wait, bits, leave, normal, perform_all

from fast.collectives import cost
from fast.collectives.across import Share, alone, sum_across
from fast.collectives.canonical import canonical_mean, mean_of, parts_of, sum_of
from fast.collectives.mail import Mail
from fast.core.letter import union
from fast.core.world import Kind, Link, Round
from fast.errors import UsageError, WireError
from fast.view import View, grouped

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@st.composite
def groupings(draw, most=7):
    """Any partition of some workers: unequal groups whose ids interleave."""
    size = draw(st.integers(1, most))
    number = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    found = {}
    for worker, group in enumerate(number):
        found.setdefault(group, []).append(worker)
    return tuple(map(tuple, found.values()))


def weights_of(kind, worker):
    return {"equal": 3.0, "unequal": worker % 3 + 1.0, "none": 0.0}[kind]


weightings = st.sampled_from(["equal", "unequal", "none"])


@settings(max_examples=150)
@given(groups=groupings(), data=st.data(), dtype=st.sampled_from(DTYPES), kind=weightings)
def test_the_arithmetic_is_that_of_plain_loops(groups, data, dtype, kind):
    size = sum(map(len, groups))
    members = tuple(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))))
    tensors = {worker: normal(9, dtype, 5, worker) for worker in members}
    weights = {worker: weights_of(kind, worker) for worker in members}
    found = canonical_mean(list(tensors.values()), list(weights.values()), parts=parts_of(members, groups))
    assert bits(found) == bits(reference(tensors, weights, groups))
    for worker in members:
        assert bits(tensors[worker]) == bits(normal(9, dtype, 5, worker)), "an input was changed"


def test_grouping_changes_bits():
    """Otherwise no test of an order could fail."""
    tensors = {worker: normal(100, torch.float32, 8, worker) for worker in range(4)}
    weights = dict.fromkeys(tensors, 1.0)
    plain, pairs, crossed = (
        reference(tensors, weights, groups)
        for groups in (((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0, 2), (1, 3)))
    )
    assert len({bits(each) for each in (plain, pairs, crossed)}) == 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["equal", "unequal"])
def test_one_group_and_a_group_for_each_worker_are_the_plain_order(dtype, kind):
    tensors = {worker: normal(100, dtype, 8, worker) for worker in range(5)}
    weights = {worker: weights_of(kind, worker) for worker in tensors}
    plain = canonical_mean(list(tensors.values()), list(weights.values()))
    for groups in (((0, 1, 2, 3, 4),), tuple((worker,) for worker in range(5))):
        assert parts_of(tuple(range(5)), groups) == ()
        assert bits(reference(tensors, weights, groups)) == bits(plain)


def test_members_of_groups_and_strangers():
    groups = ((0, 3), (1, 2), (4, 5))
    assert grouped((1, 3, 5, 9, 10), groups) == ((1,), (3,), (5,), (9,), (10,))
    assert grouped((0, 2, 3), ()) == ((0, 2, 3),)
    assert View(0, (0, 1, 2), (), ((0, 1), (2,))).without([1]).groups == ((0, 1), (2,))


# Over letters alone


@settings(max_examples=80)
@given(
    groups=groupings(),
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    kind=weightings,
    algorithm=st.sampled_from(["direct", "exchange", "auto"]),
    seed=st.integers(0, 1 << 30),
)
def test_letters_among_all_pairs_give_the_same_bits(groups, data, dtype, kind, algorithm, seed):
    size = sum(map(len, groups))
    absent = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    tensors = {k: normal(70, dtype, seed, k) for k in range(size) if k not in absent}
    weights = {k: weights_of(kind, k) for k in tensors}
    everybody = tuple(range(size))
    rounds = {
        k: Round(tensors[k], everybody, weight=weights[k], algorithm=algorithm, groups=groups)
        for k in tensors
    }
    found, _ = perform_all(rounds, seed, gone=absent)
    expected = reference(tensors, weights, groups)
    assert all(bits(each.tensor) == bits(expected) for each in found.values())


# Across groups


class Memory:
    """What the members of each group share, for worlds whose programs go on in any order."""

    def __init__(self, switch, groups, gone, size, dtype):
        self.switch, self.gone = switch, gone
        self.announced, self.done = {}, {}
        self.groups, self.outputs = groups, {}
        self.size, self.dtype = size, dtype

    async def share(self, number, among, me, round_):
        """As the transport does: who of `among` comes or has left."""
        self.announced[number, me] = round_
        here = lambda k: (number, k) in self.announced  # noqa: E731
        await Wait(lambda: all(here(k) or k in self.switch.departed for k in among))
        members = tuple(k for k in among if here(k))
        key = (number, among)
        if key not in self.outputs:
            self.outputs[key] = torch.full((self.size,), float("nan"), dtype=self.dtype)
        asked = [self.announced[number, k] for k in members]
        present = 0
        for each in asked:
            present = union(present, each.present)
        inputs = [each.tensor for each in asked]
        return Share(members, tuple(e.weight for e in asked), present, inputs, self.outputs[key])

    async def close(self, number, members, me):
        self.done[number, me] = True
        await Wait(lambda: all((number, k) in self.done for k in members))


def run_across(groups, tensors, weights, *, seed=0, kind=Kind.MEAN, gone=(), late=(), rounds=1):
    """Rounds among all of these groups; gives for each member what it found after each."""
    size = sum(map(len, groups))
    switch = Switch(size, seed)
    switch.departed.update(gone)
    first = tensors[min(tensors)]
    memory = Memory(switch, groups, gone, first.numel(), first.dtype)
    rule = mean_of if kind is Kind.MEAN else sum_of

    async def work(me):
        found, remaining = [], tuple(range(size))
        for number in range(rounds):
            among = grouped(remaining, groups)
            local = next(group for group in among if me in group)
            mail = Mail(switch.worlds[me], "t")
            if len(local) == 1:
                share = alone(tensors[me], weights[me], 1 << me, mail)
                parties = await sum_across(mail, among, "a sum", share, rule)
            else:
                round_ = Round(tensors[me], remaining, weight=weights[me], present=1 << me)
                share = await memory.share(number, local, me, round_)
                parties = await sum_across(mail, among, "a sum", share, rule)
                await memory.close(number, share.members, me)
            remaining = parties.members
            found.append((share.output.clone(), parties, mail.nbytes))
        return found

    programs = {me: work(me) for me in tensors} | {me: leave() for me in late}
    results = switch.run(programs)
    switch.check_read(tuple(tensors))
    return {me: results[me] for me in tensors}, switch


@settings(max_examples=200)
@given(
    groups=groupings(9),
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    kind=weightings,
    length=st.sampled_from([0, 1, 17, 300, 1003]),
    seed=st.integers(0, 1 << 30),
)
def test_across_groups_the_bits_are_those_of_the_reference(groups, data, dtype, kind, length, seed):
    """Whoever is missing, whether it left long ago or leaves while others wait, in two rounds one after another."""
    size = sum(map(len, groups))
    absent = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    long_ago = data.draw(st.sets(st.sampled_from(sorted(absent)))) if absent else set()
    tensors = {k: normal(length, dtype, seed, k) for k in range(size) if k not in absent}
    weights = {k: weights_of(kind, k) for k in tensors}
    found, _ = run_across(
        groups, tensors, weights, seed=seed, gone=long_ago, late=absent - long_ago, rounds=2
    )
    expected = reference(tensors, weights, groups) if length else torch.empty(0, dtype=dtype)
    for each in found.values():
        for output, parties, _ in each:
            assert bits(output) == bits(expected)
            assert parties.members == tuple(sorted(tensors))
            assert parties.weights == tuple(weights[k] for k in sorted(tensors))
            assert parties.present == sum(1 << k for k in tensors)
    for k, tensor in tensors.items():
        assert bits(tensor) == bits(normal(length, dtype, seed, k)), "an input was changed"


def test_a_sum_is_not_divided():
    groups = ((0, 2), (1, 3, 4))
    tensors = {k: normal(500, torch.float32, 3, k) for k in range(5)}
    found, _ = run_across(groups, tensors, dict.fromkeys(tensors, 2.0), kind=Kind.SUM)
    expected = reference(tensors, dict.fromkeys(tensors, 2.0), groups, divide=False)
    assert all(bits(each[0][0]) == bits(expected) for each in found.values())


@pytest.mark.parametrize(
    ("dtype", "bytes_up", "bytes_down"), [(torch.float32, 4, 4), (torch.float64, 8, 8), (torch.float16, 4, 2)]
)
@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (4, 2, 2), (1, 3, 2)], ids=str)
def test_what_leaves_a_group_is_what_a_mean_among_hosts_moves(sizes, dtype, bytes_up, bytes_down):
    """N (H - 1) / H up and as much down for each group, whatever its size; 16-bit sums go up as float32."""
    count, workers = len(sizes), sum(sizes)
    length = 12 * 32 * count * 4
    ends = [sum(sizes[:k]) for k in range(count + 1)]
    groups = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(ends))
    tensors = {k: normal(length, dtype, 3, k) for k in range(workers)}
    _, switch = run_across(groups, tensors, dict.fromkeys(tensors, 1.0))
    for group in groups:
        sent = [each for member in group for each in switch.letters_of(member)]
        assert all(each.to not in group for each in sent)
        payload = sum(each.nbytes - HEADER_BYTES for each in sent)
        assert payload == length * (count - 1) // count * (bytes_up + bytes_down)


def test_all_members_of_a_group_carry_their_part():
    groups, length = ((0, 1), (2, 3)), 32 * 8
    tensors = {k: normal(length, torch.float32, 3, k) for k in range(4)}
    _, switch = run_across(groups, tensors, dict.fromkeys(tensors, 1.0))
    payloads = [sum(each.nbytes - HEADER_BYTES for each in switch.letters_of(k)) for k in range(4)]
    assert payloads == [length * 4 // 2] * 4


def test_members_that_mean_different_rounds_find_out():
    switch = Switch(2)

    async def work(me, words):
        mail = Mail(switch.worlds[me], "t")
        share = alone(torch.zeros(4), 1.0, None, mail)
        await sum_across(mail, ((0,), (1,)), words, share, mean_of)

    with pytest.raises(UsageError, match="takes part in a round"):
        switch.run({0: work(0, "mean of 4 float32"), 1: work(1, "mean of 5 float32")})


@pytest.mark.parametrize("members", [[], [0], [1, 1], [2, 1]], ids=str)
def test_a_group_that_can_t_be_is_refused(members):
    switch = Switch(3)

    async def liar():
        Mail(switch.worlds[1], "t").send_about((0,), "a sum", members, [1.0] * len(members), None)

    async def work():
        mail = Mail(switch.worlds[0], "t")
        await sum_across(mail, ((0,), (1, 2)), "a sum", alone(torch.zeros(4), 1.0, None, mail), mean_of)

    with pytest.raises(WireError, match="refused"):
        switch.run({0: work(), 1: liar()})


def test_costs_of_groups():
    """Against counting by hand: 4 workers on 2 hosts. In pairs 4 tensors leave a host, or 4 halves of slices twice."""
    link, nbytes = Link(1.0, 1.0), 8.0
    assert cost.across((2, 2), nbytes, link) == 3 + 8
    assert cost.in_pairs((2, 2), nbytes, link) == min(1 + 4 * 8, 2 + 2 * 4 * 2)
    assert cost.in_pairs((2, 2), 0.0, link) == 1
