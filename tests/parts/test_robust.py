"""Rules that stand hostile workers: values against the plainest loops, and what they promise (Krum: B67)."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import dist, hypot, inf, isfinite, nan
from random import Random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fast.core import Letter, fold_sum
from fast.errors import UsageError
from fast.parts.columns import PIECE, comparisons, middle_mean, squared_distances
from fast.parts.merge import check_rule, enough
from fast.rules import Rule, krum, mean, median, multi_krum, norm_clip, sum_, trimmed_mean
from fast.strategies.expression import parse_strategy

Row = list[float]
EVERY = (median(), trimmed_mean(1), krum(1), multi_krum(1), multi_krum(1, chosen=2), norm_clip(1.5))
CHAINED = (norm_clip(1.5, then=median()), norm_clip(1.5, then=krum(1)), norm_clip(2.0, then=sum_))
every_rule = pytest.mark.parametrize("rule", EVERY + CHAINED, ids=repr)


def letter(values: Row, sender: int, weight: float = 1.0, dtype: torch.dtype = torch.float64) -> Letter:
    return Letter(sender, "gradient", torch.tensor(values, dtype=dtype), steps=(0,), weight=weight)


def merge(rule: Rule, rows: list[Row], dtype: torch.dtype = torch.float64) -> Row:
    """As a worker does it: the first is its own."""
    first, *rest = rows
    arrived = [letter(row, sender, dtype=dtype) for sender, row in enumerate(rest, 1)]
    return rule(torch.tensor(first, dtype=dtype), 1.0, arrived).tolist()  # type: ignore[no-any-return]


# The plainest loops


def plain_trimmed(rows: list[Row], drop: int) -> Row:
    columns = (sorted(column)[drop : len(rows) - drop] for column in zip(*rows, strict=True))
    return [sum(kept) / len(kept) for kept in columns]


def plain_distance(one: Row, other: Row) -> float:
    """Squared; what isn't finite is infinitely far."""
    return dist(one, other) ** 2 if all(map(isfinite, one + other)) else inf


def plain_scores(rows: list[Row], hostile: int) -> list[float]:
    scores = []
    for i in range(len(rows)):
        distances = sorted(plain_distance(rows[i], rows[j]) for j in range(len(rows)) if j != i)
        scores.append(sum(distances[: len(rows) - hostile - 2]))
    return scores


def plain_mean(rows: list[Row]) -> Row:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def plain_clip(row: Row, limit: float) -> Row:
    length = hypot(*row)
    return [x * min(1.0, limit / length) for x in row] if length else row


numbers = st.floats(-100, 100, width=32)


@st.composite
def tables(draw: st.DrawFn, least: int = 5, most: int = 9) -> list[Row]:
    """Updates of a few coordinates, one row each."""
    width = draw(st.integers(1, 5))
    row = st.lists(numbers, min_size=width, max_size=width)
    return draw(st.lists(row, min_size=least, max_size=most))


