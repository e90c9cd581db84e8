"""Mailboxes: order, folding, bounds. And the folds themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.core import GRADIENT, WEIGHTS, Letter, Mailbox, Tag, fold_newest, fold_sum
from fast.core.mailbox import declared
from fast.errors import MailboxFull
from fast.wire import STEPS_LIMIT

TAGS = {
    "gradient": Tag("gradient", carries=GRADIENT, fold=fold_sum),
    "weights": Tag("weights", carries=WEIGHTS, fold=fold_newest),
    "narrow": Tag("narrow", capacity=2),
}


def letter(sender: int, value: float, tag: str = "plain", *, step: int = 0, weight: float = 1.0) -> Letter:
    return Letter(sender, tag, torch.tensor([value], dtype=torch.float64), steps=(step,), weight=weight)


def values(letters: list[Letter]) -> list[tuple[int, float]]:
    return [(each.sender, float(each.tensor)) for each in letters]


def test_letters_come_by_sender_and_then_in_order_of_arrival() -> None:
    box = Mailbox({})
    for each in (letter(2, 20), letter(1, 10), letter(2, 21), letter(0, 0), letter(1, 11)):
        box.deliver(each)
    assert values(box.take("plain")) == [(0, 0), (1, 10), (1, 11), (2, 20), (2, 21)]
    assert box.take("plain") == []
    assert len(box) == 0


def test_take_from_some_leaves_the_others() -> None:
    box = Mailbox({})
    for sender in (3, 1, 2):
        box.deliver(letter(sender, sender))
    assert values(box.take("plain", senders=[3, 1, 9])) == [(1, 1), (3, 3)]
    assert values(box.letters()) == [(2, 2)]


def test_take_one_is_the_oldest() -> None:
    box = Mailbox({})
    box.deliver(letter(1, 10))
    box.deliver(letter(1, 11))
    first, second = box.take_one("plain", 1), box.take_one("plain", 1)
    assert first is not None and second is not None
    assert values([first, second]) == [(1, 10), (1, 11)]
    assert box.take_one("plain", 1) is None
    assert box.take_one("other", 1) is None


def test_has() -> None:
    box = Mailbox({})
    assert not box.has("plain", 1) and not box.has_any("plain")
    box.deliver(letter(1, 10))
    assert box.has("plain", 1) and box.has_any("plain")
    assert not box.has("plain", 2) and not box.has_any("other")
    box.take_one("plain", 1)
    assert not box.has("plain", 1) and not box.has_any("plain")


def test_tags_do_not_mix() -> None:
    box = Mailbox(TAGS)
    box.deliver(letter(1, 1, "gradient"))
    box.deliver(letter(1, 2, "weights"))
    assert values(box.take("weights")) == [(1, 2)]
    assert values(box.take("gradient")) == [(1, 1)]


def test_gradients_of_one_sender_add_up_and_count_on() -> None:
    box = Mailbox(TAGS)
    for step, value in enumerate([1.0, 2.0, 4.0]):
        box.deliver(letter(1, value, "gradient", step=step, weight=8))
    box.deliver(letter(2, 100, "gradient", weight=8))
    first, second = box.take("gradient")
    assert (float(first.tensor), first.steps, first.count, first.weight) == (7.0, (0, 1, 2), 3, 24)
    assert (float(second.tensor), second.count) == (100.0, 1)


def test_of_weights_the_newest_stays() -> None:
    box = Mailbox(TAGS)
    for step, value in enumerate([1.0, 2.0, 4.0]):
        box.deliver(letter(1, value, "weights", step=step))
    (only,) = box.take("weights")
    assert (float(only.tensor), only.steps) == (4.0, (2,))


def test_a_folded_tag_never_grows() -> None:
    box = Mailbox(TAGS)
    for step in range(1000):
        box.deliver(letter(step % 3, 1.0, "gradient", step=step))
    assert len(box) == 3
    assert sum(float(each.tensor) for each in box.letters()) == 1000


def test_a_tag_without_fold_refuses_at_its_capacity() -> None:
    box = Mailbox(TAGS)
    box.deliver(letter(1, 1, "narrow"))
    box.deliver(letter(1, 2, "narrow"))
    box.deliver(letter(2, 3, "narrow"))  # a bound per sender
    with pytest.raises(MailboxFull, match=r"2 letters with tag 'narrow' from peer 1 wait unread") as full:
        box.deliver(letter(1, 4, "narrow"))
    assert full.value.peers == (1,)
    assert values(box.take("narrow")) == [(1, 1), (1, 2), (2, 3)]


def test_an_undeclared_tag_is_bounded_too() -> None:
    box = Mailbox({})
    for value in range(64):
        box.deliver(letter(1, value))
    with pytest.raises(MailboxFull):
        box.deliver(letter(1, 64))


def test_tags_of_collectives_have_more_room() -> None:
    """They are read one by one, and nobody declares them; unless somebody does."""
    box, narrow = Mailbox({}), Mailbox({"fast.0": Tag("fast.0", capacity=1)})
    for value in range(4096):
        box.deliver(letter(1, value, "fast.0"))
    with pytest.raises(MailboxFull, match="4096 letters"):
        box.deliver(letter(1, 4096, "fast.0"))
    narrow.deliver(letter(1, 0, "fast.0"))
    with pytest.raises(MailboxFull):
        narrow.deliver(letter(1, 1, "fast.0"))
    assert [declared({}, name).capacity for name in ("fast.7", "faster", "a fast.")] == [4096, 64, 64]


def test_what_was_read_leaves_nothing_behind() -> None:
    box = Mailbox(TAGS)
    for number in range(100):
        for sender in (1, 2):
            box.deliver(letter(sender, number, f"round {number}"))
            box.deliver(letter(sender, number, "gradient"))
        box.take_one(f"round {number}", 1)
        assert box.has(f"round {number}", 2) and box.has_any(f"round {number}")
        assert box.take_one(f"round {number}", 9) is None
        box.take_one(f"round {number}", 2) if number % 2 else box.take(f"round {number}", [1, 2])
        assert not box.has_any(f"round {number}")
    box.take("gradient", [2])
    box.take("gradient")
    assert box._waiting == {}


def test_no_more_updates_come_together_than_a_header_may_count() -> None:
    """Then a second letter begins, so that the count stays right and can be sent."""
    box, many = Mailbox(TAGS), STEPS_LIMIT - 1
    box.deliver(replace(letter(1, 1.0, "gradient", weight=many), steps=tuple(range(many))))
    for step in range(3):
        box.deliver(letter(1, 10.0, "gradient", step=many + step))
    first, second = box.take("gradient")
    assert (first.count, float(first.tensor), first.weight) == (STEPS_LIMIT, 11.0, STEPS_LIMIT)
    assert (second.count, float(second.tensor), second.weight) == (2, 20.0, 2)
    assert first.steps + second.steps == tuple(range(many + 3))


# Folds


def test_fold_sum_writes_only_into_what_is_its_own() -> None:
    sent, later = letter(1, 1.0), letter(1, 2.0)
    folded = fold_sum(sent, later)
    assert (float(sent.tensor), float(later.tensor), float(folded.tensor)) == (1.0, 2.0, 3.0)
    again = fold_sum(folded, letter(1, 4.0))
    assert again.tensor.data_ptr() == folded.tensor.data_ptr(), "the private sum is reused"
    assert float(again.tensor) == 7.0


def test_fold_sum_joins_the_bitmaps() -> None:
    some, others, every = (replace(letter(1, 1.0), present=bits) for bits in (0b01, 0b10, None))
    assert fold_sum(some, others).present == 0b11
    assert fold_sum(some, every).present is None


def test_fold_sum_of_steps_without_samples() -> None:
    """They have nothing to add, so they don't count, whatever the rule makes of the letter."""
    for two in ((letter(1, 0.0, weight=0), letter(1, 10.0)), (letter(1, 10.0), letter(1, 0.0, weight=0))):
        folded = fold_sum(*two)
        assert (float(folded.tensor), folded.count, folded.weight) == (10.0, 1, 1.0)


def test_a_fold_that_keeps_an_old_tensor_gets_memory_of_its_own() -> None:
    """What was folded is given back to the transport, which writes the next letters there."""
    mailbox = Mailbox({"a": Tag("a", fold=lambda older, newer: replace(newer, note={}))})
    first, second = letter(1, 1.0, tag="a"), letter(1, 2.0, tag="a")
    mailbox.deliver(first)
    assert list(mailbox.deliver(second)) == [first, second]
    second.tensor.fill_(99.0)
    assert float(mailbox.take("a")[0].tensor) == 2.0


parts = st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 64)), min_size=1, max_size=6)


@given(parts)
def test_fold_sum_keeps_the_mean_over_samples(several: list[tuple[float, int]]) -> None:
    """tensor / count is the mean of what was folded, weighted by samples."""
    folded, *rest = (letter(1, value, step=i, weight=n) for i, (value, n) in enumerate(several))
    for each in rest:
        folded = fold_sum(folded, each)
    expected = sum(value * n for value, n in several) / sum(n for _, n in several)
    assert float(folded.tensor) / folded.count == pytest.approx(expected, abs=1e-9)
    assert folded.steps == tuple(range(len(several)))
    assert folded.weight == sum(n for _, n in several)
