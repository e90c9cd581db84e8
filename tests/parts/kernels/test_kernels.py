"""Kernels: compiled loops and torch operations give the same bits, and both what they promise."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fast.parts.kernels import hashing, levels, measuring, signing
from fast.parts.kernels.choosing import Kernel
from fast.parts.kernels.hashing import hashes, keys_of, uniform_of
from fast.parts.kernels.levels import Grid, decode_levels, encode_crossings, encode_levels
from fast.parts.kernels.measuring import (
    measure_deviations,
    measure_largest,
    measure_magnitudes,
    measure_norms,
    measure_sides,
)
from fast.parts.kernels.packing import pack, signed, unpack
from fast.parts.kernels.signing import decode_signs, encode_signs, subtract_sides
from fast.parts.kernels.spans import Span, Spans, by_block, by_row, by_segment, gaps, small_segments
from fast.parts.kernels.summing import halved
from fast.view import Layout

KERNELS = [
    each for module in (hashing, levels, measuring, signing) for each in vars(module).values()
    if isinstance(each, Kernel)
]  # fmt: skip
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1e-38, 3.4028235e38, -3.4028235e38, 1.0]

shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 40)),
        st.tuples(st.integers(1, 6), st.integers(0, 70)),
        st.sampled_from([(), (1023,), (1024,), (1025,), (2, 1030), (3, 2, 9), (3100,)]),
    ),
    max_size=4,
)


Grouping = Callable[[Layout], Spans]
AT_BYTES: tuple[Grouping, ...] = (by_segment, partial(by_block, block=8), partial(by_block, block=512))
"""Groupings in which every group starts at a whole byte, however few bits a code has."""


@st.composite
def tensors(draw: st.DrawFn, groupings: tuple[Grouping, ...] = (*AT_BYTES, by_row)) -> tuple[Tensor, Spans]:
    """Numbers of any size with a few special ones, and how they are grouped."""
    layout = Layout.of([(str(n), shape) for n, shape in enumerate(draw(shapes))], torch.float32)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** draw(st.integers(-44, 37))
    values = (generator.standard_normal(layout.size) * scale).astype(np.float32)
    for place, special in draw(
        st.lists(st.tuples(st.integers(0, 4000), st.sampled_from(SPECIAL)), max_size=3)
    ):
        if place < len(values):
            values[place] = special
    grouping = draw(st.sampled_from(groupings))
    return torch.tensor(values), grouping(layout)


def same(first: Tensor, second: Tensor) -> bool:
    """Bit for bit."""
    return first.numpy().tobytes() == second.numpy().tobytes()


def both(kernel: Kernel[..., object], run: Callable[[Callable[..., object]], list[Tensor]]) -> list[Tensor]:
    """What both versions give, which must be the same."""
    results, expected = run(kernel.compiled), run(kernel.reference)
    assert all(map(same, results, expected)), kernel
    return results


def garbage(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((count * dtype.itemsize,), 0xA5, dtype=torch.uint8).view(dtype)


checked = settings(deadline=None, max_examples=40)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_both_versions_take_the_same_arguments(kernel: Kernel[..., object]) -> None:
    assert inspect.signature(kernel.reference) == inspect.signature(kernel.compiled)


# Equal bits


@pytest.mark.parametrize(
    "kernel", [measure_largest, measure_norms, measure_magnitudes], ids=lambda k: k.__name__
)
@checked
@given(tensors())
def test_measures_are_equal(
    kernel: Kernel[[Tensor, Spans, Tensor], None], case: tuple[Tensor, Spans]
) -> None:
    values, spans = case

    def run(work: Callable[..., object]) -> list[Tensor]:
        out = garbage(spans.groups)
        work(values, spans, out)
        return [out]

    both(kernel, run)


@checked
@given(tensors())
def test_deviations_are_equal(case: tuple[Tensor, Spans]) -> None:
    """They are never sent, so that the bits of NaN don't matter."""
    values, spans = case
    compiled, reference = garbage(spans.groups), garbage(spans.groups)
    measure_deviations.compiled(values, spans, compiled)
    measure_deviations.reference(values, spans, reference)
    torch.testing.assert_close(compiled, reference, rtol=0, atol=0, equal_nan=True)