@given(tables(least=3))
def test_median(rows: list[Row]) -> None:
    expected = plain_trimmed(rows, (len(rows) - 1) // 2)
    assert merge(median(), rows) == pytest.approx(expected, abs=1e-12)


@given(tables(), st.integers(0, 2))
def test_trimmed_mean(rows: list[Row], hostile: int) -> None:
    assert merge(trimmed_mean(hostile), rows) == pytest.approx(plain_trimmed(rows, hostile), abs=1e-12)


@given(tables(), st.integers(0, 1))
def test_krum_has_the_smallest_score_and_is_one_of_its_inputs(rows: list[Row], hostile: int) -> None:
    """B67. Scores that differ by rounding only may come out in either order."""
    chosen, scores = merge(krum(hostile), rows), plain_scores(rows, hostile)
    assert chosen in rows
    assert scores[rows.index(chosen)] <= min(scores) * (1 + 1e-12)


@given(tables(), st.integers(1, 4))
def test_multi_krum_is_the_mean_of_the_best(rows: list[Row], chosen: int) -> None:
    scores = plain_scores(rows, 0)
    order = sorted(range(len(rows)), key=lambda i: scores[i])
    m = min(chosen, len(rows) - 2)
    got = merge(multi_krum(0, chosen=m), rows)
    if (
        m < len(rows) and scores[order[m - 1]] * (1 + 1e-9) + 1e-9 < scores[order[m]]
    ):  # nobody is tied for the last
        assert got == pytest.approx(plain_mean([rows[i] for i in order[:m]]), abs=1e-9)


def test_multi_krum_takes_as_many_as_is_proven_unless_told() -> None:
    rows = [[0.0], [1.0], [2.0], [3.5], [4.0], [1e6], [7.0]]
    assert merge(multi_krum(1), rows) == merge(multi_krum(1, chosen=4), rows)
    assert merge(multi_krum(1), rows) != merge(multi_krum(1, chosen=3), rows)


@given(tables(), st.floats(0.5, 50))
def test_norm_clip(rows: list[Row], limit: float) -> None:
    clipped = [plain_clip(row, limit) for row in rows]
    assert merge(norm_clip(limit), rows) == pytest.approx(plain_mean(clipped), abs=1e-9)
    then_median = plain_trimmed(clipped, (len(rows) - 1) // 2)
    assert merge(norm_clip(limit, then=median()), rows) == pytest.approx(then_median, abs=1e-9)


def test_equal_scores_go_to_the_first() -> None:
    """Corners of a square and its middle twice: the middle wins; among equal corners the first does."""
    corners = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
    assert merge(krum(1), [*corners, [0.0, 0.0], [0.0, 0.0]]) == [0.0, 0.0]
    assert merge(krum(0), corners) == [1.0, 1.0]
    assert merge(krum(0), corners[::-1]) == [-1.0, -1.0]


# B67: what Krum promises, and what the mean can't


@given(
    st.integers(1, 3),
    st.integers(2, 40),
    st.floats(1e3, 1e30),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_with_so_few_far_outliers_krum_chooses_an_honest_one(
    hostile: int, width: int, far: float, together: bool, seed: int
) -> None:
    """n = 2 f + 3, the least that is allowed; hostile ones stand together or each for itself."""
    random = Random(seed)
    honest = [[random.gauss(0, 1) for _ in range(width)] for _ in range(hostile + 3)]
    outliers = [[far * (1 if together else random.choice((-1, 1)) * (k + 1))] * width for k in range(hostile)]
    rows = honest + outliers
    random.shuffle(rows)
    assert merge(krum(hostile), rows) in honest
    best = merge(multi_krum(hostile), rows)
    assert max(map(abs, best)) <= max(abs(x) for row in honest for x in row)


@given(st.floats(1e3, 1e30))
def test_the_mean_goes_wherever_one_hostile_worker_wants(far: float) -> None:
    """The negative control: to bring the mean of five to t, it sends 5 t minus what the others send."""
    honest = [[1.0, -1.0], [1.5, -0.5], [0.5, -1.5], [1.0, -2.0]]
    wanted = [far, -far]
    lie = [5 * t - sum(column) for t, column in zip(wanted, zip(*honest, strict=True), strict=True)]
    assert merge(mean, [*honest, lie]) == pytest.approx(wanted, rel=1e-9)
    assert merge(krum(1), [*honest, lie]) in honest


@pytest.mark.parametrize("hostile", [0, 1, 2, 5])
def test_how_many_updates_are_needed(hostile: int) -> None:
    assert krum(hostile).needs == multi_krum(hostile).needs == 2 * hostile + 3
    assert trimmed_mean(hostile).needs == 2 * hostile + 1
    assert multi_krum(hostile, chosen=hostile + 4).needs == 2 * hostile + 6
    assert norm_clip(1.0, then=krum(hostile)).needs == 2 * hostile + 3
    assert (median().needs, norm_clip(1.0).needs) == (3, 1)


@every_rule
def test_too_few_are_refused(rule: Rule) -> None:
    needs: int = rule.needs  # type: ignore[attr-defined]
    rows = [[float(k), 1.0] for k in range(needs)]
    check_rule(rule, needs)
    assert len(merge(rule, rows)) == 2
    if needs == 1:
        return
    with pytest.raises(UsageError, match=rf"needs at least {needs} updates at a time, and {needs - 1} come"):
        check_rule(rule, needs - 1)
    with pytest.raises(UsageError, match="needs at least"):
        merge(rule, rows[1:])
    with pytest.raises(UsageError, match="needs at least"):
        rule.merge([torch.tensor(row) for row in rows[1:]])  # type: ignore[attr-defined]


@every_rule
def test_no_votes_at_all_are_refused_too(rule: Rule) -> None:
    with pytest.raises(UsageError, match=r"needs at least \d updates at a time, and 0 come together here"):
        rule.merge([])  # type: ignore[attr-defined]


def test_plain_rules_are_never_too_few_and_stand_any_cut() -> None:
    for rule in (mean, sum_, lambda own, weight, arrived: own):
        check_rule(rule, 1, shards=7)
        assert enough(rule, 0.0, [])


@pytest.mark.parametrize(
    "rule", [krum(1), multi_krum(1), norm_clip(1.0), norm_clip(1.0, then=median())], ids=repr
)
def test_what_compares_whole_updates_is_refused_with_several_shards(rule: Rule) -> None:
    check_rule(rule, 9, shards=1)
    with pytest.raises(UsageError, match="each of the 3 servers sees only its own slice"):
        check_rule(rule, 9, shards=3)


@pytest.mark.parametrize("rule", [median(), trimmed_mean(1)], ids=repr)
def test_coordinate_by_coordinate_a_cut_changes_no_bit(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(0)
    votes = list(torch.randn(7, 101, generator=generator))
    whole = rule.merge(votes)  # type: ignore[attr-defined]
    cut = [rule.merge([vote[part] for vote in votes]) for part in (slice(0, 16), slice(16, 101))]  # type: ignore[attr-defined]
    assert torch.equal(whole, torch.cat(cut))
    check_rule(rule, 7, shards=5)


# What hostile ones can do at most

anything = st.floats(allow_nan=True, allow_infinity=True)


@given(st.integers(1, 3), st.data())
def test_coordinate_by_coordinate_the_result_stays_among_the_honest(
    hostile: int, data: st.DataObject
) -> None:
    honest = data.draw(st.lists(st.tuples(numbers, numbers), min_size=hostile + 1, max_size=hostile + 5))
    lies = data.draw(st.lists(st.tuples(anything, anything), min_size=1, max_size=hostile))
    rows = data.draw(st.permutations([list(row) for row in honest + lies]))
    rules: list[Rule] = [median()] if len(rows) > 2 * len(lies) and len(rows) > 2 else []
    rules += [trimmed_mean(hostile)] if len(rows) > 2 * hostile else []
    for rule in rules:
        for place, value in enumerate(merge(rule, rows)):
            column = [row[place] for row in honest]
            assert min(column) - 1e-9 <= value <= max(column) + 1e-9


@given(st.lists(st.tuples(numbers, numbers), min_size=4, max_size=7), st.tuples(anything, anything))
@example([(1.0, 2.0)] * 4, (nan, nan))
@example([(1.0, 2.0), (1.5, 2.0), (1.0, 2.5), (0.0, 0.0)], (inf, 0.0))
def test_what_is_not_finite_never_wins(honest: list[tuple[float, float]], lie: tuple[float, float]) -> None:
    rows = [list(lie), *map(list, honest)]
    for rule in (*EVERY, *CHAINED):
        assert all(map(isfinite, merge(rule, rows))), rule
    if not all(map(isfinite, lie)):
        assert merge(krum(1), rows) in [list(row) for row in honest]
        assert merge(norm_clip(1000.0), rows) == pytest.approx(plain_mean(rows[1:]), abs=1e-9)


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6),
    st.tuples(anything, anything),
    st.floats(0.1, 9),
)
def test_clipped_updates_move_the_mean_by_no_more_than_their_lengths(
    honest: list[tuple[float, float]], lie: tuple[float, float], limit: float
) -> None:
    rows = list(map(list, honest))
    without, moved = (merge(norm_clip(limit), [*rows, one]) for one in ([0.0, 0.0], list(lie)))
    if all(map(isfinite, lie)):
        assert dist(without, moved) <= limit / (len(rows) + 1) * (1 + 1e-9)
    else:
        assert moved == pytest.approx(merge(norm_clip(limit), rows), abs=1e-12)


@given(tables(), st.sampled_from([nan, inf, -inf]), st.integers(0, 2))
def test_who_sends_what_is_not_finite_is_left_out_and_one_less_is_to_be_stood(
    rows: list[Row], lie: float, place: int
) -> None:
    told = [*rows[:place], [lie] * len(rows[0]), *rows[place:]]
    assert merge(median(), told) == merge(median(), rows)
    assert merge(trimmed_mean(2), told) == merge(trimmed_mean(1), rows)
    assert merge(norm_clip(9.0), told) == merge(norm_clip(9.0), rows)
    assert merge(multi_krum(1), told) == merge(multi_krum(0), rows)
    best = merge(krum(1), told)  # in Krum that is the same as to be infinitely far from everybody
    assert best == merge(krum(0), rows)
    scores = plain_scores(told, 1)
    assert scores[told.index(best)] <= min(score for score in scores if score < inf) * (1 + 1e-12)


def test_more_lies_than_promised_are_still_not_chosen_while_anything_finite_is_there() -> None:
    rows = [[nan, 1.0], [inf, 1.0], [nan, nan], [1.0, 2.0], [-inf, inf]]
    assert merge(krum(1), rows) == merge(multi_krum(1, chosen=2), rows) == [1.0, 2.0]
    assert merge(norm_clip(9.0), rows) == [1.0, 2.0]


@every_rule
def test_where_nothing_is_finite_that_is_seen(rule: Rule) -> None:
    assert not any(map(isfinite, merge(rule, [[nan, nan]] * 5)))


# One sender, one vote


def folded(values: list[float], sender: int, samples: list[int]) -> Letter:
    """What a mailbox makes of several updates of one sender."""
    letters = [letter([value, -value], sender, float(n)) for value, n in zip(values, samples, strict=True)]
    together = letters[0]
    for newer in letters[1:]:
        together = fold_sum(together, newer)
    return together


@every_rule
@settings(max_examples=25)
@given(
    st.lists(st.tuples(numbers, st.integers(1, 9)), min_size=1, max_size=4),
    st.lists(numbers, min_size=4, max_size=4),
)
def test_a_folded_letter_is_its_mean(rule: Rule, sent: list[tuple[float, int]], others: list[float]) -> None:
    values, samples = [value for value, _ in sent], [n for _, n in sent]
    average = sum(value * n for value, n in sent) / sum(samples)
    own, rest = (
        torch.tensor([0.25, 0.5], dtype=torch.float64),
        [letter([x, 1.0], 2 + k) for k, x in enumerate(others)],
    )
    singly = [letter([value, -value], 1, float(n)) for value, n in sent]
    expected = rule(own, 4, [letter([average, -average], 1), *rest])
    close = {"abs": 1e-9, "rel": 1e-9}
    if isinstance(rule, krum | multi_krum) or "krum" in repr(rule):  # rounding may decide between equals
        scores = plain_scores(
            [own.tolist(), [average, -average], *(each.tensor.tolist() for each in rest)], 1
        )
        if len({round(score, 6) for score in scores}) < len(scores):
            return
    assert rule(own, 4, [folded(values, 1, samples), *rest]).tolist() == pytest.approx(
        expected.tolist(), **close
    )
    assert rule(own, 4, [*singly, *rest]).tolist() == pytest.approx(expected.tolist(), **close)


@every_rule
def test_who_sends_often_has_no_more_votes_and_claimed_samples_do_not_weigh(rule: Rule) -> None:
    own, honest = torch.zeros(2, dtype=torch.float64), [letter([0.1 * k, 0.2], k) for k in (1, 2, 3)]
    once = rule(own, 32, [*honest, letter([50.0, 60.0], 4, 32)])
    often = rule(own, 32, [*honest, *(letter([50.0, 60.0], 4, 32) for _ in range(9))])
    claiming = rule(own, 32, [*honest, letter([50.0, 60.0], 4, 1e9)])
    assert torch.allclose(once, often, rtol=1e-12, atol=1e-12) and torch.equal(once, claiming)


def test_the_mean_does_weigh_and_is_lost_to_who_claims_most() -> None:
    """The negative control."""
    honest = [letter([1.0], sender, 32) for sender in (1, 2, 3)]
    assert float(mean(torch.ones(1, dtype=torch.float64), 32, [*honest, letter([-50.0], 4, 1e9)])) < -49


@every_rule
def test_who_has_no_samples_has_no_vote(rule: Rule) -> None:
    own, votes = (
        torch.full((2,), 1e6, dtype=torch.float64),
        [letter([0.3 * k, 1.0], k, 8) for k in range(1, 6)],
    )
    absent = letter([-1e6, 1e6], 6, 0.0)
    expected = rule(votes[0].tensor, 8, votes[1:])
    assert torch.equal(rule(own, 0.0, [*votes, absent]), expected)
    assert enough(rule, 0.0, [*votes, absent]) and not enough(rule, 0.0, [absent, absent])
    assert rule(own, 0.0, [absent]) is own


def test_enough_counts_senders() -> None:
    assert not enough(krum(1), 1.0, [letter([1.0], sender % 3) for sender in range(9)])
    assert enough(krum(1), 1.0, [letter([1.0], sender) for sender in range(4)])
    assert not enough(krum(1), 0.0, [letter([1.0], sender) for sender in range(4)])


# Order, memory, kinds of numbers


@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_the_updates_does_not_matter(rows: list[Row], random: Random) -> None:
    shuffled = random.sample(rows, len(rows))
    assert merge(median(), shuffled) == merge(median(), rows)
    assert merge(trimmed_mean(2), shuffled) == merge(trimmed_mean(2), rows)
    scores = sorted(plain_scores(rows, 1))
    if scores[0] * (1 + 1e-9) + 1e-9 < scores[1]:
        assert merge(krum(1), shuffled) == merge(krum(1), rows)


@every_rule
@pytest.mark.parametrize("shape", [(6,), (2, 3), (0,)], ids=str)
def test_rules_change_nothing_that_they_were_given(rule: Rule, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator) for _ in range(6)]
    before = [tensor.clone() for tensor in tensors]
    arrived = [Letter(k, "gradient", tensor, steps=(0,)) for k, tensor in enumerate(tensors[1:], 1)]
    merged = rule(tensors[0], 1.0, arrived)
    assert merged.shape == shape and merged.dtype == torch.float32
    merged.add_(100)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@every_rule
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_narrow_numbers_come_out_as_narrow(rule: Rule, dtype: torch.dtype) -> None:
    rows = [[1.0, 2.0], [1.5, 2.5], [1.25, 2.25], [-1.0, 0.0], [8.0, 1.0]]
    wide, narrow = merge(rule, rows), merge(rule, rows, dtype)
    assert narrow == pytest.approx(wide, rel=0.01)


def test_sixteen_bits_are_added_in_thirty_two() -> None:
    """2048 + 1 is 2048 in float16; the mean of these four is 1024.25, which rounds to 1024."""
    votes = [torch.tensor([x], dtype=torch.float16) for x in (2048.0, 1.0, 2047.0, 1.0)]
    assert middle_mean(votes, 0).tolist() == [1024.0]


@every_rule
def test_what_has_only_a_size_becomes_what_has_only_a_size(rule: Rule) -> None:
    merged = rule.merge([torch.empty(100_000, device="meta") for _ in range(6)])  # type: ignore[attr-defined]
    assert merged.is_meta and merged.shape == (100_000,)


# Sorting and distances


@pytest.mark.parametrize("count", range(1, 12))
def test_the_comparisons_sort_everything(count: int) -> None:
    """What sorts all rows of zeros and ones sorts everything."""
    for bits in range(1 << count):
        row = [bits >> place & 1 for place in range(count)]
        for low, high in comparisons(count):
            assert low < high
            if row[low] > row[high]:
                row[low], row[high] = row[high], row[low]
        assert row == sorted(row)


@pytest.mark.parametrize("count", [5, 8])
def test_many_coordinates_are_handled_in_pieces(count: int) -> None:
    generator = torch.Generator().manual_seed(2)
    votes = torch.randn(count, 2 * PIECE + 77, generator=generator, dtype=torch.float64)
    expected = votes.sort(0).values[1 : count - 1].mean(0)
    assert torch.allclose(middle_mean(list(votes), 1), expected, rtol=1e-14, atol=1e-14)
    differences = votes[:, None] - votes[None]
    assert torch.allclose(squared_distances(list(votes)), differences.square().sum(-1), rtol=1e-12)


@pytest.mark.parametrize(("dtype", "step"), [(torch.float64, 1e-7), (torch.float32, 1e-3)], ids=str)
def test_distances_between_long_updates_that_hardly_differ(dtype: torch.dtype, step: float) -> None:
    """All updates are about 1e6 long and differ by little: what is left of the squares is nothing."""
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(1000, generator=generator, dtype=torch.float64) * 3e4
    votes = [(base + step * k * torch.ones(1000)).to(dtype) for k in (0, 1, 3, 6, 10)]
    exact = torch.tensor([[_exact(a, b) for b in votes] for a in votes], dtype=torch.float64)
    assert torch.allclose(squared_distances(votes), exact, rtol=1e-12)
    rows = torch.stack(votes).double()  # the negative control: a matrix of products
    products = rows @ rows.T
    lengths = products.diagonal()
    by_products = lengths[:, None] + lengths[None] - 2 * products
    assert not torch.allclose(by_products, exact, rtol=1e-3)


def _exact(a: Tensor, b: Tensor) -> float:
    return sum((x - y) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True))


