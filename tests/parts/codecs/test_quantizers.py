"""Quantizing codecs: values against plain numpy, sizes, chances, and what happens at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.parts.codecs.base import Codec, Coder, NonFinite, State, Workspace
from fast.parts.codecs.casts import Bf16, Fp16, ScaledFp16
from fast.parts.codecs.eight_bit import BlockInt8, Int8
from fast.parts.codecs.qsgd import Qsgd
from fast.parts.codecs.signs import ColumnMeans, ScaledSign, Sign
from fast.parts.codecs.ternary import TernGrad, TwoBit
from fast.parts.kernels.choosing import Kernel
from fast.view import Layout, Segment

Floats = NDArray[np.float32]

MODEL = Layout.of(
    [
        ("conv", (5, 3, 3, 3)),
        ("bias", (5,)),
        ("scalar", ()),
        ("none", (0,)),
        ("fc", (37, 41)),
        ("last", (13,)),
    ],
    torch.float32,
)
CODECS: list[Codec] = [
    Fp16(), Bf16(), ScaledFp16(), Int8(), Int8(stochastic=True), BlockInt8(), BlockInt8(block=10, stochastic=True),
    Qsgd(levels=1), Qsgd(levels=7, bucket=64), Qsgd(levels=127), TernGrad(), TernGrad(clip=None, dense_below=0),
    TwoBit(threshold=0.7), Sign(), ScaledSign(), ColumnMeans(),
]  # fmt: skip
each_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)
random_ones = [codec for codec in CODECS if getattr(codec, "stochastic", isinstance(codec, Qsgd | TernGrad))]


def numbers(layout: Layout, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random ones, with zeros in the padding."""
    flat = torch.zeros(layout.size)
    generator = torch.Generator().manual_seed(seed)
    for segment in layout.segments:
        segment.of(flat).copy_(torch.randn(segment.shape, generator=generator) * scale)
    return flat.to(layout.dtype)


def through(codec: Codec, values: Tensor, layout: Layout, seed: int = 7) -> Tensor:
    """There and back, into memory that is full of something else."""
    coder, out = Coder(codec, layout, seed), torch.full_like(values, 99.0)
    return coder.decode(coder.encode(values), out)


def mask_of_padding(layout: Layout) -> Tensor:
    padding = torch.ones(layout.size, dtype=torch.bool)
    for segment in layout.segments:
        padding[segment.start : segment.stop] = False
    return padding


# Values against numpy: what a group becomes, and which numbers are a group


def nearest_levels(v: Floats) -> Floats:
    unit = np.float32(np.abs(v).max() / np.float32(127))
    return np.rint(v / unit) * unit if unit > 0 else np.zeros_like(v)


def mean_of_side(v: Floats) -> Floats:
    out = np.empty_like(v)
    for side in (v >= 0, v < 0):
        out[side] = v[side].mean(dtype=np.float64) if side.any() else 0
    return out


def half_with_scale(v: Floats) -> Floats:
    largest = np.abs(v).max()
    scale = np.float32(2.0 ** (math.frexp(largest)[1] - 1 - 14)) if largest else np.float32(1)
    return (v / scale).astype(np.float16).astype(np.float32) * scale


def crossing(v: Floats) -> Floats:
    return np.where(v >= np.float32(0.7), 0.7, np.where(v <= np.float32(-0.7), -0.7, 0.0)).astype(np.float32)


def segments(layout: Layout) -> list[slice]:
    return [slice(each.start, each.stop) for each in layout.segments]


