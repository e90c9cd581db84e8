"""Sparse sums: merging streams, when they become dense, and what travels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchboard import Switch, bits, normal, perform_all

from fast.collectives.canonical import canonical_mean
from fast.collectives.mail import Mail
from fast.collectives.sparse import sparse_doubling, sparse_split
from fast.collectives.stream import Stream, add_into, added, dense_limit, from_letter, shorter, to_letter
from fast.core.world import Round
from fast.errors import UsageError, WireError
from fast.parts.codecs.base import Coder
from fast.parts.codecs.feedback import ErrorFeedback
from fast.parts.codecs.selections import SampledTopK, Threshold, TopK
from fast.view import Layout

SPARSE = ["exchange", "sparse_doubling", "sparse_split", "auto"]


def dense_of(partial, size, dtype=torch.float32):
    total = torch.zeros(size, dtype=dtype)
    add_into(total, partial)
    return total


def stream_of(pairs, size, dtype=torch.float32):
    indices, values = sorted(pairs), [pairs[k] for k in sorted(pairs)]
    return Stream(torch.tensor(indices, dtype=torch.int32), torch.tensor(values, dtype=dtype), size)


sizes = st.integers(1, 40)


def pairs_within(size):
    return st.dictionaries(st.integers(0, size - 1), st.integers(-9, 9).map(float), max_size=size)


@given(data=st.data(), size=sizes, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_a_merge_has_every_index_once_in_order(data, size, dtype):
    """Against plain dictionaries; also in all mixtures of streams and dense tensors."""
    a, b = data.draw(pairs_within(size)), data.draw(pairs_within(size))
    low, high = stream_of(a, size, dtype), stream_of(b, size, dtype)
    expected = {k: a.get(k, 0.0) + b.get(k, 0.0) for k in {*a, *b}}
    whole = torch.tensor([expected.get(k, 0.0) for k in range(size)], dtype=dtype)
    before = [bits(each) for part in (low, high) for each in (part.indices, part.values)]
    merged = added(low, high)
    if isinstance(merged, Stream):
        assert merged.indices.tolist() == sorted(expected)
        assert merged.values.tolist() == [expected[k] for k in sorted(expected)]
    for left in (low, dense_of(low, size, dtype)):
        for right in (high, dense_of(high, size, dtype)):
            kept = [each.clone() for each in (left, right) if isinstance(each, torch.Tensor)]
            assert torch.equal(dense_of(added(left, right), size, dtype), whole)
            assert all(map(torch.equal, kept, (e for e in (left, right) if isinstance(e, torch.Tensor))))
    assert before == [bits(each) for part in (low, high) for each in (part.indices, part.values)]


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 4 / 8), (torch.float64, 8 / 12)])
def test_a_stream_becomes_dense_when_that_is_shorter(dtype, share):
    """nnz > d v / (v + i)."""
    size = 240
    limit = int(size * share)
    assert dense_limit(size, dtype.itemsize, 4) == limit
    for count in (0, limit - 1, limit, limit + 1, size):
        stream = stream_of(dict.fromkeys(range(count), 1.0), size, dtype)
        found = shorter(stream)
        assert isinstance(found, torch.Tensor) == (count > limit)
        assert to_letter(found).nbytes == min(count * (dtype.itemsize + 4), size * dtype.itemsize)
        assert torch.equal(dense_of(found, size, dtype), dense_of(stream, size, dtype))


@given(data=st.data(), size=sizes, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_streams_and_dense_sums_survive_a_letter(data, size, dtype):
    stream = stream_of(data.draw(pairs_within(size)), size, dtype)
    for partial in (stream, dense_of(stream, size, dtype)):
        back = from_letter(to_letter(partial), torch.zeros(size, dtype=dtype), 1)
        assert type(back) is type(partial)
        assert torch.equal(dense_of(back, size, dtype), dense_of(partial, size, dtype))


def test_slices_of_a_stream_count_from_their_own_beginning():
    stream = stream_of({0: 1.0, 3: 2.0, 4: 3.0, 9: 4.0}, 10)
    part = stream.part(slice(3, 9))
    assert (part.indices.tolist(), part.values.tolist(), part.size) == ([0, 1], [2.0, 3.0], 6)
    assert len(stream.part(slice(5, 5))) == 0


@pytest.mark.parametrize("indices", [[1, 1], [2, 1], [-1, 2], [0, 10]])
def test_indices_that_can_t_be_are_refused(indices):
    bad = Stream(torch.tensor(indices, dtype=torch.int32), torch.ones(2), 10)
    with pytest.raises(WireError, match="peer 3 sent indices"):
        from_letter(to_letter(bad), torch.zeros(10), 3)


def test_bytes_that_can_t_be_are_refused():
    with pytest.raises(WireError, match="no whole number"):
        from_letter(torch.zeros(12, dtype=torch.uint8), torch.zeros(10), 3)
    with pytest.raises(WireError, match="peer 3 sent 9 values"):
        from_letter(torch.zeros(9), torch.zeros(10), 3)
    with pytest.raises(WireError, match="float64"):
        from_letter(torch.zeros(10, dtype=torch.float64), torch.zeros(10), 3)


# Sums over members


def sum_streams(name, streams, seed=0):
    size, length = len(streams), streams[0].size
    switch, members = Switch(size, seed), tuple(range(size))

    async def work(id):
        mail, total = Mail(switch.worlds[id], "t"), torch.zeros(length, dtype=streams[0].values.dtype)
        if name == "sparse_split":
            await sparse_split(mail, streams[id], members, total)
        else:
            add_into(total, await sparse_doubling(mail, shorter(streams[id]), members, total))
        return total

    return switch.run({id: work(id) for id in members}), switch


@settings(max_examples=50)
@given(
    data=st.data(),
    name=st.sampled_from(["sparse_split", "sparse_doubling"]),
    size=st.integers(1, 9),
    length=st.integers(1, 60),
    seed=st.integers(0, 1 << 30),
)
def test_the_sparse_sum_is_the_dense_sum(data, name, size, length, seed):
    pairs = [data.draw(pairs_within(length)) for _ in range(size)]
    found, _ = sum_streams(name, [stream_of(each, length) for each in pairs], seed)
    expected = [sum(each.get(k, 0.0) for each in pairs) for k in range(length)]
    for total in found.values():
        assert total.tolist() == expected
    touched = len({k for each in pairs for k in each})
    assert max(map(len, pairs)) <= touched <= min(length, sum(map(len, pairs)))
    assert int(found[0].count_nonzero()) <= touched


@settings(max_examples=40)
@given(
    name=st.sampled_from(["sparse_split", "sparse_doubling"]),
    size=st.integers(1, 9),
    seed=st.integers(0, 1 << 30),
)
def test_numbers_whose_sum_depends_on_the_order_have_the_same_bits_everywhere(name, size, seed):
    length = 50
    masks = [normal(length, torch.float64, seed, k, 1) > 0.3 for k in range(size)]
    dense = [normal(length, torch.float32, seed, k) * masks[k] for k in range(size)]
    found, _ = sum_streams(name, [Stream.of(each) for each in dense], seed)
    assert len({bits(total) for total in found.values()}) == 1
    assert torch.allclose(found[0].double(), sum(each.double() for each in dense), atol=1e-5)


@pytest.mark.parametrize("name", ["sparse_split", "sparse_doubling"])
@pytest.mark.parametrize("length", [5, 100])
def test_not_a_number_has_the_same_bits_everywhere(name, length):
    """Two NaN with different payloads: which of them a sum keeps depends on the order. Dense and sparse."""
    nans = torch.tensor([0x7FC00001 + k for k in range(4)], dtype=torch.int32).view(torch.float32)
    indices = torch.tensor([0, 1, 3], dtype=torch.int32)
    found, _ = sum_streams(name, [Stream(indices, nan.repeat(3), length) for nan in nans])
    assert len({bits(total) for total in found.values()}) == 1
    assert found[0].isnan().sum() == 3


def test_what_doubling_sends():
    """Disjoint indices: each hop has twice as many. The same indices: as many as at first."""
    length, k, size = 10_000, 10, 8
    apart = [stream_of({m * k + j: 1.0 for j in range(k)}, length) for m in range(size)]
    together = [stream_of(dict.fromkeys(range(k), 1.0), length) for m in range(size)]
    for streams, hops in ((apart, [80, 160, 320]), (together, [80, 80, 80])):
        _, switch = sum_streams("sparse_doubling", streams)
        for m in range(size):
            assert [each.nbytes - 256 for each in switch.letters_of(m)] == hops


def test_no_letter_is_longer_than_all_values():
    """A third of all indices from each of four: what is merged is sent as a plain tensor."""
    length, size = 1000, 4
    streams = [stream_of(dict.fromkeys(range(m, length, 3), 1.0), length) for m in range(size)]
    found, switch = sum_streams("sparse_doubling", streams)
    assert [each.nbytes - 256 for each in switch.letters_of(0)] == [334 * 8, length * 4]
    expected = [sum(k in range(m, length, 3) for m in range(size)) for k in range(length)]
    assert all(found[m].tolist() == expected for m in range(size))


def test_what_splitting_sends():
    """Its pairs in others' slices, then the sum of its own slice to everybody."""
    length, size = 800, 4
    streams = [stream_of(dict.fromkeys(range(m, length, 20), 1.0), length) for m in range(size)]
    _, switch = sum_streams("sparse_split", streams)
    for m in range(size):
        assert [each.nbytes - 256 for each in switch.letters_of(m)] == [10 * 8] * 3 + [40 * 8] * 3


