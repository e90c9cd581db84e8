"""Members leave between rounds: everybody who stays comes to the same list and to the same sum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchboard import Switch, Wait, bits, normal, perform_all

from fast.collectives.canonical import canonical_mean
from fast.collectives.cutting import cut_evenly
from fast.collectives.mail import Mail
from fast.collectives.performing import Performer
from fast.collectives.sums import SUMS
from fast.core.world import Kind, Round
from fast.errors import PeerLost, UsageError

SUM_KINDS = [(Kind.MEAN, name) for name in [*SUMS, "auto"]]
OTHERS = [
    (Kind.REDUCE_SCATTER, "direct"),
    (Kind.REDUCE_SCATTER, "ring"),
    (Kind.ALL_GATHER, "direct"),
    (Kind.ALL_GATHER, "ring"),
    (Kind.BROADCAST, "auto"),
]


def expected(kind, tensors, weights, members, me):
    """What this member gets, from the whole tensors of those who take part."""
    values = [tensors[k] for k in members]
    match kind:
        case Kind.ALL_GATHER:
            return torch.stack(values)
        case Kind.BROADCAST:
            return tensors[members[-1]]
    mean = canonical_mean(values, [weights[k] for k in members])
    if kind is Kind.REDUCE_SCATTER:
        return mean[cut_evenly(len(members), len(mean), mean.element_size())[members.index(me)]]
    return mean


def check(kind, algorithm, found, tensors, weights, members):
    for k in members:
        want = expected(kind, tensors, weights, members, k)
        assert found[k].members == members
        assert found[k].tensor.shape == want.shape
        if kind in (Kind.ALL_GATHER, Kind.BROADCAST) or algorithm in ("auto", "direct", "exchange"):
            assert bits(found[k].tensor) == bits(want)
        else:
            assert torch.allclose(found[k].tensor, want, atol=1e-5)
        if kind is Kind.MEAN:
            assert bits(found[k].tensor) == bits(found[members[0]].tensor)


@settings(max_examples=80)
@given(data=st.data(), how=st.sampled_from(SUM_KINDS + OTHERS), seed=st.integers(0, 1 << 30))
def test_who_never_comes_is_left_out(data, how, seed):
    """Whether it had left long ago, or leaves while the others are already waiting for it."""
    kind, algorithm = how
    size, length = data.draw(st.integers(2, 9)), data.draw(st.integers(0, 70))
    absent = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    long_ago = data.draw(st.sets(st.sampled_from(sorted(absent)))) if absent else set()
    members = tuple(k for k in range(size) if k not in absent)
    tensors = [normal(length, torch.float32, seed, k) for k in range(size)]
    weights = [float(k % 3 + 1) for k in range(size)]
    rounds = {
        k: Round(
            tensors[k],
            tuple(range(size)),
            kind=kind,
            weight=weights[k],
            algorithm=algorithm,
            source=members[-1],
        )
        for k in members
    }
    found, _ = perform_all(rounds, seed, gone=long_ago, late=absent - long_ago)
    check(kind, algorithm, found, tensors, weights, members)


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 1 << 30))
def test_many_rounds_in_which_one_after_another_leaves(data, seed):
    """All kinds and algorithms after each other under one tag: no letter is taken for one of another round."""
    size = data.draw(st.integers(2, 7))
    lives = data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    lives[data.draw(st.integers(0, size - 1))] = 6
    plan = data.draw(st.lists(st.sampled_from(SUM_KINDS + OTHERS), min_size=6, max_size=6))
    tensors = [[normal(40, torch.float32, seed, step, k) for k in range(size)] for step in range(6)]
    weights = [float(k % 3 + 1) for k in range(size)]
    members = [tuple(k for k in range(size) if lives[k] > step) for step in range(6)]
    switch = Switch(size, seed)

    async def work(id):
        performer, results = Performer(switch.worlds[id]), []
        for step in range(lives[id]):
            kind, algorithm = plan[step]
            round_ = Round(
                tensors[step][id],
                tuple(range(size)),
                kind=kind,
                weight=weights[id],
                algorithm=algorithm,
                source=members[step][-1],
            )
            result = await performer.perform(round_)
            result.tensor = result.tensor.clone()  # the next round may use its memory again
            results.append(result)
        return results

    results = switch.run({id: work(id) for id in range(size)})
    switch.check_read([id for id in range(size) if lives[id] == 6])
    for step, (kind, algorithm) in enumerate(plan):
        found = {k: results[k][step] for k in members[step]}
        check(kind, algorithm, found, tensors[step], weights, members[step])


@pytest.mark.parametrize("algorithm", ["direct", "exchange", "ring"])
def test_a_group_that_shrank_starts_among_the_rest(algorithm):
    """Only the first round after a departure costs more; from then on it is as if it were that small."""
    size, length = 4, 16 * 3 * 4
    switch = Switch(size)
    switch.departed.add(2)
    sent = {}

    async def work(id):
        performer = Performer(switch.worlds[id])
        for number in range(3):
            round_ = Round(torch.ones(length), (0, 1, 2, 3), algorithm=algorithm)
            sent[id, number] = (await performer.perform(round_)).nbytes

    switch.run({id: work(id) for id in (0, 1, 3)})
    small, _ = perform_all({k: Round(torch.ones(length), (0, 1, 2), algorithm=algorithm) for k in range(3)})
    assert [sent[0, number] for number in (1, 2)] == [small[0].nbytes] * 2
    assert sent[0, 0] > small[0].nbytes


def test_repeated_rounds_work_in_the_same_memory():
    switch = Switch(2)
    places = {}

    async def work(id, algorithm):
        performer = Performer(switch.worlds[id])
        for number in range(3):
            round_ = Round(torch.full((1000,), float(number)), (0, 1), algorithm=algorithm)
            result = await performer.perform(round_)
            assert result.tensor.tolist() == [float(number)] * 1000
            places[id, algorithm, number] = result.tensor.data_ptr()

    for algorithm in SUMS:
        switch.departed.clear()
        switch.run({id: work(id, algorithm) for id in range(2)})
        assert len({places[0, algorithm, number] for number in range(3)}) == 1


@pytest.mark.parametrize("seed", range(20))
def test_lanes_beside_each_other_don_t_share_memory_or_letters(seed):
    """Three rounds of three kinds are under way at once; each goes on when it can."""
    switch = Switch(3, seed)
    kinds = ("direct", "ring", "doubling")

    async def work(id):
        performer = Performer(switch.worlds[id])
        rounds = [
            performer.perform(Round(torch.full((50,), float(lane)), (0, 1, 2), lane=lane, algorithm=name))
            for lane, name in enumerate(kinds, 1)
        ]
        waits, found = dict.fromkeys(range(3), lambda: True), {}
        while waits:
            await Wait(lambda: any(ready() for ready in waits.values()))
            lane = switch.random.choice([lane for lane, ready in waits.items() if ready()])
            try:
                waits[lane] = rounds[lane].send(None).ready
            except StopIteration as stop:
                found[lane] = stop.value.tensor
                del waits[lane]
        return [found[lane].tolist() for lane in range(3)]

    for results in switch.run({id: work(id) for id in range(3)}).values():
        assert results == [[1.0] * 50, [2.0] * 50, [3.0] * 50]


def test_a_source_that_has_left_is_named():
    rounds = {k: Round(torch.ones(3), (0, 1, 2), kind=Kind.BROADCAST, source=1) for k in (0, 2)}
    with pytest.raises(PeerLost, match="peer 1 has left") as caught:
        perform_all(rounds, gone={1})
    assert caught.value.peers == (1,)
    with pytest.raises(UsageError, match="from 5 among"):
        perform_all({0: Round(torch.ones(3), (0,), kind=Kind.BROADCAST, source=5)})


def test_who_leaves_in_the_middle_is_named():
    """Only who dies can do that; a worker whose loop ends doesn't."""
    switch = Switch(2)
    switch.departed.add(1)
    with pytest.raises(PeerLost, match="peer 1 left in the middle") as caught:
        switch.run({0: Mail(switch.worlds[0], "t").receive(1, torch.ones(1))})
    assert caught.value.peers == (1,)