def rows(layout: Layout) -> list[slice]:
    found = []
    for each in layout.segments:
        count = each.shape[0] if len(each.shape) > 1 else 1
        edges = [each.start + each.size * k // count for k in range(count + 1)]
        found += [slice(a, b) for a, b in pairwise(edges)]
    return found


def blocks(layout: Layout) -> list[slice]:
    return [slice(at, min(at + 256, layout.size)) for at in range(0, layout.size, 256)]


Grouping = Callable[[Layout], list[slice]]
EXPECTED: list[tuple[Codec, Grouping, Callable[[Floats], Floats]]] = [
    (Fp16(), segments, lambda v: v.astype(np.float16).astype(np.float32)),
    (Bf16(), segments, lambda v: torch.from_numpy(v).bfloat16().float().numpy()),
    (ScaledFp16(), segments, half_with_scale),
    (Int8(), segments, nearest_levels),
    (BlockInt8(), blocks, nearest_levels),
    (TwoBit(threshold=0.7), segments, crossing),
    (Sign(), segments, lambda v: np.where(v >= 0, np.float32(1), np.float32(-1))),
    (ScaledSign(), segments, lambda v: np.abs(v).mean(dtype=np.float64) * np.where(v >= 0, 1, -1)),
    (ColumnMeans(), rows, mean_of_side),
]
pieces = [slice(0, MODEL.size), *MODEL.cuts(3), slice(7, 300), slice(150, 160)]


@pytest.mark.parametrize("cut", pieces, ids=str)
@pytest.mark.parametrize(
    ("codec", "grouping", "expected"), EXPECTED, ids=[repr(each[0]) for each in EXPECTED]
)
def test_values(codec: Codec, grouping: Grouping, expected: Callable[[Floats], Floats], cut: slice) -> None:
    layout, values = MODEL.part(cut.start, cut.stop), numbers(MODEL)[cut]
    wanted = np.zeros(layout.size, np.float32)
    for group in grouping(layout):
        if group.stop > group.start:
            wanted[group] = expected(values.numpy()[group])
    np.testing.assert_allclose(through(codec, values, layout).numpy(), wanted, rtol=1e-6, atol=0)


def test_bytes_of_small_examples() -> None:
    """What is on the wire, byte by byte: scales first, low bits first."""
    layout = Layout.single((2, 5), torch.float32)
    values = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -1.0, -1.0, -1.0, -1.0, -1.0])
    packed = {codec.name: Coder(codec, layout).encode(values).numpy().tobytes()
              for codec in (Sign(), ScaledSign(), ColumnMeans(), TwoBit(threshold=2.0), Int8())}  # fmt: skip
    signs = bytes([0b00010101, 0b00])
    assert packed["sign"] == signs
    assert packed["scaled_sign"] == np.float32([2.0]).tobytes() + signs
    assert packed["column_means"] == np.float32([-3, -1, 3, 0]).tobytes() + signs
    assert packed["two_bit"] == bytes([0b11_01_11_00, 0b00_00_00_01, 0])
    levels = np.rint(values.numpy() / (np.float32(5) / np.float32(127))).astype(np.int8)
    assert packed["int8"] == (np.float32([5]) / np.float32(127)).tobytes() + levels.tobytes()


# Sizes


SIZES: list[tuple[Codec, int]] = [
    (Fp16(), 2 * MODEL.size),
    (Bf16(), 2 * MODEL.size),
    (ScaledFp16(), 2 * 1671 + 4 * 5),
    (Int8(), 1671 + 4 * 5),
    (BlockInt8(block=100), MODEL.size + 4 * math.ceil(MODEL.size / 100)),
    (Qsgd(levels=1, bucket=512), MODEL.size // 4 + 4 * math.ceil(MODEL.size / 512)),
    (Qsgd(levels=2), MODEL.size // 2 + 4 * math.ceil(MODEL.size / 512)),
    (Qsgd(levels=7), MODEL.size // 2 + 4 * math.ceil(MODEL.size / 512)),
    (Qsgd(levels=8), MODEL.size + 4 * math.ceil(MODEL.size / 512)),
    (TernGrad(dense_below=100), math.ceil(135 / 4) + math.ceil(1517 / 4) + 4 * 2 + 4 * (5 + 1 + 13)),
    (TwoBit(), 34 + 2 + 1 + 380 + 4),
    (Sign(), 17 + 1 + 1 + 190 + 2),
    (ScaledSign(), 17 + 1 + 1 + 190 + 2 + 4 * 5),
    (ColumnMeans(), 17 + 1 + 1 + 190 + 2 + 8 * (5 + 1 + 1 + 37 + 1)),
]


@pytest.mark.parametrize(("codec", "size"), SIZES, ids=lambda each: repr(each))
def test_sizes_follow_the_formulas(codec: Codec, size: int) -> None:
    assert codec.nbytes(MODEL) == size
    assert Coder(codec, MODEL).encode(numbers(MODEL)).numel() == size


@each_codec
@given(st.lists(st.lists(st.integers(0, 12), max_size=3), max_size=4), st.data())
@settings(deadline=None, max_examples=20)
def test_any_layout_and_any_slice(codec: Codec, shapes: list[list[int]], data: st.DataObject) -> None:
    """Bytes are as many as the formula says, padding comes back as 0, and what is sent is near."""
    whole = Layout.of([(str(n), shape) for n, shape in enumerate(shapes)], torch.float32)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, whole.size)] * 2)))
    layout, values = whole.part(start, stop), numbers(whole)[start:stop]
    coder = Coder(codec, layout)
    packed = coder.encode(values)
    assert packed.dtype == torch.uint8 and packed.shape == (codec.nbytes(layout),)
    out = coder.decode(packed, torch.full((layout.size,), math.nan))
    assert torch.isfinite(out).all()
    assert not out[mask_of_padding(layout)].any()
    assert torch.equal(values, numbers(whole)[start:stop]), "the values stay intact"