# With a codec


def coders(codec, layout, size):
    return [Coder(codec, layout, seed) for seed in range(size)]


@settings(max_examples=60)
@given(
    data=st.data(),
    codec=st.sampled_from([TopK(0.1), TopK(0.6), SampledTopK(0.2), Threshold(1.0)]),
    algorithm=st.sampled_from(SPARSE),
    any_order=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 1 << 30),
)
def test_the_mean_of_what_each_codec_sends(data, codec, algorithm, any_order, dtype, seed):
    size, length = data.draw(st.integers(1, 7)), data.draw(st.integers(0, 70))
    weights = [float(w) for w in data.draw(st.lists(st.integers(1, 2), min_size=size, max_size=size))]
    absent = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    members = [k for k in range(size) if k not in absent]
    layout = Layout.single((length,), dtype)
    tensors = [normal(length, dtype, seed, k) for k in range(size)]
    before = [tensor.clone() for tensor in tensors]
    decoded = [torch.empty(length, dtype=dtype) for _ in range(size)]
    for k, coder in enumerate(coders(codec, layout, size)):
        coder.decode(coder.encode(tensors[k]), decoded[k])
    rounds = {
        k: Round(
            tensors[k],
            tuple(range(size)),
            weight=weights[k],
            algorithm=algorithm,
            any_order=any_order,
            coder=coder,
            present=1 << k,
        )
        for k, coder in enumerate(coders(codec, layout, size))
        if k in members
    }
    found, _ = perform_all(rounds, seed, gone=absent)
    expected = canonical_mean([decoded[k] for k in members], [weights[k] for k in members])
    for k in members:
        assert bits(found[k].tensor) == bits(found[members[0]].tensor)
        assert found[k].members == tuple(members)
        assert found[k].present == sum(1 << each for each in members)
        if algorithm in ("exchange", "sparse_split") or (algorithm == "auto" and not any_order):
            assert torch.equal(found[k].tensor, expected)
        assert torch.allclose(
            found[k].tensor.double(), expected.double(), atol=0.05 if dtype.itemsize == 2 else 1e-5
        )
        assert torch.equal(tensors[k], before[k])


