"""Letters as frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fast.core.framing import DTYPES, copied_into, frame_of, header_of, letter_from, letter_of, lies_flat
from fast.core.letter import Letter
from fast.errors import UsageError, WireError
from fast.wire import (
    HEADER_BYTES,
    HEADER_LIMIT_BYTES,
    ITEM_BYTES,
    STEPS_LIMIT,
    FrameReader,
    decode_header,
    encode_header,
)


def there_and_back(letter: Letter) -> Letter:
    header = encode_header(header_of(letter))
    assert len(header) <= HEADER_LIMIT_BYTES
    return letter_of(decode_header(header), letter.tensor.reshape(-1).view(torch.uint8))


def through_a_stream(letter: Letter, portion: int = 100) -> Letter:
    data = b"".join(frame_of(letter))
    reader = FrameReader(10**6)
    ((header, memory),) = [
        frame for at in range(0, len(data), portion) for frame in reader.feed(data[at : at + portion])
    ]
    return letter_from(header, memory, letter.sender)


# Steps


@pytest.mark.parametrize(
    "steps", [(), (7,), (3, 4, 5, 9), tuple(range(5000)), tuple(range(0, 300, 2)), tuple(range(STEPS_LIMIT))]
)
def test_steps_survive(steps: tuple[int, ...]) -> None:
    assert there_and_back(Letter(1, "a", torch.ones(3), steps)).steps == steps


def test_of_many_scattered_steps_the_number_and_the_newest_survive() -> None:
    steps = tuple(range(0, 10_000, 2))
    back = there_and_back(Letter(1, "a", torch.ones(3), steps, note={"share": 0.25}))
    assert back.count == len(steps)
    assert back.steps[-150:] == steps[-150:]


def test_more_updates_than_a_header_may_count_are_refused_where_they_are_sent() -> None:
    with pytest.raises(UsageError, match="65537 updates in one letter"):
        encode_header(header_of(Letter(1, "a", torch.ones(3), tuple(range(STEPS_LIMIT + 1)))))


# Everything that is written on a letter


FULL: dict[str, Any] = {
    "sender": 5,
    "tag": "fast.3.piece",
    "tensor": torch.arange(7, dtype=torch.uint8),
    "steps": (4, 5, 9),
    "view": 2,
    "version": 70_000,
    "weight": 0.75,
    "note": {"share": 0.25, "words": ["a", "b"], "none": None},
    "present": (1 << 90) + 5,
    "codec": ["chain", {"codecs": [["clip", {"norm": 1.0}], ["top_k", {"fraction": 0.5}]]}],
    "dtype": torch.float16,
    "shape": (2, 7),
    "part": (14, 28, 100),
}


def test_all_that_is_written_on_a_letter_survives() -> None:
    letter = Letter(**FULL)
    for back in (there_and_back(letter), through_a_stream(letter)):
        assert back.tensor.tolist() == letter.tensor.tolist()
        assert back == replace(letter, tensor=back.tensor, private=back.private)


def test_the_sender_is_whoever_sent_it() -> None:
    header, payload = header_of(Letter(**FULL)), torch.zeros(7, dtype=torch.uint8)
    assert letter_of(header, payload, sender=5).sender == 5
    with pytest.raises(WireError, match="participant 4 brings a letter that says it is from 5"):
        letter_of(header, payload, sender=4)


def test_a_header_that_lies_about_the_size_is_refused() -> None:
    header = header_of(Letter(1, "a", torch.ones(3), (0,)))
    with pytest.raises(WireError, match="announces 12 bytes and brings 8"):
        letter_of(header, torch.zeros(8, dtype=torch.uint8))


# Values


def test_the_names_on_the_wire_are_those_of_torch() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == dict(ITEM_BYTES)
    assert all(getattr(torch, name) is dtype for name, dtype in DTYPES.items())


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_through_a_stream(name: str) -> None:
    dtype = DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 2 if name == "bool" else 256, 12 * dtype.itemsize, np.uint8)
    cube = raw.reshape(2, 3, 2, dtype.itemsize)
    tensor = torch.from_numpy(raw).view(dtype).view(2, 3, 2)
    for sent, expected in (
        (tensor, cube),
        (tensor.permute(2, 0, 1), cube.transpose(2, 0, 1, 3)),
        (tensor[:, ::2, 1:], cube[:, ::2, 1:]),
        (tensor[1, 2, 1], cube[1, 2, 1]),
        (tensor[:0], cube[:0]),
    ):
        letter = Letter(0, "a", sent, (0,))
        assert sum(map(len, frame_of(letter))) == HEADER_BYTES + expected.size
        back = through_a_stream(letter).tensor
        assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
        assert back.reshape(-1).view(torch.uint8).tolist() == expected.reshape(-1).tolist()


def test_what_lies_flat_goes_into_a_stream_without_a_copy() -> None:
    tensor = torch.zeros(5, 3)
    _, payload = frame_of(Letter(0, "a", tensor, (0,)))
    _, turned = frame_of(Letter(0, "a", tensor.T, (0,)))
    tensor[0, 0] = 1.0
    assert np.frombuffer(payload, np.float32)[0] == 1.0
    assert np.frombuffer(turned, np.float32)[0] == 0.0


@given(st.permutations(range(3)), st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_any_strides_are_copied_in_the_order_of_the_elements(order: list[int], steps: list[int]) -> None:
    grid = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    cut = tuple(slice(None, None, step) for step in steps)
    expected = grid[cut].transpose(order)
    memory = torch.zeros(expected.size * 4, dtype=torch.uint8)
    found = copied_into(memory, torch.from_numpy(grid)[cut].permute(*order))
    assert memory.numpy().tobytes() == expected.tobytes()
    assert found.data_ptr() == memory.data_ptr() and found.tolist() == expected.tolist()


def test_views_that_only_say_that_they_are_conjugate_travel_as_values() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    for sent in (values.conj(), values.conj().imag, values[:1].conj().imag):
        assert not lies_flat(sent)
        assert through_a_stream(Letter(0, "a", sent, (0,))).tensor.tolist() == sent.tolist()


@pytest.mark.parametrize(
    "tensor", [torch.eye(3).to_sparse(), torch.zeros(2, dtype=torch.bits8)], ids=["sparse", "bits"]
)
def test_what_is_not_plain_numbers_is_refused(tensor: Tensor) -> None:
    with pytest.raises(UsageError, match=r"tensor of torch.\w+ can't be sent. Dense tensors of float64"):
        header_of(Letter(0, "a", tensor, (0,)))


def test_encoded_values_of_a_kind_that_does_not_travel_are_refused() -> None:
    letter = Letter(**{**FULL, "dtype": torch.qint8})
    with pytest.raises(UsageError, match="is not one of those that travel"):
        encode_header(header_of(letter))