@settings(max_examples=60)
@given(
    how=st.sampled_from(OTHERS),
    size=st.integers(1, 9),
    length=st.integers(0, 70),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1 << 30),
)
def test_slices_gathering_and_handing_out(how, size, length, dtype, seed):
    kind, algorithm = how
    tensors = [normal(length, dtype, seed, k) for k in range(size)]
    weights = [float(k % 2 + 1) for k in range(size)]
    rounds = {
        k: Round(
            tensors[k],
            tuple(range(size)),
            kind=kind,
            weight=weights[k],
            algorithm=algorithm,
            source=size - 1,
            present=1 << k,
        )
        for k in range(size)
    }
    found, switch = perform_all(rounds, seed)
    check(kind, algorithm, found, tensors, weights, tuple(range(size)))
    assert all(each.present == (1 << size) - 1 for each in found.values())
    if kind is Kind.BROADCAST:
        assert sum(not each.is_entry for each in switch.sent) == size - 1
        assert bits(found[0].tensor) == bits(tensors[-1])


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_gathered_tensors_keep_their_shapes(algorithm):
    tensors = [torch.randn(3, 2).T for _ in range(3)]
    rounds = {k: Round(tensors[k], (0, 1, 2), kind=Kind.ALL_GATHER, algorithm=algorithm) for k in range(3)}
    found, _ = perform_all(rounds)
    assert torch.equal(found[1].tensor, torch.stack(tensors))
    integers = [torch.tensor([[True], [False]]), torch.tensor([[False], [False]])]
    rounds = {k: Round(integers[k], (0, 1), kind=Kind.ALL_GATHER, algorithm=algorithm) for k in range(2)}
    assert perform_all(rounds)[0][1].tensor.tolist() == [[[True], [False]], [[False], [False]]]


def test_16_bit_slices_are_added_in_float32():
    tensors = [torch.tensor([v] * 40).half() for v in (1.0, 2.0**-11, 2.0**-11)]
    for algorithm in ("direct", "ring"):
        rounds = {
            k: Round(tensors[k], (0, 1, 2), kind=Kind.REDUCE_SCATTER, algorithm=algorithm) for k in range(3)
        }
        found, _ = perform_all(rounds)
        for k, cut in enumerate(cut_evenly(3, 40, 2)):
            want = [float(torch.tensor((1 + 2.0**-10) / 3).half())] * (cut.stop - cut.start)
            assert found[k].tensor.tolist() == want and found[k].tensor.dtype == torch.float16
