"""Codecs that send few values: which ones, as which bytes, and what they leave."""

from __future__ import annotations

import contextlib
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.profiler import profile

from fast.errors import UsageError, WireError
from fast.parts.codecs import Codec, Coder, NonFinite, RandomK, SampledTopK, Sparse, Threshold, TopK, sampling
from fast.parts.codecs.base import State, Workspace
from fast.view import Layout

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
CODECS = (
    TopK(0.1),
    SampledTopK(0.1),
    RandomK(0.1),
    RandomK(0.1, shared=False),
    RandomK(0.3, scaled=False),
    Threshold(0.5),
)
each_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def flat(size: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout.single((size,), dtype)


def normal(size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size)).to(dtype)


def decoded(codec: Codec, values: Tensor, seed: int = 0) -> Tensor:
    coder = Coder(codec, flat(values.numel(), values.dtype), seed)
    return coder.decode(coder.encode(values)).clone()


def bits(tensor: Tensor) -> bytes:
    return tensor.clone().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def plain_top(values: Tensor, k: int) -> list[int]:
    """The places of the k largest, ascending: NaN first, equal ones by their place."""
    plain = values.double().tolist()
    order = sorted(range(len(plain)), key=lambda i: -math.inf if math.isnan(plain[i]) else -abs(plain[i]))
    nans = [i for i in range(len(plain)) if math.isnan(plain[i])]
    return sorted([*nans, *(i for i in order if i not in nans)][:k])


# Which values


def test_random_values_are_scaled_by_how_many_there_are_over_how_many_are_sent() -> None:
    """A quarter of 10 values is 3 whole ones: times 10/3, not times 4, else the mean over draws isn't the tensor."""
    for codec in (RandomK(0.25), RandomK(0.25, shared=False)):
        sent = decoded(codec, torch.ones(10, dtype=torch.float64))
        assert int((sent != 0).sum()) == 3
        assert sent[sent != 0].tolist() == [10 / 3] * 3
    assert decoded(RandomK(0.25, scaled=False), torch.ones(10)).sum() == 3


numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-40]), st.floats(-3, 3, width=16)
)


@given(st.lists(numbers, min_size=1, max_size=60), st.floats(0.001, 1), st.sampled_from(DTYPES))
def test_top_k_sends_exactly_the_largest(values: list[float], ratio: float, dtype: torch.dtype) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    expected = plain_top(tensor, max(1, math.ceil(ratio * len(values))))
    coder = Coder(TopK(ratio), flat(len(values), dtype))
    indices, chosen = coder.codec.stream(coder.encode(tensor), coder.layout)  # type: ignore[attr-defined]
    assert indices.tolist() == expected
    assert bits(chosen) == bits(tensor[expected])


@each_dtype
@pytest.mark.parametrize("ratio", [0.0001, 0.01, 0.2, 0.3, 1.0])
def test_top_k_of_many_is_exact_too(ratio: float, dtype: torch.dtype) -> None:
    """Large enough for the way over a sample; 16-bit numbers have many ties."""
    values = normal(70_000, 3, dtype)
    k = math.ceil(ratio * 70_000)
    order = np.lexsort((np.arange(70_000), -values.double().abs().numpy()))
    indices, _ = TopK(ratio).stream(
        Coder(TopK(ratio), flat(70_000, dtype)).encode(values), flat(70_000, dtype)
    )
    assert indices.tolist() == sorted(order[:k].tolist())


@pytest.mark.parametrize(
    "values",
    [
        torch.ones(40_000),
        torch.zeros(40_000),
        torch.cat([torch.full((39_000,), 0.1), torch.full((1_000,), 5.0)]),
        torch.full((40_000,), torch.nan),
        torch.full((40_000,), torch.inf),
        torch.arange(40_000.0),
        torch.full((40_000,), 1e-45),
        normal(40_000) * 1e38,
    ],
    ids=["ones", "zeros", "two levels", "nan", "inf", "ascending", "denormal", "huge"],
)
def test_samples_that_mislead_change_nothing_about_the_exact_k(values: Tensor) -> None:
    magnitude = np.nan_to_num(values.abs().numpy(), nan=np.inf, posinf=3e38)
    expected = np.lexsort((np.arange(40_000), -magnitude))[:400]
    indices, _ = TopK(0.01).stream(Coder(TopK(0.01), flat(40_000)).encode(values), flat(40_000))
    assert indices.tolist() == sorted(expected.tolist())


