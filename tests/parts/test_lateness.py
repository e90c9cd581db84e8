"""Rules for late gradients, against plain loops: lists of gradients, and an optimizer that gets them in time."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fast.core import Letter
from fast.errors import UsageError
from fast.parts import LATE, mean
from fast.parts.merge import Rule, amended, memory_of
from fast.rules import by_age, momentum_corrected, norm_clip
from fast.strategies.expression import parse_strategy

Late = tuple[float, int, float]
"""A gradient, its samples and its age."""


def letter(value: float | Tensor, samples: float = 1.0, age: float = 0.0, count: int = 1) -> Letter:
    tensor = value if isinstance(value, Tensor) else torch.tensor([value], dtype=torch.float64)
    return Letter(1, "gradient", tensor, steps=(0,) * count, weight=samples, age=age)


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def followed(rule: Rule) -> Rule:
    """What a worker applies that follows this rule, step by step."""
    memory = memory_of(rule)
    return lambda own, weight, arrived: amended(rule, rule(own, weight, arrived), weight, arrived, memory)


# By age


def test_half_the_weight_for_one_step_late() -> None:
    """(1 * 4 + 1/2 * 1 + 1/4 * 2) / (1 + 1/2 + 1/4) = 5 / 1.75"""
    merged = by_age()(one(4.0), 8, [letter(1.0, 8, age=1), letter(2.0, 8, age=3)])
    assert float(merged) == pytest.approx(5 / 1.75, rel=1e-15)


late = st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 64), st.floats(0, 100)), min_size=0, max_size=8)


@given(late, st.floats(-10, 10), st.integers(1, 64), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_by_age_is_the_weighted_mean(arrived: list[Late], own: float, samples: int, power: float) -> None:
    total, weighed = float(samples), samples * own
    for value, count, age in arrived:
        total += count * (1 + age) ** -power
        weighed += count * (1 + age) ** -power * value
    merged = by_age(power)(one(own), samples, [letter(*each) for each in arrived])
    assert float(merged) == pytest.approx(weighed / total, abs=1e-9)


def test_however_large_the_power_what_is_late_only_counts_less() -> None:
    """10^400 is more than a float holds."""
    assert float(by_age(400.0)(one(4.0), 8, [letter(1.0, 8, age=9)])) == 4.0


def test_several_updates_in_a_letter_count_as_their_mean() -> None:
    """Three updates that add up to 12, of 6 samples, one step late: (2 * 1 + 3 * 4) / (2 + 3)."""
    assert float(by_age()(one(1.0), 2, [letter(12.0, 6, age=1, count=3)])) == pytest.approx(14 / 5)


@pytest.mark.parametrize("rule", [by_age(), by_age(3.0), momentum_corrected(0.9)], ids=repr)
def test_where_nothing_is_late_it_is_the_mean_bit_for_bit(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(0)
    own, *others = (torch.randn(50, generator=generator) for _ in range(4))
    arrived = [letter(tensor, 3 + place) for place, tensor in enumerate(others)]
    for rule_here in (rule, followed(rule)):
        assert torch.equal(rule_here(own, 4, arrived), mean(own, 4, arrived))
        assert torch.equal(rule_here(own, 4, []), own)


def test_the_power_0_is_the_mean_whatever_is_late() -> None:
    arrived = [letter(3.0, 2, age=7), letter(5.0, 4, age=1)]
    assert float(by_age(0)(one(1.0), 2, arrived)) == pytest.approx(float(mean(one(1.0), 2, arrived)))


def test_a_worker_without_samples_takes_only_what_arrived() -> None:
    assert float(by_age()(one(99.0), 0, [letter(4.0, 2, age=1), letter(1.0, 4, age=3)])) == pytest.approx(2.5)
    assert float(by_age()(one(99.0), 0, [letter(4.0, 0, age=1)])) == 99.0


# As if it had come in time


def moved(
    gradients: list[Tensor], momentum: float, *, nesterov: bool = False, weight_decay: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Weights and velocity after torch's own SGD was given these gradients."""
    w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    for gradient in gradients:
        w.grad = gradient.clone()
        optimizer.step()
    return w.detach(), optimizer.state[w].get("momentum_buffer", torch.zeros(3))


def history(steps: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(steps)]


