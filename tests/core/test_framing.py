"""Letters as frames."""

from __future__ import annotations

import pytest
import torch

from fast.core.framing import header_of, letter_of
from fast.core.letter import Letter
from fast.errors import WireError
from fast.wire import HEADER_LIMIT_BYTES, decode_header, encode_header


def there_and_back(letter: Letter) -> Letter:
    header = encode_header(header_of(letter))
    assert len(header) <= HEADER_LIMIT_BYTES
    return letter_of(decode_header(header), letter.tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("steps", [(7,), (3, 4, 5, 9), tuple(range(5000)), tuple(range(0, 300, 2))])
def test_steps_survive(steps: tuple[int, ...]) -> None:
    assert there_and_back(Letter(1, "a", torch.ones(3), steps)).steps == steps


def test_of_many_scattered_steps_the_number_and_the_newest_survive() -> None:
    steps = tuple(range(0, 10_000, 2))
    back = there_and_back(Letter(1, "a", torch.ones(3), steps, note={"share": 0.25}))
    assert back.count == len(steps)
    assert back.steps[-150:] == steps[-150:]


def test_a_header_that_lies_about_the_size_is_refused() -> None:
    header = header_of(Letter(1, "a", torch.ones(3), (0,)))
    with pytest.raises(WireError, match="announces 12 bytes and brings 8"):
        letter_of(header, torch.zeros(8, dtype=torch.uint8))