@given(
    st.integers(0, 2**32), st.sampled_from([0.001, 0.01, 0.1]), st.sampled_from(["normal", "cauchy", "steps"])
)
@settings(max_examples=30)
def test_sampled_top_k_sends_about_as_many_and_only_the_largest(seed: int, ratio: float, shape: str) -> None:
    draw = np.random.default_rng(seed)
    plain = {
        "normal": draw.normal(size=50_000),
        "cauchy": draw.standard_cauchy(50_000),
        "steps": draw.integers(-20, 21, 50_000).astype(float),
    }[shape]
    values, k = torch.from_numpy(plain).float(), math.ceil(ratio * 50_000)
    coder = Coder(SampledTopK(ratio), flat(50_000))
    packed = coder.encode(values)
    indices, chosen = SampledTopK(ratio).stream(packed, coder.layout)
    assert 0.8 * k <= indices.numel() <= math.ceil(1.3 * k)
    assert torch.equal(chosen, values[indices.long()])
    left = torch.ones(50_000, dtype=torch.bool).index_fill_(0, indices.long(), False)
    assert chosen.abs().min() >= values[left].abs().max()


def test_sampled_top_k_sends_nothing_but_what_is_not_zero() -> None:
    values = torch.zeros(100_000)
    values[[5, 99, 70_000, 99_999]] = torch.tensor([1.0, -2.0, 1e-42, torch.nan])
    indices, chosen = SampledTopK(0.01).stream(
        Coder(SampledTopK(0.01), flat(100_000)).encode(values), flat(100_000)
    )
    assert indices.tolist() == [5, 99, 70_000, 99_999]
    assert bits(chosen) == bits(values[indices.long()])


@pytest.mark.parametrize("fill", [1.0, torch.nan, torch.inf])
def test_sampled_top_k_falls_back_to_exactly_k_where_all_are_equal(fill: float) -> None:
    coder = Coder(SampledTopK(0.01), flat(100_000))
    indices, _ = SampledTopK(0.01).stream(coder.encode(torch.full((100_000,), fill)), coder.layout)
    assert indices.tolist() == list(range(1000))


