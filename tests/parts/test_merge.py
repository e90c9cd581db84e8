"""Merge rules against a plain reference: lists of single gradients with their samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fast.core import Letter, fold_sum
from fast.parts import RULES, mean, sum_


def letter(values: list[float], weight: float = 1.0, sender: int = 1) -> Letter:
    return Letter(sender, "gradient", torch.tensor(values), steps=(0,), weight=weight)


def test_nothing_arrived() -> None:
    own = torch.tensor([1.0, 2.0])
    assert torch.equal(mean(own, 32, []), own)
    assert torch.equal(sum_(own, 32, []), own)


def test_mean_of_equal_batches() -> None:
    merged = mean(torch.tensor([1.0, 2.0]), 8, [letter([4.0, 0.0], 8), letter([1.0, 1.0], 8)])
    assert merged.tolist() == [2.0, 1.0]


def test_mean_is_weighted_by_samples() -> None:
    """(2 * 1 + 6 * 5) / 8 = 4."""
    assert mean(torch.tensor([1.0]), 2, [letter([5.0], 6)]).tolist() == [4.0]


def test_an_update_without_samples_does_not_count() -> None:
    assert mean(torch.tensor([1.0]), 2, [letter([5.0], 0)]).tolist() == [1.0]
    assert mean(torch.tensor([1.0]), 0, [letter([5.0], 4)]).tolist() == [5.0]
    assert sum_(torch.tensor([1.0]), 2, [letter([5.0], 0), letter([3.0], 1)]).tolist() == [4.0]
    assert sum_(torch.tensor([1.0]), 0, [letter([5.0], 4)]).tolist() == [5.0]


def test_sum_ignores_samples() -> None:
    assert sum_(torch.tensor([1.0]), 2, [letter([5.0], 6), letter([7.0], 1)]).tolist() == [13.0]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_rules_change_nothing_that_they_were_given(rule: object) -> None:
    own, arrived = torch.tensor([1.0, 2.0]), [letter([3.0, 4.0]), letter([5.0, 6.0], 2)]
    assert callable(rule)
    rule(own, 1.0, arrived).add_(100)
    assert own.tolist() == [1.0, 2.0]
    assert [x.tensor.tolist() for x in arrived] == [[3.0, 4.0], [5.0, 6.0]]


updates = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.floats(-10, 10, width=32),
        st.integers(1, 64),
    ),
    min_size=1,
    max_size=8,
)


def folded(single: list[tuple[int, float, int]]) -> list[Letter]:
    """What a mailbox makes of these: one letter per sender."""
    waiting: dict[int, Letter] = {}
    for sender, value, samples in single:
        new = Letter(
            sender, "gradient", torch.tensor([value], dtype=torch.float64), (0,), weight=float(samples)
        )
        waiting[sender] = fold_sum(waiting[sender], new) if sender in waiting else new
    return list(waiting.values())


@given(updates, st.floats(-10, 10, width=32), st.integers(1, 64))
def test_mean_of_folded_letters_is_the_mean_over_all_samples(
    single: list[tuple[int, float, int]], own: float, samples: int
) -> None:
    pairs = [(own, samples), *((value, n) for _, value, n in single)]
    expected = sum(value * n for value, n in pairs) / sum(n for _, n in pairs)
    merged = mean(torch.tensor([own], dtype=torch.float64), samples, folded(single))
    assert float(merged) == pytest.approx(expected, abs=1e-9)


@given(updates, st.floats(-10, 10, width=32))
def test_sum_of_folded_letters_of_equal_size_is_the_sum_of_all(
    single: list[tuple[int, float, int]], own: float
) -> None:
    merged: Tensor = sum_(
        torch.tensor([own], dtype=torch.float64),
        8,
        folded([(sender, value, 8) for sender, value, _ in single]),
    )
    assert float(merged) == pytest.approx(own + sum(value for _, value, _ in single), abs=1e-9)
