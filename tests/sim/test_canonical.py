"""The canonical mean: a fixed order of operations, checked number by number."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.collectives.canonical import canonical_mean
from fast.errors import UsageError

finite = st.floats(-1e6, 1e6, width=32)


@given(
    rows=st.lists(st.lists(finite, min_size=3, max_size=3), min_size=1, max_size=6),
    weights=st.lists(st.sampled_from([0.0, 1.0, 3.0, 7.0]), min_size=6, max_size=6),
)
def test_each_number_is_added_in_worker_order(rows, weights):
    """Against Python's own float64, one operation after another."""
    weights = weights[: len(rows)]
    tensors = [torch.tensor(row, dtype=torch.float64) for row in rows]
    result = canonical_mean(tensors, weights)
    equal = len(set(weights)) == 1 or sum(weights) == 0
    for column in range(3):
        values = [row[column] for row in rows]
        acc = values[0] if equal else values[0] * weights[0]
        for value, weight in zip(values[1:], weights[1:], strict=True):
            acc = acc + (value if equal else value * weight)
        assert float(result[column]) == acc / (len(rows) if equal else sum(weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 2.0, 5.0]])
def test_slices_and_out_change_no_bit(dtype, weights):
    tensors = [torch.randn(1003, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3)]
    kept = [tensor.clone() for tensor in tensors]
    whole = canonical_mean(tensors, weights)
    assert whole.dtype == dtype
    cuts = [0, 1, 17, 512, 1003]
    parts = [canonical_mean([t[a:b] for t in tensors], weights) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    out = torch.full_like(whole, 9)
    assert canonical_mean(tensors, weights, out=out) is out
    assert torch.equal(out, whole)
    assert all(torch.equal(a, b) for a, b in zip(tensors, kept, strict=True))


def test_16_bit_floats_are_added_in_float32():
    tensors = [torch.tensor([1.0]).half(), torch.tensor([2.0**-11]).half(), torch.tensor([2.0**-11]).half()]
    # In float16, 1 + 2^-11 rounds back to 1, twice; in float32 the sum is 1 + 2^-10.
    assert float(canonical_mean(tensors, [1, 1, 1])) == float(torch.tensor((1 + 2.0**-10) / 3).half())
    big = [torch.tensor([60000.0]).half()] * 4
    assert float(canonical_mean(big, [1] * 4)) == 60000.0


def test_a_mean_of_one_is_a_copy():
    tensor = torch.randn(5)
    result = canonical_mean([tensor], [3.0])
    assert torch.equal(result, tensor)
    assert result.data_ptr() != tensor.data_ptr()


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="one shape and dtype"):
        canonical_mean([torch.zeros(3), torch.zeros(1)], [1, 1])
    with pytest.raises(UsageError, match="one shape and dtype"):
        canonical_mean([torch.zeros(3), torch.zeros(3).double()], [1, 1])
    with pytest.raises(UsageError, match="0 tensors"):
        canonical_mean([], [])
    with pytest.raises(UsageError, match="2 tensors with 1 weights"):
        canonical_mean([torch.zeros(3)] * 2, [1])
