"""What is held back, in pieces or whole: nothing is lost, nothing is overtaken, memory stays bounded."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.codecs import error_feedback, top_k
from fast.core import GRADIENT, Letter, Mailbox, Tag, fold_sum
from fast.core.buckets import bucket_cuts, buckets_of
from fast.core.coding import Coding
from fast.core.intake import Intake
from fast.errors import WireError
from fast.runtime.outbox import Outbox
from fast.view import Layout

LAYOUT = Layout.of([("a", (3, 4)), ("b", (20,)), ("c", (2,))], torch.float64)
CUTS = bucket_cuts(LAYOUT, 1)
TAGS = {"gradient": Tag("gradient", carries=GRADIENT, fold=fold_sum), "each": Tag("each")}


def letters(tag: str, step: int, whole: bool) -> list[Letter]:
    """A gradient of ones times 2 to the power of the step, so that a sum tells its terms."""
    flat = torch.full((LAYOUT.size,), 2.0**step, dtype=torch.float64)
    cuts = [(slice(0, LAYOUT.size), LAYOUT.everything)] if whole else CUTS
    return [
        Letter(0, tag, bucket.values.clone(), steps=(step,), present=bucket.segments, part=bucket.part)
        for bucket in buckets_of(flat, cuts)
    ]


@given(
    tag=st.sampled_from(["gradient", "each"]),
    wholes=st.lists(st.booleans(), min_size=1, max_size=8),
    room=st.lists(st.integers(0, 3), max_size=60),
    reading=st.lists(st.booleans(), max_size=8),
)
def test_everything_arrives_once_and_in_order(
    tag: str, wholes: list[bool], room: list[int], reading: list[bool]
) -> None:
    """Before each piece is sent the receiver makes some room; in the end all that it needs."""
    outbox, rooms, reads, free = Outbox(TAGS, lambda: LAYOUT), deque(room), deque(reading), 0
    posted: list[Letter] = []

    def post(letter: Letter) -> bool:
        nonlocal free
        free -= 1
        if free >= 0:
            posted.append(letter)
        return free >= 0

    def flush() -> None:
        nonlocal free
        free = rooms.popleft() if rooms else 1000
        outbox.flush(post)

    for step, whole in enumerate(wholes):
        for letter in letters(tag, step, whole):
            flush()
            if outbox.holds(tag) or not post(letter):
                outbox.put(letter)
    while len(outbox):
        flush()
    assert not outbox.holds(tag)
    box, intake = Mailbox(TAGS), Intake(TAGS, lambda sender: LAYOUT)
    read: list[Letter] = []
    for letter in posted:
        taken = intake.take(letter)
        if taken is not None:
            box.deliver(taken)
            if reads.popleft() if reads else False:
                read += box.take(tag)
    read += box.take(tag)
    assert [step for letter in read for step in letter.steps] == list(range(len(wholes)))
    assert all(letter.present in (None, LAYOUT.everything) for letter in read)
    for letter in read:
        assert torch.equal(
            letter.tensor, torch.full_like(letter.tensor, sum(2.0**step for step in letter.steps))
        )
    if tag == "each":
        assert all(letter.count == 1 for letter in read)


def test_a_receiver_that_never_reads_costs_one_letter() -> None:
    outbox = Outbox(TAGS, lambda: LAYOUT)
    for step in range(20):
        for letter in letters("gradient", step, whole=step % 3 == 0):
            outbox.put(letter)
    assert len(outbox) == 1
    (waiting,) = outbox.drop()
    assert waiting.count == 20
    assert float(waiting.tensor[0]) == 2.0**20 - 1
    assert len(outbox) == 0 and not outbox.holds("gradient")


def test_encoded_pieces_are_put_together_as_values() -> None:
    """With feedback nothing is lost: what arrives in the end is all that was sent."""
    codec, coding = error_feedback(top_k(0.4)), Coding(0, 0, LAYOUT, torch.device("cpu"))
    intake = Intake(TAGS, lambda sender: LAYOUT)
    sent, arrived = torch.zeros(2, LAYOUT.size, dtype=torch.float64)
    for step in range(40):
        flat = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(step)).double() * (step < 10)
        sent += flat
        for bucket in buckets_of(flat, CUTS):
            piece = Letter(
                0, "gradient", bucket.values, steps=(step,), present=bucket.segments, part=bucket.part
            )
            taken = intake.take(coding.encoded(piece, codec))
            if taken is not None:
                assert bucket.number == len(CUTS) - 1
                assert taken.codec is None and taken.part is None and taken.present is None
                arrived += taken.tensor
    assert torch.allclose(arrived, sent)


@pytest.mark.parametrize(
    "part", [(0, 4, LAYOUT.size + 1), (0, 5, LAYOUT.size), (LAYOUT.size, LAYOUT.size + 4, LAYOUT.size)]
)
def test_pieces_that_do_not_fit_are_refused(part: tuple[int, int, int]) -> None:
    intake = Intake(TAGS, lambda sender: LAYOUT)
    with pytest.raises(WireError):
        intake.take(Letter(3, "gradient", torch.zeros(4, dtype=torch.float64), steps=(0,), part=part))