@checked
@given(tensors())
def test_sides_and_signs_are_equal(case: tuple[Tensor, Spans]) -> None:
    values, spans = case

    def measured(work: Callable[..., object]) -> list[Tensor]:
        low, high = garbage(spans.groups), garbage(spans.groups)
        work(values, spans, low, high)
        return [low, high]

    def encoded(work: Callable[..., object]) -> list[Tensor]:
        bits = garbage(spans.nbytes(1), torch.uint8)
        work(values, spans, bits)
        return [bits]

    def decoded(work: Callable[..., object]) -> list[Tensor]:
        out = garbage(values.numel())
        work(bits, spans, low, high, out)
        return [out]

    def subtracted(work: Callable[..., object]) -> list[Tensor]:
        rest = values.clone()
        work(rest, spans, low, high)
        return [rest]

    low, high = both(measure_sides, measured)
    (bits,) = both(encode_signs, encoded)
    both(decode_signs, decoded)
    (rest,) = both(subtract_sides, subtracted)
    assert all(torch.isfinite(span.of(rest)).all() for span in spans)


@checked
@given(tensors(AT_BYTES), st.sampled_from([(1, 2), (5, 4), (7, 4), (127, 8)]), st.booleans(), st.booleans())
def test_levels_are_equal(
    case: tuple[Tensor, Spans], grid: tuple[int, int], random: bool, rest: bool
) -> None:
    (values, spans), (count, bits) = case, grid
    units = garbage(spans.groups)
    measure_largest.reference(values, spans, units)
    units.div_(count)

    def encoded(work: Callable[..., object]) -> list[Tensor]:
        left, codes = values.clone(), garbage(spans.nbytes(bits), torch.uint8)
        work(left, spans, units, Grid(count, bits, (77, 2**32 - 5) if random else None), codes, rest)
        return [codes, left]

    def decoded(work: Callable[..., object]) -> list[Tensor]:
        out = garbage(values.numel())
        work(codes, spans, units, bits, out)
        return [out]

    codes, left = both(encode_levels, encoded)
    both(decode_levels, decoded)
    assert rest or same(left, values)


@checked
@given(tensors(), st.sampled_from([0.5, 1e-30, 3.7, 1e38]), st.booleans())
def test_crossings_are_equal(case: tuple[Tensor, Spans], threshold: float, rest: bool) -> None:
    values, spans = case

    def encoded(work: Callable[..., object]) -> list[Tensor]:
        left, codes = values.clone(), garbage(spans.nbytes(2), torch.uint8)
        work(left, spans, threshold, codes, rest)
        return [codes, left]

    both(encode_crossings, encoded)


@pytest.mark.parametrize("start", [0, 5, 2**32 - 3])
def test_hashes_are_equal(start: int) -> None:
    def run(work: Callable[..., object]) -> list[Tensor]:
        out = torch.empty(1000, dtype=torch.int64)
        work(out, keys_of(3, 9), start)
        return [out]

    both(hashes, run)


# Sums


def plain_sum(numbers: list[np.float32]) -> np.float32:
    """The definition: blocks of 1024, the upper half onto the lower half."""
    if len(numbers) > 1024:
        return plain_sum([plain_sum(numbers[at : at + 1024]) for at in range(0, len(numbers), 1024)])
    width = 1
    while width < len(numbers):
        width *= 2
    numbers = numbers + [np.float32(0)] * (width - len(numbers))
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [a + b for a, b in zip(numbers[:half], numbers[half:], strict=True)]
    return numbers[0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100, 1023, 1024, 1025, 2048, 5000])
def test_a_sum_is_what_halving_says(size: int) -> None:
    row = np.abs(np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    values, spans, mean = torch.from_numpy(row), Spans([Span(0, size, size)]), torch.empty(1)
    expected = plain_sum(list(row))
    measure_magnitudes(values, spans, mean)
    assert halved(values[None]).item() == expected
    assert mean.item() == expected / np.float32(size)


def test_sums_of_many_blocks_of_blocks() -> None:
    """More than 1024 blocks are summed in three rounds; the error stays that of a few additions."""
    values = torch.rand(1024 * 1024 + 3000, generator=torch.Generator().manual_seed(1))
    spans, mean, exact = Spans([Span(0, len(values), len(values))]), torch.empty(1), values.double().mean()
    measure_magnitudes(values, spans, mean)
    assert mean.item() == (halved(values[None]) / torch.tensor(float(len(values)))).item()
    assert abs(mean.item() - exact.item()) <= 22 * 2.0**-24 * exact.item()


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=3000), st.integers(0, 2000))
@settings(deadline=None, max_examples=25)
def test_zeros_at_the_end_change_no_sum(numbers: list[float], zeros: int) -> None:
    row = torch.tensor([numbers])
    padded = torch.nn.functional.pad(row, (0, zeros))
    assert torch.equal(halved(row), halved(padded))


# Measures against numpy