def test_sampled_top_k_ranks_a_sample_and_reads_all_values_but_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is what makes it many times as fast as `topk`, which ranks them all."""
    ranked, read = [], []
    kth, select = sampling.kth, sampling.select

    def watched_kth(values: Tensor, k: int) -> tuple[int, int]:
        ranked.append(values.numel())
        return kth(values, k)

    def watched_select(values: Tensor, *rest: Any) -> int:
        read.append(values.numel())
        return select(values, *rest)

    monkeypatch.setattr(sampling, "kth", watched_kth)
    monkeypatch.setattr(sampling, "select", watched_select)
    Coder(SampledTopK(0.01), flat(1_000_000)).encode(normal(1_000_000))
    assert ranked == [10_000]
    assert set(read) == {1_000_000} and len(read) <= 3


# Bytes


@each_dtype
def test_bytes_are_values_and_places(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 3.0, -1.0, 0.5, -4.0], dtype=dtype)
    packed = Coder(TopK(0.5), flat(5, dtype)).encode(values)
    numbers, places = bits(torch.tensor([3.0, -1.0, -4.0], dtype=dtype)), struct.pack("<3i", 1, 2, 4)
    assert bits(packed) == (numbers + places if dtype.itemsize >= 4 else places + numbers)
    assert packed.numel() == TopK(0.5).nbytes(flat(5, dtype)) == 3 * (4 + dtype.itemsize)


def test_sizes_follow_the_formulas() -> None:
    layout = flat(1000)
    assert TopK(0.01).nbytes(layout) == 8 * 10
    assert TopK(0.01).nbytes(flat(0)) == 0
    assert TopK(1e-9).nbytes(layout) == 8
    assert SampledTopK(0.01).nbytes(layout) == 8 * 13
    assert SampledTopK(0.01).nbytes(layout, 11) == 8 * 11
    assert RandomK(0.01).nbytes(layout) == 16 + 4 * 10
    assert RandomK(0.01, shared=False).nbytes(layout) == 8 * 10
    assert Threshold(1.0).nbytes(layout) == 4 * 1000
    assert Threshold(1.0).nbytes(layout, 7) == 4 * 7


@each_dtype
@each_codec
@pytest.mark.parametrize("size", [0, 1, 2, 63, 1000])
def test_both_ends(codec: Codec, dtype: torch.dtype, size: int) -> None:
    """The size formula, values intact, streams ascending, and 0 where nothing was sent."""
    values, layout = normal(size, size, dtype), flat(size, dtype)
    before, coder = values.clone(), Coder(codec, layout)
    for _ in range(3):
        packed = coder.encode(values)
        assert isinstance(codec, Sparse)
        indices, chosen = codec.stream(packed, layout)
        assert packed.dtype == torch.uint8
        assert packed.numel() == codec.nbytes(layout, codec.sent(packed, layout)) <= codec.nbytes(layout)
        assert codec.sent(packed, layout) in (None, indices.numel())
        assert indices.dtype == torch.int32 and chosen.dtype == dtype
        assert indices.tolist() == sorted(set(indices.tolist()))
        out = torch.full((size,), 7, dtype=dtype)
        coder.decode(packed, out)
        expected = torch.zeros(size, dtype=dtype)
        expected[indices.long()] = chosen
        assert bits(out) == bits(expected)
        assert bits(values) == bits(before)


@each_codec
@given(data=st.data())
@settings(max_examples=40)
def test_bytes_of_a_stranger(codec: Codec, data: st.DataObject) -> None:
    """They are refused, or give values inside `out`; what lies beside it is never touched."""
    dtype, size = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 40))
    layout = flat(size, dtype)
    length = data.draw(st.sampled_from([codec.nbytes(layout), data.draw(st.integers(0, 200))]))
    raw = data.draw(st.binary(min_size=length, max_size=length))
    if data.draw(st.booleans()):
        raw = bytes(byte % 4 * (i % 4 == 0) for i, byte in enumerate(raw))
    memory = torch.full((size + 16,), 5, dtype=dtype)
    out = memory[8 : 8 + size]
    with contextlib.suppress(WireError):
        codec.decode(torch.tensor(list(raw), dtype=torch.uint8), layout, out, Workspace())
    assert (memory[:8] == 5).all() and (memory[8 + size :] == 5).all()


@pytest.mark.parametrize("places", [(0, 10), (-1, 3), (3, 3), (4, 2)])
def test_places_that_cannot_be_right_are_refused(places: tuple[int, int]) -> None:
    packed = torch.tensor(list(struct.pack("<2f2i", 1.0, 2.0, *places)), dtype=torch.uint8)
    out = torch.full((10,), 3.0)
    with pytest.raises(WireError, match="ascend"):
        TopK(0.2).decode(packed, flat(10), out, Workspace())
    assert (out == 3).all()
    with pytest.raises(WireError, match="needs 16 bytes"):
        TopK(0.2).decode(packed[:-1], flat(10), out, Workspace())


def test_more_values_than_a_sampled_top_k_could_send_are_refused() -> None:
    packed = Coder(TopK(0.5), flat(100)).encode(normal(100))
    with pytest.raises(WireError):
        SampledTopK(0.1).decode(packed, flat(100), torch.empty(100), Workspace())


# What is left


@each_dtype
@each_codec
def test_encode_rest_leaves_what_the_bytes_do_not_say(codec: Codec, dtype: torch.dtype) -> None:
    for size in (0, 1, 500):
        values, layout = normal(size, 1, dtype), flat(size, dtype)
        rest, coder, other = values.clone(), Coder(codec, layout, 4), Coder(codec, layout, 4)
        packed = codec.encode_rest(rest, layout, coder.state, coder.work)
        assert bits(packed) == bits(other.encode(values))
        expected = values - coder.decode(packed)
        assert bits(rest + 0) == bits(expected + 0)


@each_codec
def test_what_is_not_finite_never_stays_where_it_was_sent(codec: Codec) -> None:
    values, layout = normal(200), flat(200)
    values[[3, 50, 199]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    coder = Coder(codec, layout)
    packed = codec.encode_rest(values, layout, coder.state, coder.work)
    indices, _ = codec.stream(packed, layout)  # type: ignore[attr-defined]
    assert values[indices.long()].isfinite().all()
    if not isinstance(codec, RandomK):
        assert values.isfinite().all()


@pytest.mark.parametrize("codec", [TopK(0.02), SampledTopK(0.02)], ids=repr)
def test_what_is_not_finite_travels_and_comes_first(codec: Codec) -> None:
    values = normal(500)
    values[[7, 300, 450]] = torch.tensor([torch.nan, -torch.inf, torch.inf])
    out = decoded(codec, values)
    assert codec.non_finite is NonFinite.KEPT
    assert math.isnan(out[7]) and out[300] == -math.inf and out[450] == math.inf
    assert out.nan_to_num().isfinite().all()


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=50), st.floats(0.01, 1))
def test_top_k_loses_at_most_its_share_of_the_norm(values: list[float], ratio: float) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    lost = (tensor - decoded(TopK(ratio), tensor)).square().sum()
    k = math.ceil(ratio * len(values))
    assert lost <= (1 - k / len(values)) * tensor.square().sum() * (1 + 1e-12)


# Random places


@pytest.mark.parametrize("shared", [True, False])
def test_random_k_is_unbiased(shared: bool) -> None:
    """Every coordinate's mean over many steps is its value, within five standard deviations."""
    values, steps, k = normal(40, 9, torch.float64), 4_000, 8
    coder, total = (
        Coder(RandomK(0.2, shared=shared), flat(40, torch.float64), 3),
        torch.zeros(40, dtype=torch.float64),
    )
    for _ in range(steps):
        total += coder.decode(coder.encode(values))
    deviation = values.abs() * math.sqrt((40 / k - 1) / steps)
    assert ((total / steps - values).abs() / deviation).max() < 5
    assert coder.codec.unbiased


