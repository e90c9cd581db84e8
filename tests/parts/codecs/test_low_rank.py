"""Thin factors: the power iteration, the two rounds, and matrices that are no pleasure."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Generator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.parts.codecs import Clip, Coder, ErrorFeedback, Factored, chain, power_sgd
from fast.parts.codecs.base import Workspace
from fast.parts.codecs.orthonormal import orthonormalise
from fast.view import Layout

MODEL = (("weight", (12, 9)), ("bias", (9,)), ("conv", (8, 3, 2, 2)), ("tiny", (2, 3)), ("scale", ()))


def model(dtype: torch.dtype = torch.float64) -> Layout:
    return Layout.of(MODEL, dtype)


def values_of(layout: Layout, seed: int = 0) -> Tensor:
    """Normal, with 0 in the padding."""
    draw, flat = np.random.default_rng(seed), torch.zeros(layout.size, dtype=layout.dtype)
    for segment in layout.segments:
        flat[segment.start : segment.stop] = torch.from_numpy(draw.normal(size=segment.size)).to(layout.dtype)
    return flat


# Several workers, in step


class Asking:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __await__(self) -> Generator[Tensor, Tensor, Tensor]:
        return (yield self.tensor.clone())


async def mean(tensor: Tensor) -> Tensor:
    return await Asking(tensor)


def together(programs: list[Coroutine[Any, Any, None]]) -> list[int]:
    """Run all of them, and give each the mean of what they ask for; how many numbers each round had."""
    rounds, answer = [], None
    while True:
        asked = []
        for program in programs:
            with contextlib.suppress(StopIteration):
                asked.append(program.send(answer))
        if not asked:
            return rounds
        assert len(asked) == len(programs)
        rounds.append(asked[0].numel())
        answer = sum(each.double() for each in asked).div(len(asked)).to(asked[0].dtype)  # type: ignore[union-attr]


def mean_in_rounds(coders: list[Coder], values: list[Tensor]) -> tuple[list[Tensor], list[int]]:
    outs = [torch.full((coder.layout.size,), 7, dtype=coder.layout.dtype) for coder in coders]
    rounds = together(
        [
            coder.codec.mean_rounds(each, coder.layout, coder.state, coder.work, mean, out)  # type: ignore[attr-defined]
            for coder, each, out in zip(coders, values, outs, strict=True)
        ]
    )
    return outs, rounds


# At once


def test_against_plain_numpy() -> None:
    """P = orth(M Q), Q = Mᵀ P, with the Q of the time before."""
    layout = Layout.single((12, 9), torch.float64)
    coder = Coder(Factored(2), layout)
    q = coder.state.tensors["q"].view(2, 9).T.numpy().copy()
    for seed in range(4):
        matrix = values_of(layout, seed).view(12, 9).numpy()
        p, _ = np.linalg.qr(matrix @ q)
        q = matrix.T @ p
        found = coder.decode(coder.encode(torch.from_numpy(matrix)))
        assert found.view(12, 9).numpy() == pytest.approx(p @ q.T, abs=1e-12)


@pytest.mark.parametrize("r", [1, 2, 4])
def test_the_same_matrix_again_and_again_gives_its_truncated_svd(r: int) -> None:
    draw = np.random.default_rng(5)
    left, _ = np.linalg.qr(draw.normal(size=(20, 12)))
    right, _ = np.linalg.qr(draw.normal(size=(12, 12)))
    sizes = 3.0 ** -np.arange(12)
    matrix = torch.from_numpy(left * sizes @ right.T)
    coder = Coder(Factored(r), Layout.single((20, 12), torch.float64))
    for _ in range(20):
        packed = coder.encode(matrix)
    expected = left[:, :r] * sizes[:r] @ right[:, :r].T
    assert coder.decode(packed).view(20, 12).numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (4, 4), (2, 2, 3)])
def test_as_many_columns_as_the_matrix_has_lose_nothing(shape: tuple[int, ...]) -> None:
    layout = Layout.single(shape, torch.float32)
    for r in range(min(layout.segments[0].matrix), 8):
        coder, values = Coder(Factored(r), layout), values_of(layout)
        assert torch.equal(coder.decode(coder.encode(values)), values)


def test_a_matrix_of_few_dimensions_is_found_at_once() -> None:
    draw = np.random.default_rng(1)
    matrix = torch.from_numpy(draw.normal(size=(30, 2)) @ draw.normal(size=(2, 40)))
    coder = Coder(Factored(2), Layout.single((30, 40), torch.float64))
    assert torch.allclose(coder.decode(coder.encode(matrix)).view(30, 40), matrix, atol=1e-12)
    more = Coder(Factored(5), Layout.single((30, 40), torch.float64))
    assert torch.allclose(more.decode(more.encode(matrix)).view(30, 40), matrix, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bytes(dtype: torch.dtype) -> None:
    """12 x 9 and 8 x 12 as factors; a vector, a scalar and 2 x 3 whole."""
    layout = model(dtype)
    codec = Factored(2)
    coder, values = Coder(codec, layout), values_of(layout)
    before = values.clone()
    packed = coder.encode(values)
    assert (
        packed.numel() == codec.nbytes(layout) == dtype.itemsize * (2 * (12 + 9) + 2 * (8 + 12) + 9 + 6 + 1)
    )
    assert Factored(1).nbytes(Layout.single((100, 50), torch.float32)) == 4 * (100 + 50)
    assert torch.equal(values, before)
    found = coder.decode(packed, torch.full((layout.size,), 3, dtype=dtype))
    inside = torch.zeros(layout.size, dtype=torch.bool)
    for segment in layout.segments:
        inside[segment.start : segment.stop] = True
        if segment.name in ("bias", "tiny", "scale"):
            assert torch.equal(segment.of(found), segment.of(values))
    assert (found[~inside] == 0).all()
    for segment in (layout.segments[0], layout.segments[2]):
        matrix = segment.of(found).double().reshape(segment.matrix)
        third = torch.linalg.svdvals(matrix)[2]
        assert third < 10 * torch.finfo(dtype).eps * matrix.norm()


def test_all_workers_begin_with_the_same() -> None:
    first, second = (Coder(Factored(3), model(), seed).state.tensors["q"] for seed in (1, 2))
    assert torch.equal(first, second)
    q = first[: 3 * 9].view(3, 9)
    assert torch.allclose(q @ q.T, torch.eye(3, dtype=torch.float64), atol=1e-12)


# In rounds


def test_the_result_depends_on_the_mean_matrix_only() -> None:
    layout = model()
    alone = Coder(Factored(2), layout)
    workers = [Coder(Factored(2), layout) for _ in range(4)]
    for step in range(3):
        each = [torch.round(values_of(layout, 10 * step + i) * 64) for i in range(4)]
        outs, rounds = mean_in_rounds(workers, each)
        middle = torch.stack(each).mean(0)
        expected = mean_in_rounds([alone], [middle])[0][0]
        assert all(torch.equal(out, outs[0]) for out in outs)
        assert torch.allclose(outs[0], expected, rtol=1e-11, atol=1e-11)
        assert rounds == [9 + 6 + 1 + 2 * (12 + 8), 2 * (9 + 12)]
        for worker in workers:
            assert torch.equal(worker.state.tensors["q"], workers[0].state.tensors["q"])


def test_rounds_of_one_worker_are_its_bytes() -> None:
    layout, values = model(torch.float32), values_of(model(torch.float32))
    at_once, in_rounds = Coder(Factored(2), layout), Coder(Factored(2), layout)
    out = mean_in_rounds([in_rounds], [values])[0][0]
    assert torch.equal(out, at_once.decode(at_once.encode(values)))


def test_error_feedback_in_rounds_against_plain_numpy() -> None:
    """e_i = M_i − Ĝ, with the decoded mean Ĝ; dense parameters leave nothing."""
    layout, (n, m), r, workers = Layout.of([("w", (12, 9)), ("b", (7,))], torch.float64), (12, 9), 2, 3
    coders = [Coder(power_sgd(r), layout) for _ in range(workers)]
    q = coders[0].state.inner[0].tensors["q"].view(r, m).T.numpy().copy()
    errors, bias = [np.zeros((n, m)) for _ in range(workers)], layout.segments[1]
    for step in range(4):
        given_ = [values_of(layout, 100 * step + i) for i in range(workers)]
        matrices = [given_[i][: n * m].view(n, m).numpy() + errors[i] for i in range(workers)]
        p, _ = np.linalg.qr(sum(matrix @ q for matrix in matrices) / workers)
        q = sum(matrix.T @ p for matrix in matrices) / workers
        errors = [matrix - p @ q.T for matrix in matrices]
        outs, _ = mean_in_rounds(coders, given_)
        for i in range(workers):
            assert outs[i][: n * m].view(n, m).numpy() == pytest.approx(p @ q.T, abs=1e-11)
            assert torch.allclose(bias.of(outs[i]), torch.stack([bias.of(g) for g in given_]).mean(0))
            residual = coders[i].state.tensors["residual"]
            assert residual[: n * m].view(n, m).numpy() == pytest.approx(errors[i], abs=1e-11)
            assert (bias.of(residual) == 0).all()


def test_which_codecs_have_rounds() -> None:
    codec = power_sgd(2)
    assert Factored(2).rounds and codec.rounds and chain(Clip(1.0), codec).rounds  # type: ignore[attr-defined]
    clipped = Coder(chain(Clip(1.0), codec), model())
    plain = Coder(codec, model())
    values = values_of(model())
    out = mean_in_rounds([clipped], [values])[0][0]
    assert torch.allclose(out, mean_in_rounds([plain], [values / values.norm()])[0][0], atol=1e-12)
    with pytest.raises(UsageError, match="clip"):
        ErrorFeedback(chain(Clip(1.0), Factored(2)))


def test_half_precision_in_rounds_sends_half_precision() -> None:
    layout = model(torch.bfloat16)
    workers = [Coder(power_sgd(2), layout) for _ in range(2)]
    given_ = [values_of(layout, seed) for seed in (1, 2)]
    seen = []

    async def watching(tensor: Tensor) -> Tensor:
        seen.append(tensor.dtype)
        return await mean(tensor)

    outs = [torch.empty(layout.size, dtype=torch.bfloat16) for _ in workers]
    together(
        [
            w.codec.mean_rounds(v, layout, w.state, w.work, watching, out)  # type: ignore[attr-defined]
            for w, v, out in zip(workers, given_, outs, strict=True)
        ]
    )
    assert seen == [torch.bfloat16] * 4
    assert torch.equal(outs[0], outs[1])


def test_nothing_to_average_asks_for_nothing() -> None:
    assert mean_in_rounds([Coder(Factored(1), Layout.of([], torch.float32))], [torch.empty(0)])[1] == []
    vector = Layout.single((5,), torch.float32)
    assert mean_in_rounds([Coder(Factored(1), vector)], [torch.ones(5)])[1] == [5]


# Matrices that are no pleasure


@given(st.integers(1, 6), st.integers(6, 12), st.sampled_from([torch.float32, torch.float64]), st.data())
def test_orthonormal_rows_or_none(count: int, width: int, dtype: torch.dtype, data: st.DataObject) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    scale = data.draw(st.sampled_from([1e-40, 1e-30, 1.0, 1e30]))
    independent = data.draw(st.integers(0, count))
    base = draw.normal(size=(max(independent, 1), width)) * (independent > 0)
    plain = draw.normal(size=(count, len(base))) @ base
    rows = torch.from_numpy(plain).to(dtype) * scale
    orthonormalise(rows)
    gram, tolerance = (rows @ rows.T).double(), 50 * torch.finfo(dtype).eps
    kept = gram.diagonal() > 0.5
    assert torch.allclose(gram, torch.diag(kept.double()), atol=tolerance)
    assert kept.sum() >= independent or scale == 1e-40
    assert independent or not kept.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", [0.0, torch.nan, torch.inf, 1e-40, 3e38])
def test_after_any_matrix_the_next_one_is_found(first: float, dtype: torch.dtype) -> None:
    """A Q of zeros, or one that isn't finite, would spoil everything that comes later."""
    layout = Layout.single((6, 8), dtype)
    coder = Coder(power_sgd(2), layout)
    coder.decode(coder.encode(torch.full((48,), first).to(dtype)))
    residual = coder.state.tensors["residual"]
    assert residual.isfinite().all()
    residual.zero_()
    draw = np.random.default_rng(2)
    matrix = torch.from_numpy(np.outer(draw.normal(size=6), draw.normal(size=8))).to(dtype)
    for _ in range(3):
        residual.zero_()
        found = coder.decode(coder.encode(matrix)).view(6, 8)
    assert torch.allclose(found, matrix, rtol=0, atol=8 * torch.finfo(dtype).eps * float(matrix.abs().max()))


