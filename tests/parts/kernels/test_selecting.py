"""Kernels that choose few of many values: against plain loops, and compiled against torch operations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fast.parts.kernels import selecting
from fast.parts.kernels.hashing import keys_of

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 1.0, 2.5, -2.5, 6e-8, -6e-8, 1e-3, 3.0)

numbers = st.one_of(st.sampled_from(SPECIAL), st.floats(-4, 4, width=16))
tensors = st.builds(
    lambda values, dtype: torch.tensor(values, dtype=dtype),
    st.lists(numbers, min_size=1, max_size=80),
    st.sampled_from(DTYPES),
)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(selecting.bits_of(one), selecting.bits_of(other))


def by_size(values: Tensor) -> list[int]:
    """Places from the largest to the smallest value: NaN first, equal ones by their place."""
    plain = values.double().tolist()
    return sorted(
        range(len(plain)),
        key=lambda i: (not math.isnan(plain[i]), -abs(plain[i]) if plain[i] == plain[i] else 0),
    )


def room_for(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return torch.full((count,), -7, dtype=torch.int32), torch.full((count,), 9, dtype=values.dtype)


@given(tensors, st.data())
def test_kth_and_select_exactly_give_the_largest(values: Tensor, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, values.numel()))
    assert selecting.kth(values, k) == selecting.kth.reference(values, k)
    indices, chosen = room_for(values, k)
    selecting.select_exactly(values, *selecting.kth(values, k), indices, chosen)
    expected = sorted(by_size(values)[:k])
    assert indices.tolist() == expected
    assert same_bits(chosen, values[expected])
    others = room_for(values, k)
    selecting.select_exactly.reference(values, *selecting.kth(values, k), *others)
    assert torch.equal(others[0], indices)
    assert same_bits(others[1], chosen)


@given(tensors, st.sampled_from([0.5, 1.0, 2.5, 0.0]), st.integers(0, 80))
def test_select_gives_all_that_reach_a_key_or_says_that_they_are_too_many(
    values: Tensor, least: float, room: int
) -> None:
    plain = values.double().tolist()
    expected = [i for i, value in enumerate(plain) if math.isnan(value) or abs(value) >= least]
    for kernel in (selecting.select, selecting.select.reference):
        indices, chosen = room_for(values, room)
        found = kernel(values, selecting.key_of(least, values.dtype), indices, chosen)
        if len(expected) > room:
            assert found == room + 1
        else:
            assert indices[:found].tolist() == expected
            assert same_bits(chosen[:found], values[expected])


@pytest.mark.parametrize("dtype", DTYPES)
def test_places_move_bits_there_and_back(dtype: torch.dtype) -> None:
    values = torch.tensor(SPECIAL, dtype=dtype)
    indices = torch.tensor([0, 2, 3, 10, 13], dtype=torch.int32)
    for gather, put, clear in (
        (selecting.gather, selecting.put, selecting.clear),
        (selecting.gather.reference, selecting.put.reference, selecting.clear.reference),
    ):
        taken = torch.empty(5, dtype=dtype)
        gather(values, indices, taken)
        assert same_bits(taken, values[[0, 2, 3, 10, 13]])
        out = torch.full_like(values, 5)
        put(out, indices, taken)
        assert same_bits(out[[0, 2, 3, 10, 13]], taken)
        assert (out[[1, 4, 5, 6, 7, 8, 9, 11, 12]] == 5).all()
        clear(out, indices)
        assert out.tolist() == [0 if i in (0, 2, 3, 10, 13) else 5 for i in range(14)]


@given(st.lists(st.integers(-3, 12), max_size=6), st.integers(0, 10))
def test_ascending(indices: list[int], size: int) -> None:
    right = all(0 <= i < size for i in indices) and all(a < b for a, b in itertools.pairwise(indices))
    tensor = torch.tensor(indices, dtype=torch.int32)
    assert selecting.ascending(tensor, size) == selecting.ascending.reference(tensor, size) == right


@given(st.integers(1, 2000), st.data())
def test_a_sample_takes_one_value_from_each_stretch(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    values, out, other = torch.arange(size, dtype=torch.float32), torch.empty(count), torch.empty(count)
    selecting.sample(values, out)
    selecting.sample.reference(values, other)
    assert torch.equal(out, other)
    stretches = (out / (size // count)).floor()
    assert torch.equal(stretches, torch.arange(count, dtype=torch.float32))


def test_a_sample_sees_more_than_one_column() -> None:
    """A plain stride of 100 through a matrix of 100 columns would see only the first."""
    columns = torch.arange(100_000).remainder(100).float()
    out = torch.empty(1000)
    selecting.sample(columns, out)
    assert out.unique().numel() == 100


@given(st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.data())
def test_drawn_places_are_different_and_in_range(
    size: int, seed: int, step: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, min(size, 200)))
    out, other = torch.empty(count, dtype=torch.int32), torch.empty(count, dtype=torch.int32)
    selecting.draw(out, size, keys_of(seed, step))
    selecting.draw.reference(other, size, keys_of(seed, step))
    assert torch.equal(out, other)
    assert selecting.ascending(out, size)


def test_all_places_can_be_drawn() -> None:
    out = torch.empty(1000, dtype=torch.int32)
    selecting.draw(out, 1000, keys_of(1, 2))
    assert out.tolist() == list(range(1000))


@pytest.mark.parametrize(("size", "count"), [(2, 1), (5, 2), (13, 4), (65, 3), (100, 5)])
def test_every_place_and_every_pair_is_drawn_as_often(size: int, count: int) -> None:
    draws, out = 20_000, torch.empty(count, dtype=torch.int32)
    pairs = np.zeros((size, size))
    for step in range(draws):
        selecting.draw(out, size, keys_of(7, step))
        places = out.numpy()
        pairs[np.ix_(places, places)] += 1
    single, double = count / size, count * (count - 1) / (size * (size - 1))
    for counts, chance in ((np.diag(pairs), single), (pairs[np.triu_indices(size, 1)], double)):
        deviation = math.sqrt(draws * chance * (1 - chance)) or 1.0
        assert np.abs(counts - draws * chance).max() / deviation < 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_are_ordered_like_absolute_values(dtype: torch.dtype) -> None:
    ascending = [0.0, 6e-8, 1e-3, 0.5, 1.0, 2.5, 60000.0, math.inf, math.nan]
    keys = [selecting.key_of(number, dtype) for number in ascending]
    assert keys == sorted(set(keys))
    assert selecting.number_of(selecting.key_of(-2.5, dtype), dtype) == 2.5