def test_random_k_sends_values_times_d_over_k() -> None:
    values = torch.arange(1.0, 11.0)
    out = decoded(RandomK(0.3), values)
    chosen = out.nonzero().view(-1)
    assert chosen.numel() == 3
    assert torch.equal(out[chosen], values[chosen] * (10 / 3))
    plain = decoded(RandomK(0.3, scaled=False), values)
    assert torch.equal(plain[chosen], values[chosen])
    assert not RandomK(0.3, scaled=False).unbiased


def test_shared_places_depend_on_the_codec_and_others_on_the_worker() -> None:
    values = torch.arange(1.0, 101.0)

    def places(codec: RandomK, worker: int) -> list[list[int]]:
        coder = Coder(codec, flat(100), worker)
        return [coder.decode(coder.encode(values)).nonzero().view(-1).tolist() for _ in range(3)]

    assert places(RandomK(0.1), 1) == places(RandomK(0.1), 2) != places(RandomK(0.1, seed=5), 1)
    assert places(RandomK(0.1, shared=False), 1) != places(RandomK(0.1, shared=False), 2)
    first, second, third = places(RandomK(0.1), 1)
    assert first != second != third != first


def test_shared_places_are_not_sent() -> None:
    coder = Coder(RandomK(0.1, seed=77), flat(100))
    coder.encode(normal(100))
    packed = coder.encode(normal(100))
    assert struct.unpack("<2q", bits(packed)[:16]) == (77, 1)
    with pytest.raises(WireError, match="seed 77 in step 1"):
        RandomK(0.1, seed=78).decode(packed, flat(100), torch.empty(100), Workspace())


