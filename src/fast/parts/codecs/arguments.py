"""What the arguments of codecs may be. They come from people and, over the wire, from strangers."""

from __future__ import annotations

from sys import float_info

from fast.errors import UsageError
from fast.parts.arguments import check_whole


def check_ratio(name: str, ratio: float) -> None:
    if not _is_number(ratio) or not 0 < ratio <= 1:
        raise UsageError(
            f"{name}(ratio={ratio!r}): a ratio is above 0 and at most 1; 0.01 sends one value in a hundred"
        )


def check_positive(name: str, **given: float) -> None:
    for key, value in given.items():
        if not _is_number(value) or not 0 < value <= float_info.max:
            raise UsageError(f"{name}({key}={value!r}): a finite number above 0 is needed")


def check_share(name: str, **given: float) -> None:
    for key, value in given.items():
        if not _is_number(value) or not 0 <= value < 1:
            raise UsageError(f"{name}({key}={value!r}): a number from 0 to below 1 is needed")


def check_integer(name: str, least: int, most: int, **given: int) -> None:
    for key, value in given.items():
        check_whole(name, key, value, least, most)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
