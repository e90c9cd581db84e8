"""Deep gradient compression against its equations in plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.parts.codecs import Coder, Dgc
from fast.parts.codecs.base import Workspace
from fast.view import Layout

MODEL = (("weight", (40, 30)), ("bias", (30,)), ("small", (3, 5)), ("conv", (8, 4, 5, 5)), ("scale", ()))


def model(dtype: torch.dtype = torch.float64) -> Layout:
    return Layout.of(MODEL, dtype)


def gradients(layout: Layout, steps: int, seed: int = 0) -> list[Tensor]:
    """Integers, 0 in the padding: their sums are exact."""
    draw, inside = np.random.default_rng(seed), np.zeros(layout.size)
    for segment in layout.segments:
        inside[segment.start : segment.stop] = 1
    return [
        torch.from_numpy(draw.integers(-50, 51, layout.size) * inside).to(layout.dtype) for _ in range(steps)
    ]


def plain(
    layout: Layout, given_: list[Tensor], ratio: float, momentum: float, nesterov: bool
) -> list[np.ndarray]:
    """What is sent at every step: per parameter the exact largest, because all are small here."""
    u, v, sent = np.zeros(layout.size), np.zeros(layout.size), []
    for gradient in (each.double().numpy() for each in given_):
        if nesterov:
            u = momentum * (u + gradient)
            v = v + u + gradient
        else:
            u = momentum * u + gradient
            v = v + u
        out = np.zeros(layout.size)
        for segment in layout.segments:
            place = slice(segment.start, segment.stop)
            if len(segment.shape) < 2 or segment.size < 100:
                out[place], v[place] = v[place], 0
                continue
            k = max(1, math.ceil(ratio * segment.size))
            chosen = segment.start + np.lexsort((np.arange(segment.size), -np.abs(v[place])))[:k]
            out[chosen] = v[chosen]
            u[chosen] = v[chosen] = 0
        sent.append(out)
    return sent


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("ratio", [0.001, 0.05, 1.0])
def test_against_the_equations(nesterov: bool, ratio: float) -> None:
    layout = model()
    codec = Dgc(ratio, momentum=0.5, nesterov=nesterov, dense_below=100)
    coder, given_ = Coder(codec, layout), gradients(layout, 6)
    for gradient, expected in zip(given_, plain(layout, given_, ratio, 0.5, nesterov), strict=True):
        before = gradient.clone()
        packed = coder.encode(gradient)
        assert torch.equal(coder.decode(packed), torch.from_numpy(expected))
        assert torch.equal(gradient, before)


def test_without_momentum_nothing_is_lost() -> None:
    layout = model()
    coder, sent, came = Coder(Dgc(0.01, momentum=0.0, dense_below=100), layout), 0.0, 0.0
    for gradient in gradients(layout, 10):
        sent, came = sent + coder.decode(coder.encode(gradient)), came + gradient
        assert torch.equal(sent + coder.state.tensors["v"], came)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bytes_and_streams(dtype: torch.dtype) -> None:
    """Dense values without places, the others with them: 30 + 15 + 1 dense, 12 + 8 sparse."""
    layout = model(dtype)
    codec = Dgc(0.01, dense_below=100)
    coder = Coder(codec, layout)
    packed = coder.encode(gradients(layout, 1)[0])
    assert codec.sent(packed, layout) == 12 + 8
    assert packed.numel() == codec.nbytes(layout, 20) == 20 * 4 + (46 + 20) * dtype.itemsize
    assert packed.numel() <= codec.nbytes(layout)
    indices, values = codec.stream(packed, layout)
    assert indices.numel() == values.numel() == 66
    assert indices.tolist() == sorted(set(indices.tolist()))
    dense = torch.zeros(layout.size, dtype=dtype)
    dense[indices.long()] = values
    assert torch.equal(coder.decode(packed), dense)


def test_small_gradients_add_up_in_16_bits() -> None:
    """256 + 0.5 is 256 in bfloat16: what accumulates is kept in float32."""
    layout = Layout.single((100, 20), torch.bfloat16)
    coder = Coder(Dgc(0.0005, momentum=0.0, dense_below=0), layout)
    coder.state.tensors["v"][7] = 256.0
    coder.state.tensors["v"][9] = 1000.0
    gradient = torch.zeros(2000, dtype=torch.bfloat16)
    gradient[7] = 0.5
    coder.encode(gradient)
    assert coder.state.tensors["v"][[7, 9]].tolist() == [256.5, 0.0]


def test_one_dimension_and_small_parameters_travel_whole() -> None:
    layout = Layout.of([("bias", (5000,)), ("small", (10, 10)), ("large", (100, 100))], torch.float32)
    codec = Dgc(0.001)
    assert codec.nbytes(layout, 10) == 5100 * 4 + 10 * 8
    every = Dgc(0.001, dense_below=0)
    assert every.nbytes(layout, 11) == 5000 * 4 + 11 * 8


def test_warm_up_goes_down_in_four_stages() -> None:
    codec = Dgc(0.001, warm_up=8)
    ratios = [codec.ratio_at(step) for step in range(10)]
    assert ratios == [0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.00390625, 0.00390625, 0.001, 0.001]
    assert Dgc(0.1, warm_up=4).ratio_at(2) == 0.1
    layout = Layout.single((100, 100), torch.float32)
    coder = Coder(Dgc(0.001, warm_up=4, momentum=0.0), layout)
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    sent = [coder.codec.sent(coder.encode(values), layout) for _ in range(6)]
    assert sent == [2500, 625, 157, 40, 10, 10]
    assert codec.nbytes(layout) == 8 * math.ceil(1.3 * 2500)


def test_gradients_are_clipped_to_the_share_of_one_worker() -> None:
    layout = Layout.single((2, 2), torch.float64)
    values = torch.tensor([3.0, 0.0, 0.0, 4.0], dtype=torch.float64)
    coder = Coder(Dgc(1.0, clip=1.0, workers=4, dense_below=0), layout)
    assert coder.decode(coder.encode(values)).tolist() == pytest.approx([0.3, 0, 0, 0.4])
    loose = Coder(Dgc(1.0, clip=100.0, workers=4, dense_below=0), layout)
    assert torch.equal(loose.decode(loose.encode(values)), values)
    nan = torch.tensor([3.0, torch.nan, 0.0, 4.0], dtype=torch.float64)
    found = coder.decode(coder.encode(nan))
    assert found[0] == 3.0 and found[1].isnan()


def test_what_is_not_finite_is_sent_once_and_forgotten() -> None:
    layout = model(torch.float32)
    coder, gradient = Coder(Dgc(0.01, dense_below=100), layout), gradients(layout, 1)[0]
    bias = layout.segments[1].start
    spoilt = gradient.clone()
    spoilt[5], spoilt[bias] = torch.nan, torch.inf
    found = coder.decode(coder.encode(spoilt))
    assert found[5].isnan() and found[bias] == torch.inf
    assert all(tensor.isfinite().all() for tensor in coder.state.tensors.values())
    assert coder.decode(coder.encode(gradient)).isfinite().all()


def test_it_goes_on_where_it_was_saved() -> None:
    layout = model(torch.float32)
    coder, other = (Coder(Dgc(0.01, warm_up=8, dense_below=100), layout) for _ in range(2))
    first, second, third = gradients(layout, 3)
    coder.encode(first)
    coder.encode(second)
    other.load_state_dict(coder.state_dict())
    assert torch.equal(coder.encode(third), other.encode(third))


@given(st.binary(max_size=800), st.integers(0, 40), st.booleans())
@settings(max_examples=80)
def test_bytes_of_a_stranger(raw: bytes, count: int, right_size: bool) -> None:
    layout, codec = model(torch.float32), Dgc(0.01, dense_below=100)
    if right_size:
        raw = raw.ljust(800, b"\0")[: codec.nbytes(layout, count)]
        raw = raw.ljust(codec.nbytes(layout, count), b"\0")
    out = torch.empty(layout.size)
    try:
        codec.decode(torch.tensor(list(raw), dtype=torch.uint8), layout, out, Workspace())
    except WireError:
        return
    assert len(raw) == codec.nbytes(layout, codec.sent(torch.empty(len(raw)), layout))


def test_a_place_that_is_named_twice_is_refused() -> None:
    layout, codec = model(torch.float32), Dgc(0.01, dense_below=100)
    packed = Coder(codec, layout).encode(gradients(layout, 1)[0]).clone()
    packed[-80:].view(torch.int32).copy_(torch.arange(20, dtype=torch.int32) + layout.segments[1].start)
    with pytest.raises(WireError, match="ascend"):
        codec.decode(packed, layout, torch.empty(layout.size), Workspace())


def test_an_empty_layout() -> None:
    for layout in (Layout.of([], torch.float32), Layout.single((0, 5), torch.float32)):
        coder = Coder(Dgc(), layout)
        assert coder.encode(torch.empty(0)).numel() == 0
        assert coder.decode(torch.empty(0, dtype=torch.uint8)).numel() == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"ratio": 0.0}, "ratio"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": -0.1}, "momentum"),
        ({"clip": 1.0}, "workers"),
        ({"clip": 0.0, "workers": 2}, "clip"),
        ({"workers": 0}, "workers"),
        ({"warm_up": -1}, "warm_up"),
        ({"dense_below": 1.5}, "dense_below"),
        ({"nesterov": 1}, "nesterov"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Dgc(**arguments)  # type: ignore[arg-type]
