"""Every algorithm gives the sum, with the same bits on every member, in any order of events."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchboard import Switch, bits, normal, perform_all

from fast.collectives.butterfly import doubling, rabenseifner
from fast.collectives.canonical import canonical_mean
from fast.collectives.cutting import cut_evenly, cut_exactly
from fast.collectives.mail import Mail
from fast.collectives.performing import perform
from fast.collectives.ring import ring
from fast.collectives.sums import SUMS, check_algorithm
from fast.collectives.tree import tree
from fast.core.world import Kind, Round
from fast.errors import UsageError

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
CANONICAL = [name for name in SUMS if SUMS[name].canonical]
PRECISION = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}

members = st.integers(1, 9)
lengths = st.integers(0, 70)
seeds = st.integers(0, 1 << 30)
weights = st.lists(st.sampled_from([0.0, 1.0, 3.0, 7.5]), min_size=9, max_size=9)


def plain_sum(tensors, factors):
    """Number by number, in float64 (which is exact for our integers)."""
    columns = zip(*(tensor.double().tolist() for tensor in tensors), strict=True)
    return torch.tensor(
        [math.fsum(f * x for f, x in zip(factors, column, strict=True)) for column in columns],
        dtype=torch.float64,
    )


def close(found, expected, dtype, size):
    tolerance = PRECISION.get(dtype, 0) * size
    return torch.allclose(found.double(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=80)
@given(
    size=members,
    length=lengths,
    dtype=st.sampled_from(FLOATS + INTEGERS),
    algorithm=st.sampled_from([*SUMS, "auto"]),
    any_order=st.booleans(),
    seed=seeds,
)
def test_a_sum_is_the_sum_on_every_member(size, length, dtype, algorithm, any_order, seed):
    tensors = [normal(length, dtype, seed, k) for k in range(size)]
    before = [tensor.clone() for tensor in tensors]
    rounds = {
        k: Round(
            tensors[k],
            tuple(range(size)),
            kind=Kind.SUM,
            weight=k + 1.0,
            algorithm=algorithm,
            any_order=any_order,
        )
        for k in range(size)
    }
    found, _ = perform_all(rounds, seed)
    expected = plain_sum(before, [1.0] * size)
    if dtype == torch.uint8:
        expected = expected % 256
    assert close(found[0].tensor, expected, dtype, size)
    for k in range(size):
        assert bits(found[k].tensor) == bits(found[0].tensor)
        assert found[k].members == tuple(range(size))
        assert torch.equal(tensors[k], before[k]), "the input was changed"
        assert found[k].tensor.data_ptr() != tensors[k].data_ptr() or not length


@settings(max_examples=80)
@given(
    size=members,
    length=lengths,
    dtype=st.sampled_from(FLOATS),
    algorithm=st.sampled_from([*SUMS, "auto"]),
    weights=weights,
    seed=seeds,
)
def test_a_mean_counts_everybody_by_its_weight(size, length, dtype, algorithm, weights, seed):
    weights = weights[:size]
    tensors = [normal(length, dtype, seed, k) for k in range(size)]
    rounds = {
        k: Round(tensors[k], tuple(range(size)), weight=weights[k], algorithm=algorithm, present=1 << k)
        for k in range(size)
    }
    found, _ = perform_all(rounds, seed)
    counted = weights if sum(weights) else [1.0] * size
    expected = plain_sum(tensors, counted) / sum(counted)
    assert close(found[0].tensor, expected, dtype, size)
    if algorithm in (*CANONICAL, "auto"):
        assert bits(found[0].tensor) == bits(canonical_mean(tensors, weights))
    for k in range(size):
        assert bits(found[k].tensor) == bits(found[0].tensor)
        assert found[k].present == (1 << size) - 1


@pytest.mark.parametrize("algorithm", SUMS)
def test_16_bit_floats_are_added_in_float32_and_cast_once(algorithm):
    """In float16, 1 + 2^-11 rounds back to 1; 4 x 60000 is infinite."""
    tensors = [torch.tensor([v, 60000.0]).half() for v in (1.0, 2.0**-11, 2.0**-11, 0.0)]
    rounds = {k: Round(tensors[k], (0, 1, 2, 3), algorithm=algorithm) for k in range(4)}
    found, _ = perform_all(rounds)
    assert found[2].tensor.tolist() == [float(torch.tensor((1 + 2.0**-10) / 4).half()), 60000.0]


@pytest.mark.parametrize("algorithm", SUMS)
def test_not_a_number_has_the_same_bits_everywhere(algorithm):
    """Two NaN with different payloads: which of them a sum keeps depends on the order."""
    nans = torch.tensor([0x7FC00001, 0x7FC00002, 0x7FC00003, 0x7FC00004], dtype=torch.int32).view(
        torch.float32
    )
    rounds = {k: Round(nans[k].repeat(5), (0, 1, 2, 3), algorithm=algorithm, kind=Kind.SUM) for k in range(4)}
    found, _ = perform_all(rounds)
    assert len({bits(each.tensor) for each in found.values()}) == 1
    assert found[0].tensor.isnan().all()


@pytest.mark.parametrize("algorithm", SUMS)
def test_shapes_stay_and_strides_don_t_matter(algorithm):
    tensors = [torch.randn(6, 4).T, torch.randn(4, 6), torch.randn(4, 12)[:, ::2]]
    found, _ = perform_all({k: Round(tensors[k], (0, 1, 2), algorithm=algorithm) for k in range(3)})
    assert found[1].tensor.shape == (4, 6)
    assert torch.allclose(found[1].tensor, canonical_mean(tensors, [1.0] * 3), atol=1e-6)


# How many letters, and how much is in them


def run_sum(add, size, length, seed=0):
    switch = Switch(size, seed)
    everybody = tuple(range(size))
    terms = [torch.full((length,), 2.0**k) for k in range(size)]
    switch.run({k: add(Mail(switch.worlds[k], "t"), terms[k], everybody) for k in everybody})
    assert all(each.tolist() == [2.0**size - 1] * length for each in terms)
    return switch


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("length", [0, 8, 64, 800])
def test_letters_and_elements_of_powers_of_two(size, length):
    hops = int(math.log2(size))
    for add, letters, elements in [
        (ring, 2 * (size - 1), 2 * (size - 1) * length // size),
        (doubling, hops, hops * length),
        (rabenseifner, 2 * hops, 2 * (size - 1) * length // size),
    ]:
        switch = run_sum(add, size, length)
        for k in range(size):
            sent = switch.letters_of(k)
            assert (len(sent), sum(each.numel for each in sent)) == (letters, elements), add


@pytest.mark.parametrize("size", range(1, 18))
def test_the_root_of_a_tree_hears_few(size):
    switch = run_sum(tree, size, 5)
    up = [each for each in switch.sent if each.to == 0]
    assert len(up) == math.ceil(math.log2(size))
    assert len(switch.sent) == 2 * (size - 1)
    assert all(each.numel == 5 for each in switch.sent)
    assert all(
        sum(each.to == k for each in switch.sent) <= 2 * math.ceil(math.log2(size)) for k in range(size)
    )


@pytest.mark.parametrize("size", [3, 5, 6, 7, 9])
def test_a_surplus_adds_two_letters_for_each(size):
    core = 1 << int(math.log2(size))
    for add, hops in ((doubling, 1), (rabenseifner, 2)):
        switch = run_sum(add, size, 40)
        assert len(switch.sent) == core * hops * math.log2(core) + 2 * (size - core)
        assert all(len(switch.letters_of(k)) == 1 for k in range(core, size))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_direct_moves_what_a_ring_does_and_exchange_everything(size):
    """If it can be cut evenly at 64 bytes; without headers."""
    length = 16 * size * 3
    for algorithm, letters, elements in [
        ("direct", 2 * (size - 1), 2 * (size - 1) * length // size),
        ("exchange", size - 1, (size - 1) * length),
        ("ring", 2 * (size - 1) + size - 1, 2 * (size - 1) * length // size),
    ]:
        rounds = {k: Round(torch.ones(length), tuple(range(size)), algorithm=algorithm) for k in range(size)}
        found, switch = perform_all(rounds)
        for k in range(size):
            sent = switch.letters_of(k)
            assert (len(sent), sum(each.numel for each in sent)) == (letters, elements)
            assert found[k].nbytes == elements * 4 + letters * 256


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_travel_as_such_in_canonical_order(dtype):
    rounds = {k: Round(torch.ones(128, dtype=dtype), (0, 1, 2, 3), algorithm="direct") for k in range(4)}
    found, _ = perform_all(rounds)
    assert found[0].nbytes == 2 * 3 * (128 // 4 * 2 + 256)


# Choosing


def test_tiny_tensors_take_one_hop_and_large_ones_two():
    for length, letters in ((10, 3), (1_000_000, 6)):
        found, switch = perform_all({k: Round(torch.ones(length), (0, 1, 2, 3)) for k in range(4)})
        assert len(switch.letters_of(0)) == letters
        assert found[0].tensor[0] == 1


def test_what_is_not_known_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"no algorithm 'rign'\. Did you mean 'ring'"):
        perform_all({0: Round(torch.ones(3), (0,), algorithm="rign")})
    with pytest.raises(UsageError, match="Known: auto, direct, exchange"):
        check_algorithm("zzz")
    with pytest.raises(UsageError, match="'sparse_split' doesn't work for this sum"):
        perform_all({0: Round(torch.ones(3), (0,), algorithm="sparse_split")})
    with pytest.raises(UsageError, match="'tree' doesn't work for a reduce-scatter; take auto, direct, ring"):
        perform_all({0: Round(torch.ones(3), (0,), kind=Kind.REDUCE_SCATTER, algorithm="tree")})
    assert [check_algorithm(name) for name in ("auto", "tree", "sparse_split")] == [
        "auto",
        "tree",
        "sparse_split",
    ]


# What can't be


@pytest.mark.parametrize("algorithm", SUMS)
@pytest.mark.parametrize(
    "other",
    [
        Round(torch.ones(41), (0, 1), kind=Kind.SUM),
        Round(torch.ones(40, dtype=torch.float64), (0, 1), kind=Kind.SUM),
        Round(torch.ones(40), (0, 1), kind=Kind.MEAN),
        Round(torch.ones(40), (0, 1), kind=Kind.ALL_GATHER),
    ],
    ids=lambda round_: f"{round_.kind.value} {round_.tensor.numel()} {round_.tensor.dtype}",
)
def test_members_that_mean_different_rounds_notice(algorithm, other):
    other = Round(
        other.tensor,
        (0, 1),
        kind=other.kind,
        algorithm=algorithm if other.kind != Kind.ALL_GATHER else "auto",
    )
    rounds = {0: Round(torch.ones(40), (0, 1), kind=Kind.SUM, algorithm=algorithm), 1: other}
    with pytest.raises(UsageError, match=r"sum of 40 float32 by .* All members ask for the same"):
        perform_all(rounds)


def test_members_that_choose_different_algorithms_notice():
    rounds = {
        0: Round(torch.ones(4), (0, 1), algorithm="ring"),
        1: Round(torch.ones(4), (0, 1), algorithm="tree"),
    }
    with pytest.raises(UsageError, match=r"by ring.* by tree|by tree.* by ring"):
        perform_all(rounds)


@pytest.mark.parametrize(
    ("round_", "why"),
    [
        (Round(torch.ones(3), (1, 2)), "must be one of them"),
        (Round(torch.ones(3), (1, 0)), "ascending"),
        (Round(torch.ones(3), (0, 0)), "ascending"),
        (Round(torch.ones(3, dtype=torch.int32), (0,)), "needs floating point"),
        (Round(torch.ones(3, dtype=torch.bool), (0,), kind=Kind.SUM), "truth values"),
    ],
)
def test_what_can_not_be_added_is_refused(round_, why):
    switch = Switch(2)
    with pytest.raises(UsageError, match=why):
        switch.run({0: perform(switch.worlds[0], round_)})


# Slices


@given(count=st.integers(1, 40), size=st.integers(0, 3000), itemsize=st.sampled_from([1, 2, 4, 8, 16]))
def test_slices_cover_everything_once_and_begin_at_64_bytes(count, size, itemsize):
    for cuts in (cut_evenly(count, size, itemsize), cut_exactly(count, size)):
        assert len(cuts) == count
        assert [k for cut in cuts for k in range(size)[cut]] == list(range(size))
    assert all(
        cut.start * itemsize % 64 == 0 or cut.start == size for cut in cut_evenly(count, size, itemsize)
    )
    sizes = [cut.stop - cut.start for cut in cut_evenly(count, size, itemsize)]
    assert max(sizes) - min(sizes) < 2 * 64 // itemsize
    sizes = [cut.stop - cut.start for cut in cut_exactly(count, size)]
    assert max(sizes) - min(sizes) <= 1
