"""Splits: everybody's samples, drawn from the seed, and the batches made of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fast
from fast.errors import UsageError
from fast.lab.splits import batches, parse_split


class Labelled(fast.Task):
    """Only the part of a task that a split looks at."""

    def __init__(self, labels: Sequence[int] | None, samples: int | None = None) -> None:
        self._labels = labels
        self._samples = samples if samples is not None else len(labels or ())

    def train(self) -> Sequence[int]:
        return range(self._samples)

    def labels(self) -> Sequence[int] | None:
        return self._labels

    def model(self) -> Any: ...
    def optimizer(self, model: Any) -> Any: ...
    def loss(self, model: Any, batch: Any) -> Any: ...
    def test(self) -> Any: ...
    def batch(self, indices: Any) -> Any: ...
    def score(self, model: Any, batch: Any) -> float: ...  # type: ignore[empty-body]


def assigned(text: str, task: fast.Task, workers: int, seed: int) -> list[list[int]]:
    assignment = parse_split(text).assign(task, workers, seed)
    assert assignment is not None
    return assignment


def unequal_classes(samples: int = 600) -> Labelled:
    """Half of the samples are of class 0, a quarter of class 1, and so on, in no order."""
    return Labelled([(i * 7919 % samples & -(i * 7919 % samples)).bit_length() % 6 for i in range(samples)])


# Assignments

splits = st.sampled_from(["dirichlet(1)", "dirichlet(0.5)", "dirichlet(20)", "sizes(1)", "sizes(30)"])


@given(
    split=splits,
    labels=st.lists(st.integers(-3, 9), min_size=60, max_size=200),
    workers=st.integers(1, 6),
    seed=st.integers(0, 2**62),
)
def test_every_sample_belongs_to_exactly_one_worker(
    split: str, labels: list[int], workers: int, seed: int
) -> None:
    try:
        assignment = assigned(split, Labelled(labels), workers, seed)
    except UsageError:  # somebody would have had nothing; see below
        return
    assert len(assignment) == workers and all(assignment)
    assert sorted(itertools.chain.from_iterable(assignment)) == list(range(len(labels)))
    assert all(type(sample) is int for sample in assignment[0])


@given(split=splits, seed=st.integers(0, 2**62))
def test_the_seed_decides_and_nothing_else(split: str, seed: int) -> None:
    task = unequal_classes()
    try:
        first = assigned(split, task, 3, seed)
    except UsageError:
        return
    assert assigned(split, unequal_classes(), 3, seed) == first
    assert parse_split(split).assign(task, 3, seed) == first


def test_another_seed_is_another_split() -> None:
    task = unequal_classes()
    assert assigned("dirichlet(5)", task, 3, 0) != assigned("dirichlet(5)", task, 3, 1)


def test_the_values_of_one_split_are_pinned() -> None:
    """The same on every machine: a split is part of a run's record by its text and seed alone."""
    task = Labelled([0, 1] * 10)
    assert assigned("dirichlet(2)", task, 2, 0)[0] == [1, 3, 5, 9, 11, 13, 15, 17, 19]
    assert assigned("sizes(2)", task, 2, 0)[1] == [1, 2, 5, 6, 9, 10, 11, 13]


def label_skew(text: str) -> float:
    """The mean over workers and seeds of how far a worker's classes are from everybody's:
    half the sum of absolute differences of their shares."""
    task = unequal_classes()
    labels = task.labels() or ()
    whole = Counter(labels)
    found = []
    for seed in range(12):
        for mine in assigned(text, task, 4, seed):
            own = Counter(labels[sample] for sample in mine)
            found.append(sum(abs(own[each] / len(mine) - whole[each] / len(labels)) for each in whole) / 2)
    return sum(found) / len(found)


def test_classes_differ_more_the_smaller_alpha_is() -> None:
    skews = [label_skew(f"dirichlet({alpha})") for alpha in (1000, 10, 1, 0.5)]
    assert skews == sorted(skews)
    assert skews[0] < 0.03 and skews[-1] > 0.3


def size_spread(text: str) -> float:
    sizes = [[len(mine) for mine in assigned(text, unequal_classes(), 4, seed)] for seed in range(12)]
    return sum(max(each) - min(each) for each in sizes) / len(sizes)


def test_sizes_differ_more_the_smaller_alpha_is() -> None:
    spreads = [size_spread(f"sizes({alpha})") for alpha in (1000, 10, 1)]
    assert spreads == sorted(spreads)
    assert spreads[0] < 20 and spreads[-1] > 200


def test_sizes_leave_the_content_alike() -> None:
    assert label_skew("sizes(3)") < 0.1 < label_skew("dirichlet(3)")


def test_iid_gives_nobody_samples_of_its_own() -> None:
    assert parse_split("iid").assign(unequal_classes(), 4, 0) is None


def test_one_worker_has_everything() -> None:
    for text in ("dirichlet(0.3)", "sizes(0.5)"):
        assert assigned(text, unequal_classes(), 1, 0) == [list(range(600))]