@each_codec
def test_bytes_of_a_wrong_number_are_refused(codec: Codec) -> None:
    coder = Coder(codec, MODEL)
    packed = coder.encode(numbers(MODEL)).clone()
    for wrong in (packed[:-1], torch.cat([packed, packed[:1]]), packed[:0]):
        with pytest.raises(WireError, match=r"needs \d+ bytes"):
            coder.decode(wrong)


@each_codec
def test_any_bytes_decode_to_something(codec: Codec) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (codec.nbytes(MODEL),), dtype=torch.uint8, generator=generator)
    out = Coder(codec, MODEL).decode(packed)
    assert out.shape == (MODEL.size,)


# Kinds, rests and memory


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@each_codec
def test_other_kinds_are_computed_in_float32(codec: Codec, dtype: torch.dtype) -> None:
    layout = Layout(dtype, MODEL.segments, MODEL.size)
    values = numbers(layout)
    out = through(codec, values, layout)
    if isinstance(codec, Fp16 | Bf16):
        assert torch.equal(out, values.to(codec.dtype).to(dtype))
    else:
        assert torch.equal(out, through(codec, values.float(), MODEL).to(dtype))


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 0.0])
@each_codec
def test_the_rest_is_what_the_bytes_do_not_say(codec: Codec, scale: float) -> None:
    """The fused way leaves the same bits as encoding, decoding and subtracting."""
    values, state = numbers(MODEL, scale=scale), State(seed=5)
    plain, fused = values.clone(), values.clone()
    expected = Codec.encode_rest(codec, plain, MODEL, state, Workspace())
    packed = codec.encode_rest(fused, MODEL, state, Workspace())
    assert torch.equal(packed, expected)
    assert fused.numpy().tobytes() == plain.numpy().tobytes()
    assert torch.equal(packed, codec.encode(values, MODEL, state, Workspace()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@each_codec
def test_the_rest_has_the_kind_of_the_layout(codec: Codec, dtype: torch.dtype) -> None:
    layout, work = Layout(dtype, MODEL.segments, MODEL.size), Workspace()
    values = numbers(layout)
    rest, decoded = values.clone(), torch.empty_like(values)
    codec.decode(codec.encode_rest(rest, layout, State(), work), layout, decoded, work)
    assert torch.equal(rest, values - decoded)


@each_codec
def test_nothing_large_is_allocated_after_the_first_call(codec: Codec) -> None:
    layout = Layout.of([("w", (300, 1000)), ("b", (300,))], torch.float32)
    coder, values, rest = Coder(codec, layout), numbers(layout), numbers(layout)
    out = torch.empty(layout.size)

    def work() -> tuple[int, int]:
        packed = coder.encode(values)
        place = packed.data_ptr()
        coder.decode(packed, out)
        return place, codec.encode_rest(rest, layout, coder.state, coder.work).data_ptr()

    places = work()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        assert work() == places
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events() or ())
    assert allocated < layout.nbytes / 100


# Other devices


@each_codec
def test_torch_operations_give_the_same_bytes(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other devices compute with, here on the CPU."""

    def everything() -> list[bytes]:
        rest, work = numbers(MODEL), Workspace()
        packed = codec.encode_rest(rest, MODEL, State(seed=3), work)
        out = torch.full_like(rest, 99.0)
        codec.decode(packed, MODEL, out, work)
        return [each.numpy().tobytes() for each in (packed, out, rest)]

    compiled = everything()
    monkeypatch.setattr(Kernel, "__call__", lambda self, *args: self.reference(*args))
    assert everything() == compiled


@each_codec
def test_no_value_is_looked_at_from_python(codec: Codec) -> None:
    """So it works on tensors without values, and a device never has to wait."""
    coder, values = Coder(codec, MODEL, device="meta"), torch.empty(MODEL.size, device="meta")
    packed = coder.encode(values)
    assert packed.shape == (codec.nbytes(MODEL),)
    assert coder.decode(packed).shape == values.shape
    codec.encode_rest(values, MODEL, coder.state, coder.work)


# What isn't finite, and what almost isn't


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@each_codec
def test_what_is_not_finite(codec: Codec, bad: float) -> None:
    """As the codec says: kept, or its group becomes NaN, or it counts as something finite."""
    values = numbers(MODEL)
    clean = through(codec, values, MODEL)
    place = next(each for each in MODEL.segments if each.name == "fc").start + 3 * 41 + 2
    values[place] = bad
    out = through(codec, values, MODEL)
    changed = ~torch.isclose(out, clean, rtol=0, atol=0)
    rest = values.clone()
    codec.encode_rest(rest, MODEL, State(), Workspace())
    assert torch.isfinite(rest).all(), "what isn't finite is not remembered"
    match codec.non_finite:
        case NonFinite.KEPT:
            assert torch.equal(out[place].isnan(), values[place].isnan())
            assert math.isnan(bad) or out[place] == bad
            assert changed.nonzero().view(-1).tolist() == [place]
        case NonFinite.SPREADS:
            assert changed[place] and torch.isnan(out[changed]).all()
        case NonFinite.DROPPED:
            assert torch.isfinite(out).all()


def test_a_bad_number_spoils_its_group_only() -> None:
    layout, values = Layout.single((4, 16), torch.float32), torch.ones(64)
    values[20] = math.inf
    spoiled = {
        ColumnMeans(): range(16, 32),
        BlockInt8(block=10): range(20, 30),
        Qsgd(levels=1, bucket=24): range(24),
        Int8(): range(64),
        ScaledSign(): range(64),
        ScaledFp16(): range(64),
        TernGrad(dense_below=0): range(64),
    }
    for codec, places in spoiled.items():
        assert torch.isnan(through(codec, values, layout)).nonzero().view(-1).tolist() == [*places], codec


extremes = st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 1e-40, 1.17549435e-38, 1e-20, 1.0, -1.0, 1e20, 3.4028235e38, -3.4028235e38]
)


@pytest.mark.parametrize(
    "codec", [each for each in CODECS if each.name not in ("fp16", "bf16", "scaled_sign", "column_means")], ids=repr
)  # fmt: skip
@given(st.lists(st.one_of(extremes, st.floats(width=32, allow_nan=False, allow_infinity=False)), max_size=70))
@settings(deadline=None, max_examples=40)
def test_finite_numbers_stay_finite(codec: Codec, listed: list[float]) -> None:
    """Also the largest and the smallest that there are. Casts say where they overflow, and means
    overflow with their sums."""
    layout, values = Layout.single((len(listed),), torch.float32), torch.tensor(listed, dtype=torch.float32)
    assert torch.isfinite(through(codec, values, layout)).all()
    codec.encode_rest(values, layout, State(), Workspace())
    assert torch.isfinite(values).all()


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=70))
@settings(deadline=None, max_examples=40)
def test_errors_of_nearest_levels(listed: list[float]) -> None:
    layout, values = Layout.single((len(listed),), torch.float32), torch.tensor(listed)
    unit = max(map(abs, listed)) / 127
    error = (through(Int8(), values, layout).double() - values.double()).abs().max().item()
    assert error <= unit * (0.5 + 1e-4) + 127 * 2.0**-149


def test_overflow_of_half_precision_is_infinite() -> None:
    layout, values = Layout.single((3,), torch.float32), torch.tensor([65504.0, 7e4, -7e4])
    assert through(Fp16(), values, layout).tolist() == [65504.0, math.inf, -math.inf]
    assert torch.allclose(through(ScaledFp16(), values, layout), values, rtol=2.0**-11)


@pytest.mark.parametrize("codec", [Fp16(), Bf16()], ids=repr)
def test_casts_can_be_added_without_decoding(codec: Codec) -> None:
    layout = Layout.single((100,), torch.float32)
    first, second = numbers(layout, 1), numbers(layout, 2)
    total = Coder(codec, layout).encode(first)
    codec.summands(total, layout).add_(codec.summands(Coder(codec, layout).encode(second), layout)).div_(2)
    out = Coder(codec, layout).decode(total)
    assert codec.summable
    torch.testing.assert_close(out, (first + second) / 2, rtol=0.02, atol=0.01)


# Error feedback: nothing is lost


@pytest.mark.parametrize(
    "codec", [ColumnMeans(), ScaledSign(), TwoBit(threshold=0.3), Int8(), Qsgd(levels=127)], ids=repr
)
@pytest.mark.parametrize("fused", [True, False])
def test_all_that_was_sent_and_the_rest_are_the_sum_of_gradients(codec: Codec, fused: bool) -> None:
    """p = g + e; e = p - sent, per coordinate, after every step."""
    rest, sent, total = torch.zeros(MODEL.size), torch.zeros(MODEL.size, dtype=torch.float64), 0.0
    state, work, out = State(seed=1), Workspace(), torch.empty(MODEL.size)
    for step in range(30):
        gradient = numbers(MODEL, seed=step)
        rest += gradient
        encode = codec.encode_rest if fused else Codec.encode_rest.__get__(codec)
        codec.decode(encode(rest, MODEL, state, work), MODEL, out, work)
        state.steps += 1
        sent += out
        total = total + gradient.double()
        torch.testing.assert_close(sent + rest, total, rtol=0, atol=2e-5)
    assert rest.abs().max() > 0.01, "there is something to remember"


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=300))
@settings(deadline=None, max_examples=50)
def test_what_a_scaled_sign_loses(listed: list[float]) -> None:
    """‖C(p) − p‖² = ‖p‖² − ‖p‖₁²/d."""
    layout, values = Layout.single((len(listed),), torch.float32), torch.tensor(listed)
    p, decoded = values.double(), through(ScaledSign(), values, layout).double()
    lost = ((decoded - p) ** 2).sum().item()
    expected = ((p * p).sum() - p.abs().sum() ** 2 / len(p)).item()
    assert lost == pytest.approx(expected, rel=1e-5, abs=1e-6 * (p * p).sum().item() + 1e-30)


def test_signs_of_sums_of_signs_are_the_majority() -> None:
    layout = Layout.single((50,), torch.float32)
    voters = [numbers(layout, seed) for seed in range(5)]
    total = torch.stack([through(Sign(), each, layout) for each in voters]).sum(0)
    votes = torch.stack(voters).ge(0).sum(0)
    assert torch.equal(through(Sign(), total, layout), torch.where(votes >= 3, 1.0, -1.0))


# Chances


def draws_of(codec: Codec, row: Tensor, count: int) -> NDArray[np.float64]:
    """The row encoded that often, at different places and steps."""
    at_once = 2000
    layout = Layout(
        torch.float32,
        tuple(Segment(str(n), (len(row),), n * len(row), len(row)) for n in range(at_once)),
        at_once * len(row),
    )
    coder, values = Coder(codec, layout, seed=11), row.repeat(at_once)
    found = [coder.decode(coder.encode(values)).clone().view(-1, len(row)) for _ in range(count // at_once)]
    return torch.cat(found).double().numpy()


UNBIASED: list[tuple[Codec, Callable[[Floats], float]]] = [
    (Qsgd(levels=1, bucket=64), lambda v: float(np.linalg.norm(v))),
    (Qsgd(levels=5, bucket=64), lambda v: float(np.linalg.norm(v)) / 5),
    (Qsgd(levels=127, bucket=64), lambda v: float(np.linalg.norm(v)) / 127),
    (TernGrad(clip=None, dense_below=0), lambda v: float(np.abs(v).max())),
    (TernGrad(clip=math.inf, dense_below=0), lambda v: float(np.abs(v).max())),
    (Int8(stochastic=True), lambda v: float(np.abs(v).max()) / 127),
    (BlockInt8(block=64, stochastic=True), lambda v: float(np.abs(v).max()) / 127),
]


@pytest.mark.parametrize(("codec", "unit_of"), UNBIASED, ids=[repr(each[0]) for each in UNBIASED])
def test_the_expectation_is_right(codec: Codec, unit_of: Callable[[Floats], float]) -> None:
    """20,000 draws: the mean of each number within five standard errors, and its variance too."""
    assert codec.unbiased
    row = torch.randn(64, generator=torch.Generator().manual_seed(3))
    row[7] = 0.0
    draws, v, unit = draws_of(codec, row, 20_000), row.double().numpy(), unit_of(row.numpy())
    levels = np.abs(v) / unit
    chance = levels - np.floor(levels)
    variance = unit**2 * chance * (1 - chance)
    error = np.sqrt(variance / len(draws)) + 1e-6 * unit
    assert (np.abs(draws.mean(0) - v) < 5 * error).all()
    fourth = unit**4 * chance * (1 - chance) * (1 - 3 * chance * (1 - chance))
    spread = np.sqrt(np.maximum(fourth - variance**2, 0) / len(draws)) + 1e-6 * unit**2
    assert (np.abs(((draws - v) ** 2).mean(0) - variance) < 5 * spread).all()
    whole = draws / unit
    assert np.abs(whole - np.rint(whole)).max() < 1e-4, "all values are multiples of the unit"
    assert (np.abs(draws - v) < unit * (1 + 1e-4)).all(), "and next to what they stand for"


@pytest.mark.parametrize("levels", [1, 4, 64])
def test_variance_of_qsgd_is_bounded(levels: int) -> None:
    """E‖Q(v) − v‖² ≤ min(d/s², √d/s)·‖v‖²."""
    d = 512
    row = torch.randn(d, generator=torch.Generator().manual_seed(4))
    draws, v = draws_of(Qsgd(levels=levels), row, 2000), row.double().numpy()
    variance = ((draws - v) ** 2).sum(1).mean()
    bound = min(d / levels**2, math.sqrt(d) / levels) * (v * v).sum()
    assert 0 < variance <= bound


def test_terngrad_without_clipping() -> None:
    """E‖q‖² = max|v|·‖v‖₁, and only three values."""
    row = torch.randn(64, generator=torch.Generator().manual_seed(5))
    draws, v = draws_of(TernGrad(clip=None, dense_below=0), row, 20_000), row.double().numpy()
    largest = np.abs(v).max()
    assert set(np.unique(draws)) <= {-largest, 0.0, largest}
    assert (np.sign(draws) * np.sign(v) >= 0).all()
    chance = np.abs(v) / largest
    error = largest**2 * np.sqrt((chance * (1 - chance)).sum() / len(draws))
    assert abs((draws**2).sum(1).mean() - largest * np.abs(v).sum()) < 5 * error


def test_terngrad_clips_at_so_many_standard_deviations() -> None:
    layout = Layout.single((1000,), torch.float32)
    values = numbers(layout)
    values[3] = 50.0
    scale = np.float32(2.5) * values.double().numpy().std()
    out = through(TernGrad(), values, layout)
    np.testing.assert_allclose(np.unique(out.numpy()), [-scale, 0, scale], rtol=1e-5)
    assert out[3].item() == pytest.approx(scale, rel=1e-5)
    certain = values.abs() >= scale
    assert (out[certain] != 0).all()


def test_terngrad_of_equal_numbers_is_not_clipped_away() -> None:
    layout = Layout.single((300,), torch.float32)
    assert torch.equal(through(TernGrad(), torch.full((300,), -3.0), layout), torch.full((300,), -3.0))


def test_small_segments_of_terngrad_are_sent_as_they_are() -> None:
    out, values = through(TernGrad(dense_below=100), numbers(MODEL), MODEL), numbers(MODEL)
    for segment in MODEL.segments:
        same = torch.equal(segment.of(out), segment.of(values))
        assert same == (segment.size < 100), segment.name


@pytest.mark.parametrize("codec", random_ones, ids=repr)
def test_chances_come_from_seed_and_step(codec: Codec) -> None:
    values = numbers(MODEL)
    coders = [Coder(codec, MODEL, seed) for seed in (1, 1, 2)]
    first, again, other = (coder.encode(values).clone() for coder in coders)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, coders[0].encode(values)), "the next step draws anew"


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_zeros_stay_zeros(codec: Codec) -> None:
    out = through(codec, torch.zeros(MODEL.size), MODEL)
    assert not out.any() or codec.name == "sign"


@pytest.mark.parametrize("codec", [ColumnMeans(), BlockInt8(block=41)], ids=repr)
def test_cuts_between_groups_change_nothing(codec: Codec) -> None:
    """Rows are quantized alike wherever the tensor is cut; blocks, where they begin at the cut."""
    layout = Layout.single((37, 41), torch.float32)
    values = numbers(layout)
    whole = through(codec, values, layout)
    parts = [through(codec, values[cut], layout.part(cut.start, cut.stop)) for cut in layout.cuts(4)]
    assert torch.equal(torch.cat(parts), whole)


# Building


REFUSED: list[tuple[type[Codec], dict[str, object]]] = [
    *((Qsgd, {"levels": wrong}) for wrong in (0, 128, 2.5, True, "7", None)),
    *((Qsgd, {"bucket": wrong}) for wrong in (12, 0, -8, 2**70)),
    *((BlockInt8, {"block": wrong}) for wrong in (0, -8, 1.0, 2**70)),
    *((codec, {"stochastic": wrong}) for codec in (Int8, BlockInt8) for wrong in (1, "yes")),
    *((TernGrad, {"clip": wrong}) for wrong in (0.0, -1.0, math.nan, "2")),
    *((TernGrad, {"dense_below": wrong}) for wrong in (-1, 2.0)),
    *((TwoBit, {"threshold": wrong}) for wrong in (0.0, -1.0, math.inf, math.nan, 1e300, 1e-300, "1")),
]


@pytest.mark.parametrize(("codec", "arguments"), REFUSED, ids=str)
def test_what_can_not_work_is_refused(codec: Callable[..., Codec], arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="needed"):
        codec(**arguments)


def test_groups_may_be_larger_than_the_tensor() -> None:
    layout = Layout.single((10,), torch.float32)
    for codec in (BlockInt8(block=2**31), Qsgd(levels=127, bucket=2**31)):
        torch.testing.assert_close(through(codec, numbers(layout), layout), numbers(layout), rtol=0, atol=0.1)


def test_codecs_print_the_call_that_makes_them() -> None:
    assert repr(Qsgd(levels=3)) == "qsgd(levels=3, bucket=512)"
    assert repr(TernGrad(clip=None)) == "terngrad(clip=None, dense_below=256)"
    assert Int8(stochastic=True).spec() == ["int8", {"stochastic": True}]
    assert Sign() == Sign() and hash(Qsgd(levels=3)) == hash(Qsgd(levels=3)) != hash(Qsgd(levels=4))


def test_whether_they_are_unbiased_depends_on_arguments() -> None:
    unbiased = [codec for codec in CODECS if codec.unbiased]
    assert unbiased == [codec for codec in random_ones if codec != TernGrad()]