# Values as text


@every_rule
def test_a_rule_is_a_value_and_its_text_is_its_call(rule: Rule) -> None:
    again = parse_strategy(f"torus(rule={rule!r})").rule  # type: ignore[attr-defined]
    assert again == rule and hash(again) == hash(rule) and again is not rule
    with pytest.raises(FrozenInstanceError):
        rule.whole = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: krum(-1), r"krum\(hostile=-1\): a whole number from 0 on"),
        (lambda: krum(1.5), r"krum\(hostile=1\.5\)"),
        (lambda: krum(True), r"krum\(hostile=True\)"),
        (lambda: trimmed_mean(None), r"trimmed_mean\(hostile=None\)"),
        (lambda: multi_krum(1, chosen=0), r"multi_krum\(chosen=0\): a whole number from 1 on"),
        (lambda: norm_clip(0), "a finite number above 0"),
        (lambda: norm_clip(inf), "a finite number above 0"),
        (lambda: norm_clip(nan), "a finite number above 0"),
        (lambda: norm_clip("1"), "a finite number above 0"),
        (lambda: norm_clip(1.0, then=3), r"norm_clip\(then=3\): a rule is mean, sum, .* such as median"),
        (
            lambda: norm_clip(1.0, then="median"),
            r"then='median'.* without quotes, such as fast.rules.median\(\)",
        ),
        (lambda: norm_clip(1.0, then=median), r"norm_clip\(then=Median\).* is called, with brackets"),
    ],
)
def test_wrong_arguments_are_answered(make: object, why: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=why):
        make()