def random_values(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [1, 7, 64, 1000, 4000])
def test_measures_of_groups(width: int) -> None:
    values, spans = random_values(4001), Spans([Span(0, 4001, width)])
    groups = [values.double().numpy()[at : at + width] for at in range(0, 4001, width)]
    sides = [[g[g < 0], g[g >= 0]] for g in groups]
    expected = {
        measure_largest: [np.abs(g).max() for g in groups],
        measure_norms: [np.sqrt((g * g).sum()) for g in groups],
        measure_deviations: [g.std() for g in groups],
        measure_magnitudes: [np.abs(g).mean() for g in groups],
    }
    for kernel, numbers in expected.items():
        out = torch.empty(len(groups))
        kernel(values, spans, out)
        np.testing.assert_allclose(out.numpy(), numbers, rtol=2e-6)
    low, high = torch.empty(len(groups)), torch.empty(len(groups))
    measure_sides(values, spans, low, high)
    for side, out in enumerate((low, high)):
        means = [each[side].mean() if len(each[side]) else 0.0 for each in sides]
        np.testing.assert_allclose(out.numpy(), means, rtol=2e-6)


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-25, 1.0, 1e25, 1e37])
def test_norms_of_numbers_whose_squares_have_no_place_in_float32(scale: float) -> None:
    values = (random_values(64).clamp(-3, 3) * scale).float()
    out = torch.empty(1)
    measure_norms(values, Spans([Span(0, 64, 64)]), out)
    assert out.item() == pytest.approx(values.double().norm().item(), rel=1e-6, abs=2e-45)


def test_a_norm_beyond_the_largest_number_is_the_largest_number() -> None:
    out = torch.empty(1)
    measure_norms(torch.full((64,), 3e38), Spans([Span(0, 64, 64)]), out)
    assert out.item() == torch.finfo(torch.float32).max


# Rounding


def test_nearest_levels_are_those_of_numpy() -> None:
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 126.5, 200.0, -1e30, -0.0])
    codes, out = torch.empty(10, dtype=torch.uint8), torch.empty(10)
    spans, units = Spans([Span(0, 10, 10)]), torch.ones(1)
    encode_levels(values, spans, units, Grid(127, 8), codes)
    decode_levels(codes, spans, units, 8, out)
    assert out.tolist() == np.rint(values.numpy()).clip(-127, 127).tolist()


@pytest.mark.parametrize(("bits", "width"), [(2, 8), (4, 8), (8, 3), (2, 1024), (4, 3000)])
def test_levels_come_back(bits: int, width: int) -> None:
    highest = (1 << (bits - 1)) - 1
    numbers = torch.arange(3001) % (2 * highest + 1) - highest
    spans = Spans([Span(3, 3001, width)])
    units = torch.arange(1.0, spans.groups + 1)
    scale = units.repeat_interleave(width)[:3001]
    values, out = torch.nn.functional.pad(numbers * scale, (3, 2)), torch.full((3006,), 9.0)
    codes = torch.empty(spans.nbytes(bits), dtype=torch.uint8)
    encode_levels(values, spans, units, Grid(highest, bits), codes)
    decode_levels(codes, spans, units, bits, out)
    assert torch.equal(out[3:3004], values[3:3004])
    assert out[:3].tolist() + out[3004:].tolist() == [9.0] * 5, "what is outside of spans is not touched"


def test_chances_do_not_depend_on_how_numbers_are_grouped() -> None:
    """A chance belongs to a place in the tensor."""
    values, seen = torch.rand(3000, generator=torch.Generator().manual_seed(2)), []
    for width in (1, 100, 3000):
        spans, codes = Spans([Span(0, 3000, width)]), torch.empty(3000, dtype=torch.uint8)
        encode_levels(values, spans, torch.ones(spans.groups), Grid(1, 8, (5, 6)), codes)
        seen.append(codes)
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])
    expected = uniform_of(torch.arange(3000), (5, 6)) < values
    assert torch.equal(seen[0] > 0, expected)


def test_a_number_is_rounded_up_where_its_chance_is_below_it() -> None:
    """Numbers that are equal to their own chances stay below; the next larger ones don't."""
    chances = uniform_of(torch.arange(5000), (5, 6))
    spans, codes = Spans([Span(0, 5000, 5000)]), torch.empty(5000, dtype=torch.uint8)
    for values, expected in ((chances, 0), (torch.nextafter(chances, torch.tensor(2.0)), 1)):
        encode_levels(values, spans, torch.ones(1), Grid(1, 8, (5, 6)), codes)
        assert (codes == expected).all()


def test_many_numbers_are_divided_and_not_multiplied() -> None:
    """Only a division is rounded as it should be; the difference shows in few of many numbers."""
    values, codes = random_values(1_000_000), torch.empty(1_000_000, dtype=torch.uint8)
    unit = values.abs().max().div(127)
    encode_levels(values, Spans([Span(0, len(values), len(values))]), unit[None], Grid(127, 8), codes)
    assert np.array_equal(codes.numpy().view(np.int8), np.rint(values.numpy() / unit.numpy()))