@each_dtype
def test_shared_bytes_can_be_averaged(dtype: torch.dtype) -> None:
    codec, layout = RandomK(0.25), flat(64, dtype)
    workers = [Coder(codec, layout, seed) for seed in range(4)]
    values = [torch.from_numpy(np.random.default_rng(i).integers(-8, 9, 64)).to(dtype) for i in range(4)]
    packed = [worker.encode(each) for worker, each in zip(workers, values, strict=True)]
    expected = sum(w.decode(p).double() for w, p in zip(workers, packed, strict=True)) / 4
    summands = [codec.summands(each, layout) for each in packed]
    summands[0].copy_(sum(each.double() for each in summands) / 4)
    assert torch.equal(workers[0].decode(packed[0]).double(), expected)
    assert codec.summable
    with pytest.raises(NotImplementedError):
        RandomK(0.25, shared=False).summands(packed[0], layout)


# Strom's threshold


@each_dtype
def test_threshold_sends_one_word_per_value_beyond(dtype: torch.dtype) -> None:
    values = torch.tensor([0.5, 0.75, -0.5, -9.0, 0.0, math.nan, math.inf, -math.inf], dtype=dtype)
    layout, rest = flat(8, dtype), values.clone()
    coder = Coder(Threshold(0.5), layout)
    packed = coder.codec.encode_rest(rest, layout, coder.state, coder.work)
    assert struct.unpack("<4I", bits(packed)) == (1, 3 | 1 << 31, 6, 7 | 1 << 31)
    assert coder.decode(packed).tolist() == [0, 0.5, 0, -0.5, 0, 0, 0.5, -0.5]
    assert rest.tolist() == [0.5, 0.25, -0.5, -8.5, 0, 0, 0, 0]
    assert coder.codec.non_finite is NonFinite.DROPPED


@each_dtype
def test_threshold_against_a_plain_loop(dtype: torch.dtype) -> None:
    values, layout = normal(300, 2, dtype), flat(300, dtype)
    theta = float(torch.tensor(0.3, dtype=dtype))
    expected = [theta if v > theta else -theta if v < -theta else 0.0 for v in values.double().tolist()]
    assert decoded(Threshold(0.3), values).double().tolist() == expected
    assert Coder(Threshold(0.3), layout).encode(values).numel() == 4 * sum(map(bool, expected))


def test_a_threshold_that_the_dtype_does_not_know_is_refused() -> None:
    for theta in (1e-30, 1e30):
        with pytest.raises(UsageError, match="float16"):
            Coder(Threshold(theta), flat(4, torch.float16))
        Coder(Threshold(theta), flat(4))


# Memory


@each_codec
def test_nothing_is_allocated_after_the_first_call(codec: Codec) -> None:
    """Beyond a few small numbers; the tensor itself has 400 kB, and what is sent 40."""
    layout, values = flat(100_000), normal(100_000)
    coder, out, kept = Coder(codec, layout), torch.empty(100_000), torch.empty(100_000)

    def once() -> int:
        codec.encode_rest(kept.copy_(values), layout, coder.state, coder.work)
        packed = coder.encode(values)
        coder.decode(packed, out)
        return packed.data_ptr()

    first = once()
    with profile(profile_memory=True) as seen:
        assert once() == first
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in seen.function_events or [])
    assert allocated < 4096, f"{allocated} bytes"


def test_a_state_goes_on_where_it_was_saved() -> None:
    for codec in CODECS:
        coder, other = Coder(codec, flat(300), 5), Coder(codec, flat(300), 6)
        coder.encode(normal(300, 1))
        other.load_state_dict(coder.state_dict())
        assert bits(coder.encode(normal(300, 2))) == bits(other.encode(normal(300, 2)))


def test_tensors_that_need_more_than_31_bits_are_refused() -> None:
    with pytest.raises(UsageError, match="several pieces"):
        TopK(0.1).begin(flat(2**31 + 1), 0, torch.device("cpu"))
    assert isinstance(TopK(0.1).begin(flat(2**31), 0, torch.device("cpu")), State)