def late_and_in_time(
    momentum: float, ages: list[int], seed: int, after: int, rule: Rule | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """What the optimizer is given in `ages[-1] + after` steps when a neighbour's gradients come as late as that in one
    step, and when they come in time. Everybody has the same samples."""
    rule = momentum_corrected(momentum) if rule is None else rule
    follow, arrives = followed(rule), max(ages)
    own = history(arrives + 1 + after, seed)
    sent = history(len(ages), seed + 1)
    share = 1 / (1 + len(ages))
    merged, in_time = [], list(own)
    for step, gradient in enumerate(own):
        letters = [letter(g, 1, age) for g, age in zip(sent, ages, strict=True)] if step == arrives else []
        merged.append(follow(gradient, 1, letters).clone())
    in_time[arrives] = share * own[arrives]
    for g, age in zip(sent, ages, strict=True):
        in_time[arrives - age] = in_time[arrives - age] + share * g
    return merged, in_time


@given(
    st.floats(0.0, 0.99),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(0, 100),
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=30)
def test_weights_and_velocity_are_as_if_it_had_come_in_time(
    momentum: float, ages: list[int], seed: int, after: int, nesterov: bool
) -> None:
    merged, in_time = late_and_in_time(momentum, ages, seed, after)
    nesterov = nesterov and momentum > 0
    for mine, theirs in zip(
        moved(merged, momentum, nesterov=nesterov), moved(in_time, momentum, nesterov=nesterov), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ages", [[1], [3, 5], [12]], ids=str)
def test_with_heavy_balls_momentum_the_weights_are_right_at_once(ages: list[int]) -> None:
    merged, in_time = late_and_in_time(0.9, ages, 3, after=0)
    torch.testing.assert_close(moved(merged, 0.9)[0], moved(in_time, 0.9)[0], rtol=1e-12, atol=1e-12)


def test_the_mean_is_not_as_if_it_had_come_in_time() -> None:
    """The negative control."""
    merged, in_time = late_and_in_time(0.9, [3, 5], 3, after=2, rule=mean)
    assert not torch.allclose(moved(merged, 0.9)[0], moved(in_time, 0.9)[0], rtol=0.01)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_in_the_end_every_gradient_has_been_given_once(momentum: float) -> None:
    merged, in_time = late_and_in_time(momentum, [2, 7, 1], 5, after=1)
    torch.testing.assert_close(sum(merged), sum(in_time), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("age", range(6))
def test_what_is_given_ahead_is_the_sum_of_the_powers(age: int) -> None:
    assert momentum_corrected(0.9).ahead(age) == pytest.approx(sum(0.9**n for n in range(1, age + 1)))


def test_workers_remember_for_themselves() -> None:
    """One rule serves many of them."""
    rule = momentum_corrected(0.5)
    here, there = (followed(rule) for _ in range(2))
    here(one(0.0), 1, [letter(8.0, 1, age=1)])
    assert float(there(one(1.0), 1, [])) == 1.0
    assert float(here(one(1.0), 1, [])) == 1.0 - 0.5 * 4.0
    assert float(here(one(1.0), 1, [])) == 1.0


# Values, text, mistakes


@pytest.mark.parametrize("rule", [by_age(0.5), momentum_corrected(0.9)], ids=repr)
def test_rules_change_nothing_that_they_were_given(rule: Rule) -> None:
    own, arrived = torch.ones(4), [letter(torch.full((4,), 2.0), 3, age=2)]
    follow = followed(rule)
    for _ in range(3):
        follow(own, 1.0, arrived).add_(100)
        follow(own, 1.0, []).sub_(0)
    assert own.tolist() == [1.0] * 4 and arrived[0].tensor.tolist() == [2.0] * 4


@pytest.mark.parametrize("rule", [by_age(), by_age(0.25), momentum_corrected(0.9)], ids=repr)
def test_a_rule_is_a_value_and_its_text_is_its_call(rule: Rule) -> None:
    again = parse_strategy(f"torus(rule={rule!r})").rule  # type: ignore[attr-defined]
    assert again == rule and hash(again) == hash(rule)
    with pytest.raises(FrozenInstanceError):
        rule.power = 3  # type: ignore[attr-defined]
    assert repr(rule).partition("(")[0] in LATE


def test_a_bare_name_has_the_usual_power() -> None:
    assert parse_strategy("torus(rule=by_age)").rule == by_age(1.0)  # type: ignore[attr-defined]


def test_it_may_follow_on_clipping() -> None:
    assert norm_clip(1.0, then=by_age()).merge([one(0.5), one(4.0)]).tolist() == [0.75]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: by_age(-1), r"by_age\(power=-1\): power is a number from 0 on"),
        (lambda: by_age(inf), "and finite"),
        (lambda: by_age(nan), "from 0 on"),
        (lambda: by_age(True), "power=True"),
        (lambda: by_age("1"), "power='1'"),
        (lambda: momentum_corrected(1.0), "momentum is a number from 0 to below 1"),
        (lambda: momentum_corrected(-0.1), "from 0 to below 1"),
        (lambda: parse_strategy("torus(rule=momentum_corrected)"), "missing a required argument: 'momentum'"),
    ],
)
def test_wrong_arguments_are_answered(make: object, why: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=why):
        make()