def test_a_matrix_with_nan_arrives_as_nan_and_others_as_they_are() -> None:
    layout = Layout.of([("a", (6, 8)), ("b", (7, 9)), ("c", (5,))], torch.float32)
    coder, values = Coder(Factored(2), layout), values_of(layout)
    values[3] = torch.nan
    found = coder.decode(coder.encode(values))
    first, second, third = layout.segments
    assert first.of(found).isnan().all()
    assert second.of(found).isfinite().all()
    assert torch.equal(third.of(found), third.of(values))


def test_zeros_stay_zeros() -> None:
    coder = Coder(Factored(2), model(torch.float32))
    for _ in range(3):
        assert (coder.decode(coder.encode(torch.zeros(coder.layout.size))) == 0).all()


# The rest


def test_it_goes_on_where_it_was_saved() -> None:
    layout = model(torch.float32)
    coder, other = Coder(power_sgd(2), layout), Coder(power_sgd(2), layout)
    for seed in range(3):
        coder.encode(values_of(layout, seed))
    other.load_state_dict(coder.state_dict())
    assert torch.equal(coder.encode(values_of(layout, 9)), other.encode(values_of(layout, 9)))


def test_memory_is_used_again() -> None:
    layout = model(torch.float32)
    coder = Coder(power_sgd(2), layout)
    first = coder.encode(values_of(layout)).data_ptr()
    assert coder.encode(values_of(layout, 1)).data_ptr() == first


def test_bytes_of_a_stranger() -> None:
    layout, codec = model(torch.float32), Factored(2)
    right = codec.nbytes(layout)
    for size in (0, 1, right - 4, right + 4):
        with pytest.raises(WireError):
            codec.decode(torch.zeros(size, dtype=torch.uint8), layout, torch.empty(layout.size), Workspace())
    raw = torch.from_numpy(np.random.default_rng(0).integers(0, 256, right, dtype=np.uint8))
    codec.decode(raw, layout, torch.empty(layout.size), Workspace())


@pytest.mark.parametrize("r", [0, -1, 1.5, True, 2**40])
def test_what_cannot_work_is_refused(r: object) -> None:
    with pytest.raises(UsageError, match="low_rank"):
        Factored(r)  # type: ignore[arg-type]
