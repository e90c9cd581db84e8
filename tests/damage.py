"""Files that are damaged in every way that comes to mind, the same ones in every run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

STRANGE = (
    None, True, -1, 0, 1e308, -1e-300, 10**30, 3.5, "", "x", "nan", "\0", [], {}, [None], [[1]], {"a": 1}
)  # fmt: skip
"""Values to put where another one was."""
DEEP = (b"[" * 100_000, b"[" * 700 + b"]" * 700, b'{"a":' * 700 + b"1" + b"}" * 700)
Path = tuple[str | int, ...]


def damaged(content: bytes, seed: int) -> bytes:
    """This JSON cut off, with other bytes, without a key, with another value, or with deep nesting in it."""
    random = Random(seed)
    match seed % 5:
        case 0:
            return content[: random.randrange(len(content))]
        case 1:
            return overwritten(content, random)
        case 2:
            return _without(json.loads(content), random)
        case 3:
            return _replaced(json.loads(content), random, json.dumps(random.choice(STRANGE)).encode())
        case _:
            return _replaced(json.loads(content), random, random.choice(DEEP))


def overwritten(content: bytes, random: Random) -> bytes:
    """With a few bytes that are others."""
    changed = bytearray(content)
    for _ in range(random.randrange(1, 9)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _without(data: Any, random: Random) -> bytes:
    place = random.choice([*_places(data)])
    del _parent(data, place)[place[-1]]
    return json.dumps(data).encode()


def _replaced(data: Any, random: Random, value: bytes) -> bytes:
    place = random.choice([*_places(data)])
    _parent(data, place)[place[-1]] = "@here@"
    return json.dumps(data).encode().replace(b'"@here@"', value)


def _places(data: Any, above: Path = ()) -> Iterator[Path]:
    """Of everything inside."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*above, key)
        yield from _places(value, (*above, key))


def _parent(data: Any, place: Path) -> Any:
    for key in place[:-1]:
        data = data[key]
    return data
