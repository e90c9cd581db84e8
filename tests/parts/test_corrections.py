"""Staleness corrections, against their formulas written as plainly as possible."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from fast.corrections import (
    CORRECTIONS,
    Push,
    adaptive_delay_compensation,
    by_staleness,
    chain,
    delay_compensation,
    explicit_momentum,
    total_momentum,
)
from fast.errors import UsageError
from fast.parts.staleness import AsIs
from fast.strategies.expression import parse_strategy

SIZE, WORKERS = 7, 3


def drawn(seed):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def history(steps=12):
    """What happens at a server: (sender, its gradient, the weights before it is applied)."""
    return [((step * step + step) % WORKERS, drawn(step), drawn(100 + step)) for step in range(steps)]


def close(a, b):
    return torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def play(correction, read=True):
    """The pushes of the history, corrected; whoever pushed reads the weights as they are then."""
    memory, found = correction.begin(drawn(99), range(WORKERS)), []
    for sender, gradient, weights in history():
        before = gradient.clone(), weights.clone()
        found.append(correction.correct(Push(gradient, sender, workers=WORKERS), weights, memory).gradient)
        assert torch.equal(gradient, before[0]) and torch.equal(weights, before[1])
        if read:
            correction.answered([sender], weights, memory)
    return found


@pytest.mark.parametrize(("staleness", "rate"), [(0, 1.0), (1, 1.0), (2, 0.5), (3, 1 / 3), (40, 0.025)])
def test_the_rate_is_divided_by_the_staleness(staleness, rate):
    push = Push(drawn(1), staleness=staleness, rate=0.5)
    right = by_staleness().correct(push, drawn(2), by_staleness().begin(drawn(3), [0]))
    assert right.rate == pytest.approx(0.5 * rate, rel=1e-15)
    assert right.gradient is push.gradient


@pytest.mark.parametrize("strength", [0.0, 0.04, 1.5])
def test_delay_compensation_is_the_formula(strength):
    read = {worker: drawn(99) for worker in range(WORKERS)}
    for right, (sender, gradient, weights) in zip(play(delay_compensation(strength)), history(), strict=True):
        assert close(right, gradient + strength * gradient**2 * (weights - read[sender]))
        assert strength or torch.equal(right, gradient)
        read[sender] = weights


@pytest.mark.parametrize(("strength", "decay"), [(2.0, 0.95), (0.3, 0.0)])
def test_adaptive_delay_compensation_is_the_formula(strength, decay):
    read, squares = {worker: drawn(99) for worker in range(WORKERS)}, torch.zeros(SIZE, dtype=torch.float64)
    for right, (sender, gradient, weights) in zip(
        play(adaptive_delay_compensation(strength, decay)), history(), strict=True
    ):
        squares = decay * squares + (1 - decay) * gradient**2
        strength_now = strength / torch.sqrt(squares + 1e-7)
        assert close(right, gradient + strength_now * gradient**2 * (weights - read[sender]))
        read[sender] = weights


@pytest.mark.parametrize("correction", [delay_compensation(50.0), adaptive_delay_compensation()])
def test_nothing_is_corrected_where_the_weights_are_those_that_were_read(correction):
    memory = correction.begin(drawn(1), [0, 1])
    assert torch.equal(correction.correct(Push(drawn(2), 1), drawn(1), memory).gradient, drawn(2))
    correction.answered([0], drawn(3), memory)
    assert torch.equal(correction.correct(Push(drawn(2), 0), drawn(3), memory).gradient, drawn(2))
    assert not torch.equal(correction.correct(Push(drawn(2), 1), drawn(3), memory).gradient, drawn(2))


def test_of_somebody_who_has_read_nothing_nothing_is_known():
    correction = delay_compensation(1.0)
    push = Push(drawn(2), sender=7)
    assert correction.correct(push, drawn(3), correction.begin(drawn(1), range(3))) is push


def test_those_who_read_the_same_weights_share_one_copy():
    correction = delay_compensation()
    memory = correction.begin(drawn(1), range(5))
    assert len({copy.data_ptr() for copy in memory.backups.values()}) == 1
    weights = drawn(2)
    correction.answered([1, 2], weights, memory)
    weights.zero_()  # a copy, not the server's own weights
    assert torch.equal(memory.backups[1], drawn(2)) and memory.backups[1] is memory.backups[2]
    assert torch.equal(memory.backups[0], drawn(1))


@pytest.mark.parametrize("mu", [0.9, 0.0, -0.4])
def test_explicit_momentum_is_heavy_ball_also_if_negative(mu):
    velocity = torch.zeros(SIZE, dtype=torch.float64)
    for right, (_, gradient, _) in zip(play(explicit_momentum(mu)), history(), strict=True):
        velocity = mu * velocity + gradient
        assert close(right, velocity)


@pytest.mark.parametrize(("total", "mu"), [(0.9, 0.9 - 2 / 3), (0.5, 0.5 - 2 / 3), (0.0, -2 / 3)])
def test_total_momentum_leaves_out_what_asynchrony_brings(total, mu):
    for found, expected in zip(play(total_momentum(total)), play(explicit_momentum(mu)), strict=True):
        assert close(found, expected)


def test_a_chain_hands_on_what_the_one_before_made():
    compensate, momentum = delay_compensation(0.7), explicit_momentum(0.5)
    velocity, read = torch.zeros(SIZE, dtype=torch.float64), {w: drawn(99) for w in range(WORKERS)}
    for right, (sender, gradient, weights) in zip(play(chain(compensate, momentum)), history(), strict=True):
        velocity = 0.5 * velocity + gradient + 0.7 * gradient**2 * (weights - read[sender])
        assert close(right, velocity)
        read[sender] = weights
    swapped = play(chain(momentum, compensate))
    assert not close(swapped[-1], play(chain(compensate, momentum))[-1])


def test_a_chain_multiplies_the_rates():
    both = chain(by_staleness(), by_staleness())
    right = both.correct(Push(drawn(1), staleness=4), drawn(2), both.begin(drawn(3), [0]))
    assert right.rate == 1 / 16


def test_what_is_remembered_is_all_that_is_needed_to_go_on():
    correction = chain(adaptive_delay_compensation(), explicit_momentum(-0.3), by_staleness())
    memory = correction.begin(drawn(99), range(WORKERS))
    for step, (sender, gradient, weights) in enumerate(history()):
        if step == 6:
            memory = deepcopy(memory)
        right = correction.correct(Push(gradient, sender, step), weights, memory).gradient
        correction.answered([sender], weights, memory)
    assert torch.equal(right, play(correction)[-1])


def test_they_read_back_as_they_are_written():
    for part in (
        by_staleness(),
        delay_compensation(0.1),
        adaptive_delay_compensation(1.0, 0.9),
        explicit_momentum(-0.25),
        total_momentum(0.5),
        chain(by_staleness(), explicit_momentum(-0.25)),
    ):
        call = f"downpour(correction={part!r})"
        assert parse_strategy(call).correction == part
        assert f"correction={part!r}" in parse_strategy(call).call
    assert parse_strategy("downpour(correction=by_staleness)").correction == by_staleness()
    assert parse_strategy("downpour").correction == AsIs()


def test_alone_only_momentum_changes_anything():
    expected = {name: not name.endswith("momentum") for name in CORRECTIONS}
    made = {name: build(0.5) if name.endswith("momentum") else build() for name, build in CORRECTIONS.items()}
    assert {name: part.identity_alone for name, part in made.items()} == expected
    assert chain(by_staleness(), delay_compensation()).identity_alone
    assert not chain(by_staleness(), explicit_momentum(0.1)).identity_alone


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: delay_compensation(-0.1), r"delay_compensation\(strength=-0.1\).*at least 0"),
        (lambda: delay_compensation(True), "strength is a number"),
        (lambda: adaptive_delay_compensation(1.0, 1.0), r"decay=1.0.*at least 0 and less than 1"),
        (lambda: explicit_momentum(-1), r"mu=-1\).*more than -1 and less than 1"),
        (lambda: explicit_momentum(float("nan")), "mu is a number"),
        (lambda: total_momentum(1.0), r"total=1.0.*less than 1"),
        (chain, r"chain\(\) can't be built.*one or more"),
        (lambda: chain(by_staleness(), "x"), "chain of corrections"),
        (lambda: parse_strategy("downpour(correction=ring)"), "correction needs a staleness"),
        (lambda: parse_strategy("downpour(correction=chain(by_staleness, fp16))"), "chain"),
    ],
)
def test_what_can_not_be_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()