# Packing


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 100), st.integers(0, 2**32))
def test_codes_come_back(bits: int, count: int, seed: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 1 << bits, count, dtype=np.uint8))
    packed = pack(codes, bits)
    assert packed.numel() == math.ceil(count * bits / 8)
    assert torch.equal(unpack(packed, bits, count), codes)
    as_one = sum(int(code) << (bits * place) for place, code in enumerate(codes))
    assert int.from_bytes(packed.numpy().tobytes(), "little") == as_one


def test_signed_codes() -> None:
    assert signed(torch.arange(4, dtype=torch.uint8), 2).tolist() == [0, 1, -2, -1]
    assert signed(torch.tensor([7, 8, 15], dtype=torch.uint8), 4).tolist() == [7, -8, -1]
    assert signed(torch.tensor([127, 128, 255], dtype=torch.uint8), 8).tolist() == [127, -128, -1]


@given(st.integers(1, 300), st.integers(0, 2**32))
@settings(deadline=None)
def test_bits_are_those_of_numpy(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    bits = torch.empty((count + 7) // 8, dtype=torch.uint8)
    encode_signs(torch.from_numpy(values), Spans([Span(0, count, count)]), bits)
    assert bits.tolist() == np.packbits(values >= 0, bitorder="little").tolist()


# Hashes


def drawn(seed: int, step: int, count: int = 200_000) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    out = torch.empty(count, dtype=torch.int64)
    hashes(out, keys_of(seed, step))
    return out.numpy() / 2.0**32


def test_hashes_are_uniform() -> None:
    """Counts of 256 boxes, of the upper and of the lower bits, by the chi-square test."""
    count = 1 << 20
    for seed, step in ((0, 0), (0, 1), (1, 0), (12345, 678)):
        numbers = drawn(seed, step, count)
        for part in (numbers, numbers * 2**24 % 1):
            boxes = np.bincount((part * 256).astype(int), minlength=256)
            statistic = ((boxes - count / 256) ** 2).sum() / (count / 256)
            assert abs(statistic - 255) < 5 * math.sqrt(2 * 255)


def test_places_steps_and_seeds_are_unrelated() -> None:
    base = drawn(3, 4) - 0.5
    others = {
        "step": drawn(3, 5),
        "seed": drawn(4, 4),
        "next": np.roll(drawn(3, 4), 1),
        "far": np.roll(base, 256),
    }
    for name, other in others.items():
        correlation = np.corrcoef(base, other)[0, 1]
        assert abs(correlation) < 5 / math.sqrt(len(base)), name


def test_steps_are_not_shifted_copies() -> None:
    """No run of three hashes of one step appears anywhere in another."""
    first, second = (drawn(0, step, 100_000) for step in (0, 1))
    runs = [set(zip(x, x[1:], x[2:], strict=False)) for x in (first, second)]
    assert not runs[0] & runs[1]


def test_hashes_continue_where_they_are_cut() -> None:
    whole, parts = torch.empty(1000, dtype=torch.int64), torch.empty(1000, dtype=torch.int64)
    hashes(whole, (1, 2))
    hashes(parts[:300], (1, 2))
    hashes(parts[300:], (1, 2), 300)
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("seed", [0, -1, 2**70, -(2**65) * 31])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert all(0 <= key < 2**32 for key in keys_of(seed, 2**40))
    assert keys_of(seed, 1) != keys_of(seed, 2) != keys_of(seed + 1, 2)


# Spans


def test_spans_of_a_layout() -> None:
    layout = Layout.of([("w", (2, 3, 5)), ("b", (7,)), ("s", ()), ("e", (0,))], torch.float32)
    assert [tuple(span) for span in by_segment(layout)] == [(0, 30, 30), (32, 7, 7), (48, 1, 1), (64, 0, 1)]
    assert [tuple(span) for span in by_row(layout)] == [(0, 30, 15), (32, 7, 7), (48, 1, 1), (64, 0, 1)]
    assert [tuple(span) for span in by_block(layout, 10)] == [(0, 64, 10)]
    assert (by_row(layout).groups, by_block(layout, 10).groups, by_row(layout).size) == (4, 7, 38)
    assert by_row(layout).nbytes(1) == 4 + 1 + 1
    assert [span.start for span in by_segment(layout, 7)] == [0, 32]
    assert [span.start for span in small_segments(layout, 7)] == [48, 64]
    assert gaps(layout) == (slice(30, 32), slice(39, 48), slice(49, 64))
