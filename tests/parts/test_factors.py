"""Sufficient factors against plain sums of outer products, their bytes, and letters that don't fit."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fast.errors import WireError
from fast.parts.factors import Factors, Place, pack, packed_bytes, places, rebuild, remaining, unpack
from fast.view import Layout

MODEL = Layout.of(
    [("embed.weight", (9, 12)), ("fc.weight", (8, 10)), ("fc.bias", (8,)), ("out.weight", (7, 8))],
    torch.float64,
)
FC = Place(weight=1, bias=2, outputs=8, inputs=10)


def factors(rows: int, place: Place = FC, dtype: torch.dtype = torch.float64, seed: int = 0) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    inputs, errors = (
        torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype)
        for width in (place.inputs, place.outputs)
    )
    return Factors(place, inputs, errors)


def outer_sums(terms: list[tuple[float, Factors]]) -> tuple[Tensor, Tensor]:
    """sum_i w_i sum_n delta_in x_in^T, number by number as it is defined, and the bias."""
    place = terms[0][1].place
    weight = torch.zeros(place.outputs, place.inputs, dtype=torch.float64)
    bias = torch.zeros(place.outputs, dtype=torch.float64)
    for share, each in terms:
        for x, delta in zip(each.inputs.double(), each.errors.double(), strict=True):
            weight += share * torch.outer(delta, x)
            bias += share * delta
    return weight, bias


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))


# Where, and when it pays


def test_places_are_the_matrices_of_the_layout_with_their_biases() -> None:
    layout = Layout.of(
        [
            ("conv.weight", (8, 4, 3, 3)),
            ("fc.weight", (8, 10)),
            ("fc.bias", (8,)),
            ("norm.weight", (6, 6)),
            ("norm.bias", (6, 6)),
            ("weight", (5, 6)),
            ("bias", (5,)),
            ("table.weight", (50, 60)),
            ("other", (50, 60)),
            ("thin.weight", (1, 30)),
            ("empty.weight", (0, 30)),
        ],
        torch.float32,
    )
    assert places(layout) == (
        Place(1, 2, 8, 10),
        Place(3, None, 6, 6),  # a bias of another shape is none
        Place(5, 6, 5, 6),
        Place(7, None, 50, 60),
    )
    assert places(layout, workers=10) == (Place(7, None, 50, 60),)


def test_for_two_workers_it_pays_where_the_factors_are_smaller_than_the_gradient() -> None:
    place = Place(0, None, outputs=300, inputs=600)
    assert place.pays(199) and 199 * 900 < 300 * 600
    assert not place.pays(200) and 200 * 900 == 300 * 600


@given(
    rows=st.integers(0, 200),
    outputs=st.integers(1, 200),
    inputs=st.integers(1, 200),
    workers=st.integers(2, 20),
)
def test_it_pays_exactly_where_a_worker_sends_fewer_bytes(
    rows: int, outputs: int, inputs: int, workers: int
) -> None:
    by_letters = (workers - 1) * rows * (inputs + outputs)
    by_a_mean = Fraction(2 * (workers - 1), workers) * inputs * outputs
    assert Place(0, None, outputs, inputs).pays(rows, workers) == (by_letters < by_a_mean)


# Rebuilding


@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    shape=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    biased=st.booleans(),
)
def test_the_rebuilt_gradient_is_the_dense_one(rows: list[int], shape: tuple[int, int], biased: bool) -> None:
    named = [("first", (3,)), ("fc.weight", shape), *([("fc.bias", shape[:1])] * biased), ("last", (5,))]
    layout = Layout.of(named, torch.float64)
    place = Place(1, 2 if biased else None, *shape)
    terms = [(0.25 + i, factors(count, place, seed=i)) for i, count in enumerate(rows)]
    flat = torch.full((layout.size,), float("nan"), dtype=torch.float64)
    rebuild(terms, layout, flat)
    weight, bias = outer_sums(terms)
    assert close(layout.segments[1].of(flat), weight)
    if biased:
        assert close(layout.segments[2].of(flat), bias)
    stop = layout.segments[-1].start
    written = flat[8:stop]
    assert int((written != 0).sum()) <= weight.numel() + bias.numel() * biased, "the padding is zero"
    assert not written.isnan().any()
    assert flat[:8].isnan().all() and flat[stop:].isnan().all(), "the neighbours are left alone"


def test_it_is_what_autograd_computes_from_the_batches_of_all() -> None:
    layer = torch.nn.Linear(10, 8, dtype=torch.float64)
    x = torch.randn(6, 10, dtype=torch.float64)
    y = layer(x)
    y.retain_grad()
    (y.sin().sum() / 6).backward()
    assert y.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
    delta = y.grad * 6  # of the sum, of which each of two workers takes the mean over its own samples
    mine, yours = Factors(FC, x[:4], delta[:4] / 4), Factors(FC, x[4:], delta[4:] / 2)
    flat = torch.zeros(MODEL.size, dtype=torch.float64)
    rebuild([(4 / 6, mine), (2 / 6, yours)], MODEL, flat)
    assert close(MODEL.segments[1].of(flat), layer.weight.grad)
    assert close(MODEL.segments[2].of(flat), layer.bias.grad)


@given(shift=st.integers(1, 20), rows=st.integers(1, 9))
def test_its_bits_do_not_depend_on_where_the_factors_lie(shift: int, rows: int) -> None:
    place = Place(0, 1, outputs=33, inputs=47)
    layout = Layout.of([("fc.weight", (33, 47)), ("fc.bias", (33,))], torch.float32)
    here = [factors(rows, place, torch.float32, seed) for seed in range(3)]
    flats = []
    for terms in (here, [moved(each, shift) for each in here]):
        flat = torch.empty(layout.size)
        rebuild([(0.3, each) for each in terms], layout, flat)
        flats.append(flat)
    assert torch.equal(*flats)


def moved(each: Factors, shift: int) -> Factors:
    """The same numbers at an odd place in memory."""
    memory = torch.zeros(each.inputs.numel() + each.errors.numel() + shift)[shift:]
    inputs, errors = memory.split([each.inputs.numel(), each.errors.numel()])
    return Factors(
        each.place,
        inputs.view_as(each.inputs).copy_(each.inputs),
        errors.view_as(each.errors).copy_(each.errors),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_numbers_are_rounded_once(dtype: torch.dtype) -> None:
    layout = Layout.of([("fc.weight", (8, 10)), ("fc.bias", (8,))], dtype)
    terms = [(1 / 3, factors(5, Place(0, 1, 8, 10), dtype, seed)) for seed in range(3)]
    flat = torch.empty(layout.size, dtype=dtype)
    rebuild(terms, layout, flat)
    weight, bias = outer_sums(terms)
    ulp = torch.finfo(dtype).eps
    for segment, expected in zip(layout.segments, (weight, bias), strict=True):
        error = (segment.of(flat).double() - expected).abs()
        assert bool((error <= 0.51 * ulp * expected.abs() + 1e-6).all())


def test_factors_are_added_to_a_gradient_with_a_weight() -> None:
    flat = torch.randn(MODEL.size, dtype=torch.float64)
    before = flat.clone()
    for weight, seed in ((1.0, 0), (-0.5, 1)):
        factors(4, seed=seed).add_to(flat, MODEL, weight)
    weight, bias = outer_sums([(1.0, factors(4, seed=0)), (-0.5, factors(4, seed=1))])
    assert close(MODEL.segments[1].of(flat), MODEL.segments[1].of(before) + weight)
    assert close(MODEL.segments[2].of(flat), MODEL.segments[2].of(before) + bias)
    untouched = torch.ones(MODEL.size, dtype=torch.bool)
    for number in (1, 2):
        MODEL.segments[number].of(untouched).fill_(False)
    assert torch.equal(flat[untouched], before[untouched])


# The rest


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    chosen=st.sets(st.integers(0, 7)),
    data=st.data(),
)
def test_the_rest_is_everything_else_in_as_few_slices_as_possible(
    sizes: list[int], chosen: set[int], data: st.DataObject
) -> None:
    layout = Layout.of([(str(n), (size,)) for n, size in enumerate(sizes)], torch.float32)
    taken = sorted(chosen & set(range(len(sizes))))
    pairs = [Place(n, None, 1, 1) for n in taken]
    if len(taken) > 1 and data.draw(st.booleans()):
        pairs = [Place(taken[0], taken[1], 1, 1), *pairs[2:]]
    slices = remaining(layout, pairs)
    covered = torch.zeros(layout.size, dtype=torch.bool)
    for part in slices:
        assert part.start < part.stop and not covered[part].any()
        covered[part] = True
    for n, segment in enumerate(layout.segments):
        inside = segment.of(covered)
        assert inside.all() if n not in taken else not inside.any()
    assert all(a.stop < b.start for a, b in pairwise(slices))


# Letters

PLACES = (FC, Place(3, None, 7, 8), Place(0, None, 9, 12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [(3, 5, None), (None, 0, 1), (0, 0, 0), (None, None, None), (1, 1, 1)])
@pytest.mark.parametrize("shift", [0, 1, 8])
def test_what_is_packed_is_unpacked(dtype: torch.dtype, rows: tuple[int | None, ...], shift: int) -> None:
    offers = [
        None if count is None else factors(count, place, dtype)
        for count, place in zip(rows, PLACES, strict=True)
    ]
    packed = pack(offers)
    values = sum(n * (p.inputs + p.outputs) for n, p in zip(rows, PLACES, strict=True) if n is not None)
    assert packed.numel() == packed_bytes(offers) == values * dtype.itemsize + 4 * 3
    arrived = torch.cat([torch.zeros(shift, dtype=torch.uint8), packed])[shift:]
    for sent, got in zip(offers, unpack(arrived, PLACES, dtype), strict=True):
        if sent is None or got is None:
            assert sent is got
        else:
            assert torch.equal(sent.inputs, got.inputs) and torch.equal(sent.errors, got.errors)
            assert got.place == sent.place and got.rows == sent.rows and got.nbytes == sent.nbytes


def test_factors_of_any_strides_can_be_packed() -> None:
    place = Place(0, None, outputs=6, inputs=4)
    inputs, errors = torch.arange(12.0).view(4, 3).t(), torch.tensor(0.5).expand(3, 6)
    (got,) = unpack(pack([Factors(place, inputs, errors)]), [place], torch.float32)
    assert got is not None
    assert torch.equal(got.inputs, inputs) and torch.equal(got.errors, errors)


def test_the_bytes_are_those_of_the_formula() -> None:
    """N (Cin + Cout) 4 bytes: 32 samples of a layer from 4096 to 1000, instead of 4096 * 1000 * 4."""
    place = Place(0, None, outputs=1000, inputs=4096)
    each = factors(32, place, torch.float32)
    assert each.nbytes == 32 * (4096 + 1000) * 4 < 4096 * 1000 * 4
    assert pack([each]).numel() == each.nbytes + 4


@given(data=st.binary(max_size=400), dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]))
def test_arbitrary_bytes_are_refused_or_fit(data: bytes, dtype: torch.dtype) -> None:
    packed = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)
    try:
        offers = unpack(packed, PLACES, dtype)
    except WireError:
        return
    assert packed_bytes(offers) == packed.numel()


@pytest.mark.parametrize("rows", [-2, -(2**31), 4, 2**31 - 1])
def test_a_table_that_lies_is_refused(rows: int) -> None:
    packed = pack([factors(3), None, None])
    packed[-12:-8] = torch.tensor([rows], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(WireError, match="rows don't fit"):
        unpack(packed, PLACES, torch.float64)


@pytest.mark.parametrize(
    "packed", [torch.zeros(11, dtype=torch.uint8), torch.zeros(40), torch.zeros(4, 40, dtype=torch.uint8)]
)
def test_what_is_no_letter_of_factors_is_refused(packed: Tensor) -> None:
    with pytest.raises(WireError, match="factors of 3 layers"):
        unpack(packed, PLACES, torch.float32)