def test_in_canonical_order_the_codec_s_own_bytes_travel_once():
    size, length = 4, 1000
    codec = TopK(0.01)
    layout = Layout.single((length,), torch.float32)
    rounds = {
        k: Round(normal(length, torch.float32, k), tuple(range(size)), coder=coder)
        for k, coder in enumerate(coders(codec, layout, size))
    }
    found, _ = perform_all(rounds)
    assert found[0].nbytes == (size - 1) * (codec.nbytes(layout) + 256) == 3 * (80 + 256)
    assert 10 <= int(found[0].tensor.count_nonzero()) <= 40


def test_members_that_send_different_numbers_of_values_choose_alike():
    """One sends nearly nothing, the others nearly everything: the choice is by the largest."""
    size, length = 6, 5000
    layout = Layout.single((length,), torch.float32)
    rounds = {
        k: Round(
            torch.full((length,), 2.0) if k else torch.zeros(length),
            tuple(range(size)),
            any_order=True,
            coder=coder,
        )
        for k, coder in enumerate(coders(Threshold(1.0), layout, size))
    }
    found, switch = perform_all(rounds)
    assert found[0].tensor.tolist() == pytest.approx([5 / 6] * length)
    assert len([each for each in switch.letters_of(0) if not each.is_entry]) == 2 * (size - 1), "it was split"


def test_what_was_not_sent_comes_later():
    """Sums of what arrived and what is remembered are all that came in, in any order of sums."""
    size, length, steps = 4, 120, 12
    layout = Layout.single((length,), torch.float64)
    for algorithm in SPARSE[:3]:
        each = coders(ErrorFeedback(TopK(0.05)), layout, size)
        arrived, given = torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64)
        for step in range(steps):
            tensors = [normal(length, torch.float64, step, k) for k in range(size)]
            rounds = {
                k: Round(tensors[k], tuple(range(size)), coder=each[k], algorithm=algorithm)
                for k in range(size)
            }
            arrived += perform_all(rounds, step)[0][1].tensor
            given += sum(tensors) / size
        remembered = sum(coder.state.tensors["residual"] for coder in each) / size
        assert torch.allclose(arrived + remembered, given, atol=1e-12)
        assert remembered.abs().max() > 0.1


def test_dense_algorithms_are_refused_for_sparse_bytes():
    layout = Layout.single((10,), torch.float32)
    with pytest.raises(UsageError, match="'ring' doesn't work for top_k"):
        perform_all({0: Round(torch.ones(10), (0,), algorithm="ring", coder=Coder(TopK(0.5), layout))})
