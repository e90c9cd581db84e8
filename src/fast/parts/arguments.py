"""What arguments of any part or preset may be, checked in one way and said in one way."""

from __future__ import annotations

from math import inf

from fast.errors import UsageError


def check_whole(name: str, key: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what isn't a whole number from `least` on, or up to `most`."""
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and least <= value <= (inf if most is None else most)
    ):
        return
    upwards = "on" if most is None else f"to {most}"
    raise UsageError(f"{name}({key}={value!r}): a whole number from {least} {upwards} is needed")


def check_flag(name: str, key: str, value: object) -> None:
    """Refuse what is neither True nor False: 'no' would be as good as yes."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}({key}={value!r}): True or False is needed")
