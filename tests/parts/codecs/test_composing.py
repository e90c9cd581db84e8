"""Codecs around and behind one another: error feedback, chains, and what is refused."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.parts.codecs import (
    Bf16,
    Clip,
    Codec,
    Coder,
    ColumnMeans,
    Dgc,
    ErrorFeedback,
    Factored,
    Fp16,
    Int8,
    Qsgd,
    RandomK,
    SampledTopK,
    ScaledSign,
    Sign,
    Sparse,
    TernGrad,
    Threshold,
    TopK,
    chain,
    ef_sign,
    mxnet_two_bit,
    one_bit_sgd,
    power_sgd,
    strom,
)
from fast.parts.codecs.base import Workspace
from fast.view import Layout

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
QUANTIZERS = (Fp16(), Bf16(), Int8(), Int8(stochastic=True), Qsgd(), TernGrad(), ScaledSign(), ColumnMeans())
FEW = (TopK(0.1), SampledTopK(0.1), RandomK(0.1), RandomK(0.1, shared=False), RandomK(0.2, scaled=False))
MODEL = (("weight", (20, 15)), ("bias", (15,)), ("conv", (6, 2, 3, 3)))
EXACT = (
    TopK(0.05),
    SampledTopK(0.05),
    RandomK(0.1, scaled=False),
    RandomK(0.1, scaled=False, shared=False),
    Threshold(2.0),
)
"""What these send and leave of whole numbers is whole, so that sums are exact."""
COMPOSED = (
    one_bit_sgd(),
    ef_sign(),
    mxnet_two_bit(),
    strom(1.0),
    power_sgd(2),
    *(ErrorFeedback(codec) for codec in EXACT),
    ErrorFeedback(chain(TopK(0.1), Int8(stochastic=True))),
    chain(Clip(1.0), ErrorFeedback(TopK(0.05))),
    chain(Clip(5.0), Dgc(0.01, dense_below=100)),
    chain(Clip(1.0), Qsgd()),
    chain(TopK(0.1), Qsgd()),
    chain(Clip(2.0), SampledTopK(0.1), Int8()),
    chain(RandomK(0.1, shared=False), Qsgd()),
)


def model(dtype: torch.dtype = torch.float32) -> Layout:
    return Layout.of(MODEL, dtype)


def values_of(layout: Layout, seed: int, whole: bool = False) -> Tensor:
    draw, flat = np.random.default_rng(seed), torch.zeros(layout.size, dtype=layout.dtype)
    for segment in layout.segments:
        plain = draw.integers(-9, 10, segment.size) if whole else draw.normal(size=segment.size)
        flat[segment.start : segment.stop] = torch.from_numpy(plain).to(layout.dtype)
    return flat


def bits(tensor: Tensor) -> bytes:
    return tensor.clone().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


# Error feedback


@pytest.mark.parametrize("codec", EXACT, ids=repr)
def test_what_was_sent_and_the_rest_add_up_exactly(codec: Codec) -> None:
    layout = model(torch.float64)
    coder, sent, came = Coder(ErrorFeedback(codec), layout), 0.0, 0.0
    for step in range(20):
        gradient = values_of(layout, step, whole=True)
        sent, came = sent + coder.decode(coder.encode(gradient)), came + gradient
        assert torch.equal(sent + coder.state.tensors["residual"], came)
    assert bool(coder.state.tensors["residual"].any())


@pytest.mark.parametrize(
    "codec",
    [ColumnMeans(), ScaledSign(), Factored(2), chain(TopK(0.1), Int8()), chain(Clip(3.0), TopK(0.1)), Fp16()],
    ids=repr,
)
def test_what_was_sent_and_the_rest_add_up(codec: Codec) -> None:
    layout = model()
    coder, sent, came = Coder(ErrorFeedback(codec), layout), 0.0, 0.0
    for step in range(20):
        gradient = values_of(layout, step)
        sent, came = sent + coder.decode(coder.encode(gradient)).double(), came + gradient.double()
        assert torch.allclose(sent + coder.state.tensors["residual"], came, rtol=0, atol=2e-4)


def test_error_feedback_of_top_k_against_a_plain_loop() -> None:
    layout, residual = Layout.single((50,), torch.float64), np.zeros(50)
    coder = Coder(ErrorFeedback(TopK(0.1)), layout)
    for step in range(10):
        gradient = values_of(layout, step)
        residual = residual + gradient.numpy()
        chosen = np.argsort(-np.abs(residual), kind="stable")[:5]
        expected = np.zeros(50)
        expected[chosen] = residual[chosen]
        residual[chosen] = 0
        assert coder.decode(coder.encode(gradient)).numpy() == pytest.approx(expected, abs=0)


def test_strom_sends_one_threshold_per_element_and_call() -> None:
    layout = Layout.single((2,), torch.float32)
    coder = Coder(strom(1.0), layout)
    first = torch.tensor([3.5, -0.75])
    sent = [coder.decode(coder.encode(first if step == 0 else torch.zeros(2))).tolist() for step in range(5)]
    assert sent == [[1, 0], [1, 0], [1, 0], [0, 0], [0, 0]]
    assert coder.state.tensors["residual"].tolist() == [0.5, -0.75]


@pytest.mark.parametrize(
    "codec", [strom(1.0), mxnet_two_bit(1.0), ef_sign(), one_bit_sgd(), power_sgd(2)], ids=repr
)
def test_what_is_not_finite_is_not_remembered(codec: Codec) -> None:
    layout, coder = model(), Coder(codec, model())
    spoilt = values_of(layout, 1)
    spoilt[[0, 7, 310]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    coder.encode(spoilt)
    assert coder.state.tensors["residual"].isfinite().all()
    assert coder.decode(coder.encode(values_of(layout, 2))).isfinite().all()


def test_error_feedback_takes_after_the_codec_inside() -> None:
    layout, inner, outer = model(), RandomK(0.1, scaled=False), ErrorFeedback(RandomK(0.1, scaled=False))
    assert outer.nbytes(layout) == inner.nbytes(layout)
    assert outer.summable and outer.sparse and not outer.unbiased
    assert outer.non_finite is inner.non_finite
    assert outer.decoder == inner and isinstance(outer.decoder, Sparse)
    assert not ErrorFeedback(Qsgd(levels=127)).unbiased
    packed = Coder(ErrorFeedback(SampledTopK(0.1)), layout).encode(values_of(layout, 1))
    assert ErrorFeedback(SampledTopK(0.1)).sent(packed, layout) == packed.numel() // 8
    workers = [Coder(outer, layout, seed) for seed in range(2)]
    first, second = (worker.encode(values_of(layout, i)) for i, worker in enumerate(workers))
    expected = (workers[0].decode(first).clone() + workers[1].decode(second)) / 2
    outer.summands(first, layout).add_(outer.summands(second, layout)).div_(2)
    assert torch.equal(workers[0].decode(first), expected)


@pytest.mark.parametrize(
    "codec",
    [
        ErrorFeedback(RandomK(0.1, scaled=False)),
        chain(Clip(1.0), RandomK(0.1)),
        chain(RandomK(0.1), Int8()),
        chain(Clip(1.0), ErrorFeedback(RandomK(0.1, scaled=False))),
    ],
    ids=repr,
)
def test_a_codec_inside_counts_its_steps(codec: Codec) -> None:
    """Or random places would be the same ones every time."""
    layout = Layout.single((200,), torch.float32)
    coder, alone = Coder(codec, layout), Coder(RandomK(0.1), layout)
    for step in range(4):
        values = values_of(layout, step)
        expected = alone.decode(alone.encode(values)).nonzero()
        found = coder.decode(coder.encode(values)).nonzero()
        assert set(found.view(-1).tolist()) <= set(expected.view(-1).tolist())
        assert found.numel() > 10


# Chains


@pytest.mark.parametrize("dtype", DTYPES)
def test_clip_scales_to_a_norm(dtype: torch.dtype) -> None:
    layout = Layout.single((4,), dtype)
    values = torch.tensor([3.0, 0.0, -4.0, 12.0], dtype=dtype)
    coder = Coder(chain(Clip(6.5), TopK(1.0)), layout)
    assert coder.decode(coder.encode(values)).tolist() == [1.5, 0, -2, 6]
    assert values.tolist() == [3, 0, -4, 12]
    loose = Coder(chain(Clip(13.0), TopK(1.0)), layout)
    assert torch.equal(loose.decode(loose.encode(values)), values)
    for odd in (math.nan, math.inf):
        spoilt = values.clone()
        spoilt[1] = odd
        assert bits(coder.decode(coder.encode(spoilt))) == bits(spoilt)
    zeros = torch.zeros(4, dtype=dtype)
    assert torch.equal(coder.decode(coder.encode(zeros)), zeros)


def test_clips_behind_one_another() -> None:
    layout = Layout.single((2,), torch.float64)
    coder = Coder(chain(Clip(10.0), Clip(1.0), TopK(1.0)), layout)
    found = coder.decode(coder.encode(torch.tensor([30.0, 40.0], dtype=torch.float64)))
    assert found.tolist() == pytest.approx([0.6, 0.8], rel=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=repr)
@pytest.mark.parametrize("few", FEW, ids=repr)
def test_few_values_with_fewer_bits(few: Codec, quantizer: Codec, dtype: torch.dtype) -> None:
    """The places are those of the sparse codec; the values those that the dense one makes of them."""
    layout = model(dtype)
    codec = chain(few, quantizer)
    assert isinstance(codec, Sparse) and isinstance(few, Sparse)
    coder, plain = Coder(codec, layout, 3), Coder(few, layout, 3)
    for seed in range(2):
        values = values_of(layout, seed)
        packed = coder.encode(values)
        indices, chosen = (each.clone() for each in few.stream(plain.encode(values), layout))
        behind = Layout.single((chosen.numel(),), dtype)
        inner = Coder(quantizer, behind, 3 ^ 1)
        inner.state.steps = seed
        expected = torch.zeros(layout.size, dtype=dtype)
        expected[indices.long()] = inner.decode(inner.encode(chosen))
        assert bits(coder.decode(packed)) == bits(expected)
        places = 16 if few in (FEW[2], FEW[4]) else 4 * chosen.numel()
        assert (
            packed.numel()
            == places + quantizer.nbytes(behind)
            == codec.nbytes(layout, codec.sent(packed, layout))
        )
        assert codec.sent(packed, layout) in (None, chosen.numel())
    assert codec.unbiased == (few.unbiased and quantizer.unbiased)


def test_places_and_small_floats_of_several_workers_can_be_added() -> None:
    codec, layout = chain(RandomK(0.25), Bf16()), Layout.single((64,), torch.float32)
    assert codec.summable and not chain(RandomK(0.25), Int8()).summable
    workers = [Coder(codec, layout, seed) for seed in range(2)]
    values = [values_of(layout, seed, whole=True) for seed in range(2)]
    packed = [worker.encode(each) for worker, each in zip(workers, values, strict=True)]
    expected = (workers[0].decode(packed[0]).clone() + workers[1].decode(packed[1])) / 2
    summands = [codec.summands(each, layout) for each in packed]
    summands[0].copy_((summands[0].float() + summands[1].float()) / 2)
    assert torch.equal(workers[0].decode(packed[0]), expected)
    with pytest.raises(NotImplementedError):
        chain(TopK(0.25), Bf16()).summands(packed[0], layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "codec",
    [
        *(chain(few, Int8()) for few in FEW),
        chain(TopK(0.1), Qsgd()),
        chain(TopK(0.1), Fp16()),
        chain(Clip(1.0), TopK(0.1)),
        chain(Clip(1.0), Threshold(0.05)),
        chain(Clip(1.0), Int8()),
        chain(Clip(1.0), SampledTopK(0.1), Int8()),
        chain(Clip(1.0), Factored(2)),
    ],
    ids=repr,
)
def test_encode_rest_leaves_what_the_bytes_do_not_say(codec: Codec, dtype: torch.dtype) -> None:
    layout = model(dtype)
    values = values_of(layout, 4)
    rest, coder, other = values.clone(), Coder(codec, layout, 7), Coder(codec, layout, 7)
    packed = codec.encode_rest(rest, layout, coder.state, coder.work)
    assert bits(packed) == bits(other.encode(values))
    assert torch.allclose(rest, values - coder.decode(packed), rtol=0, atol=2e-6)


def test_chains_are_written_as_they_are_called() -> None:
    assert repr(chain(Clip(1.0), TopK(0.01), Int8())) == (
        "chain(clip(norm=1.0), top_k(ratio=0.01), int8(stochastic=False))"
    )
    assert chain(TopK(0.01)) == TopK(0.01)
    assert chain(Clip(1.0), chain(TopK(0.01), Int8())) == chain(Clip(1.0), TopK(0.01), Int8())
    assert chain(Clip(1.0), ErrorFeedback(TopK(0.1))).decoder == TopK(0.1)
    assert chain(Clip(1.0), TopK(0.1), Int8()).decoder == chain(TopK(0.1), Int8())


# Together


@pytest.mark.parametrize("codec", COMPOSED, ids=repr)
def test_saved_in_the_middle_it_goes_on_with_the_same_bytes(codec: Codec) -> None:
    layout = model()
    coder, other = Coder(codec, layout, 3), Coder(codec, layout, 4)
    for step in range(3):
        coder.encode(values_of(layout, step))
    other.load_state_dict(coder.state_dict())
    for step in range(3, 6):
        assert bits(coder.encode(values_of(layout, step))) == bits(other.encode(values_of(layout, step)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", COMPOSED, ids=repr)
def test_sizes_empty_tensors_and_odd_values(codec: Codec, dtype: torch.dtype) -> None:
    for layout in (
        model(dtype),
        Layout.of([], dtype),
        Layout.single((1,), dtype),
        Layout.single((3, 0), dtype),
    ):
        coder = Coder(codec, layout)
        for value in (0.0, 1.0, 1e-40, math.nan, math.inf, -3.0):
            values = torch.full((layout.size,), value, dtype=dtype)
            packed = coder.encode(values)
            assert packed.numel() == codec.nbytes(layout, codec.sent(packed, layout)) <= codec.nbytes(layout)
            assert coder.decode(packed).numel() == layout.size


@pytest.mark.parametrize("codec", COMPOSED, ids=repr)
@given(raw=st.binary(max_size=300), right_size=st.booleans())
@settings(max_examples=15)
def test_bytes_of_a_stranger(codec: Codec, raw: bytes, right_size: bool) -> None:
    layout = Layout.of([("a", (4, 6)), ("b", (5,))], torch.float32)
    memory = torch.full((layout.size + 16,), 5.0)
    size = codec.nbytes(layout)
    packed = torch.tensor(list(raw.ljust(size, b"\1")[:size] if right_size else raw), dtype=torch.uint8)
    with contextlib.suppress(WireError):
        codec.decoder.decode(packed, layout, memory[8:-8], Workspace())
    assert (memory[:8] == 5).all() and (memory[-8:] == 5).all()


# What is refused


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ErrorFeedback(ErrorFeedback(TopK(0.1))), "already remembers"),
        (lambda: ErrorFeedback(Dgc()), "already remembers"),
        (lambda: ErrorFeedback(chain(Clip(1.0), Dgc())), "already remembers"),
        (lambda: ErrorFeedback(Clip(1.0)), "needs a codec"),  # type: ignore[arg-type]
        (lambda: ErrorFeedback("top_k"), "needs a codec"),  # type: ignore[arg-type]
        (lambda: ErrorFeedback(RandomK(0.1)), "scaled=False"),
        (lambda: ErrorFeedback(chain(Clip(1.0), RandomK(0.1), Int8())), "scaled=False"),
        (lambda: chain(), "A chain is"),
        (lambda: chain(Clip(1.0)), "A chain is"),
        (lambda: chain(TopK(0.1), Clip(1.0)), "A chain is"),
        (lambda: chain(TopK(0.1), Int8(), Int8()), "A chain is"),
        (lambda: chain(TopK(0.1), "int8"), "A chain is"),  # type: ignore[arg-type]
        (lambda: chain(Int8(), TopK(0.1)), "the first must send values"),
        (lambda: chain(Threshold(1.0), Int8()), "the first must send values"),
        (lambda: chain(Dgc(), Int8()), "the first must send values"),
        (lambda: chain(ErrorFeedback(TopK(0.1)), Int8()), "the first must send values"),
        (lambda: chain(TopK(0.1), TopK(0.1)), "the second must be a dense codec"),
        (lambda: chain(TopK(0.1), ErrorFeedback(Sign())), "the second must be a dense codec"),
        (lambda: chain(TopK(0.1), Factored(1)), "the second must be a dense codec"),
        (lambda: chain(TopK(0.1), chain(Clip(1.0), Int8())), "the second must be a dense codec"),
        (lambda: Clip(0.0), "clip"),
        (lambda: Clip(math.nan), "clip"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(build: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build()  # type: ignore[operator]


def test_the_rest_of_scaled_random_values_would_grow() -> None:
    """Why error feedback refuses them: what is left has, on average, d/k − 1 times the squared norm."""
    layout = Layout.single((1000,), torch.float64)
    values, codec = values_of(layout, 1), RandomK(0.1)
    coder = Coder(codec, layout)
    norms = []
    for _ in range(200):
        rest = values.clone()
        codec.encode_rest(rest, layout, coder.state, coder.work)
        coder.state.steps += 1
        norms.append(float(rest.square().sum() / values.square().sum()))
    assert np.mean(norms) == pytest.approx(9.0, rel=0.1)


@pytest.mark.parametrize(
    "codec", [Qsgd(), Qsgd(levels=22), TernGrad(), chain(TopK(0.1), Qsgd(levels=3))], ids=repr
)
def test_feedback_is_refused_where_the_rest_would_grow(codec: Codec) -> None:
    """An unbiased codec whose noise exceeds its input: the rest of a rest is larger than the rest."""
    with pytest.raises(UsageError, match="would grow at every step"):
        ErrorFeedback(codec)


def test_feedback_of_fine_levels_stays_small() -> None:
    layout = Layout.single((2048,), torch.float32)
    coder = Coder(ErrorFeedback(Qsgd(levels=23)), layout)
    for step in range(40):
        coder.encode(torch.randn(2048, generator=torch.Generator().manual_seed(step)))
    residual = coder.state.tensors["residual"]
    assert float(residual.norm()) < 40 * 2048**0.5, "it doesn't outgrow all that was ever sent"