def test_the_proportions_are_those_of_a_dirichlet_distribution() -> None:
    """The mean share is 1/P and its variance (1/P)(1 - 1/P) / (P alpha + 1)."""
    workers, alpha, samples = 4, 2.0, 10_000
    task = Labelled(None, samples)
    shares = [len(assigned(f"sizes({alpha})", task, workers, seed)[0]) / samples for seed in range(400)]
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / len(shares)
    assert mean == pytest.approx(1 / 4, abs=0.03)
    assert variance == pytest.approx(1 / 4 * 3 / 4 / (workers * alpha + 1), rel=0.25)


# Refusals


def test_who_has_nothing_is_named() -> None:
    with pytest.raises(UsageError, match=r"sizes\(50\) leaves workers? .* of 12 without .* fewer workers"):
        parse_split("sizes(50)").assign(Labelled(None, 5), 12, 0)
    with pytest.raises(UsageError, match="leaves workers 0, 1 of 2 without"):
        parse_split("dirichlet(1)").assign(Labelled([]), 2, 0)
    with pytest.raises(UsageError, match="Try a larger number"):
        parse_split("dirichlet(0.001)").assign(Labelled([0] * 50), 4, 0)


def test_classes_are_needed_to_divide_by_class() -> None:
    with pytest.raises(UsageError, match=r"Labelled has no labels\(\).* sizes\(0.3\) or iid"):
        parse_split("dirichlet(0.3)").assign(Labelled(None, 10), 2, 0)


def test_labels_must_fit_the_samples() -> None:
    with pytest.raises(UsageError, match=r"labels\(\) has the shape \(3,\).* each of the 5 training samples"):
        parse_split("dirichlet(1)").assign(Labelled([0, 1, 0], 5), 2, 0)


# As text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("iid", "iid"),
        (" iid() ", "iid"),
        ("dirichlet(0.3)", "dirichlet(0.3)"),
        ("dirichlet( alpha = .3 )", "dirichlet(0.3)"),
        ("dirichlet(1)", "dirichlet(1)"),
        ("dirichlet(1.0)", "dirichlet(1)"),
        ("sizes(5e-1)", "sizes(0.5)"),
        ("sizes(0.1234567891234)", "sizes(0.1234567891234)"),
    ],
)
def test_splits_are_read_and_written(text: str, canonical: str) -> None:
    split = parse_split(text)
    assert str(split) == canonical
    assert parse_split(canonical) == split


@given(alpha=st.floats(1e-3, 1e6), name=st.sampled_from(["dirichlet", "sizes"]))
def test_text_reads_back(alpha: float, name: str) -> None:
    split = parse_split(f"{name}({alpha!r})")
    assert parse_split(str(split)) == split


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dirchlet(0.3)", r"there is no split 'dirchlet'. Did you mean dirichlet\?"),
        ("size(0.3)", r"Did you mean sizes\?"),
        ("IID", r"Did you mean iid|Write iid"),
        ("shards(2)", r"there is no split 'shards'. Write iid, dirichlet\(0.3\) or sizes\(0.5\)"),
        ("dirichlet", r"takes one number, and this has 0. Write dirichlet\(0.3\)"),
        ("dirichlet(1, 2)", "takes one number, and this has 2"),
        ("dirichlet(beta=1)", "has no argument 'beta'. Its one argument is alpha"),
        ("dirichlet(**{})", "has no argument None"),
        ("iid(3)", "iid takes no arguments"),
        ("dirichlet(0)", "alpha is a number from 0.001 to 1,000,000"),
        ("dirichlet(-1)", "alpha is a number"),
        ("dirichlet(True)", "alpha is a number"),
        ("dirichlet('1')", "alpha is a number"),
        ("dirichlet(inf)", "alpha is a number"),
        ("dirichlet(1e400)", "alpha is a number"),
        ("dirichlet(0.3", "can't be read"),
        ("", "can't be read"),
        ("1 + 1", "isn't a split"),
        ("__import__('os').system('x')", "isn't a split"),
    ],
)
def test_wrong_splits_are_answered(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_split(text)


# Batches


@given(
    mine=st.lists(st.integers(0, 999), min_size=1, max_size=40, unique=True),
    batch_size=st.integers(1, 50),
    seed=st.integers(0, 2**62),
)
def test_batches_are_ones_own_epochs_one_after_another(mine: list[int], batch_size: int, seed: int) -> None:
    assignment = [[1000], sorted(mine)]
    taken = list(itertools.islice(batches(assignment, 1, seed, batch_size), 3 * len(mine)))
    assert {len(batch) for batch in taken} == {batch_size}
    row = [sample for batch in taken for sample in batch]
    epochs = [row[start : start + len(mine)] for start in range(0, len(row) - len(mine) + 1, len(mine))]
    assert len(epochs) >= 3
    assert all(sorted(epoch) == sorted(mine) for epoch in epochs)


def test_the_order_comes_from_seed_worker_and_epoch() -> None:
    assignment = [list(range(40)), list(range(40))]

    def row(worker: int, seed: int) -> list[int]:
        return list(itertools.chain.from_iterable(itertools.islice(batches(assignment, worker, seed, 8), 10)))

    assert row(0, 3) == row(0, 3)
    assert row(0, 3) != row(1, 3)
    assert row(0, 3) != row(0, 4)
    assert row(0, 3)[:40] != row(0, 3)[40:], "the second epoch has an order of its own"
