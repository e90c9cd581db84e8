"""Kinds of values in a cluster file: how each is read, and how it is written so that it reads back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fast.errors import UsageError
from fast.sim.cluster.compute import Speed, parse_speeds, parse_straggler
from fast.sim.cluster.units import duration_text, parse_rate, parse_seconds, rate_text
from fast.sim.cluster.work import Measured


@dataclass(frozen=True)
class Kind:
    """`read` gets what the TOML parser found, `write` gives TOML."""

    read: Callable[[Any], Any]
    write: Callable[[Any], str]


@dataclass(frozen=True)
class Entry:
    """One key of a table, and the field that it stands for."""

    key: str
    field: str
    kind: Kind


def _text(value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{value!r} should be a text with its unit, such as {example}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{value!r} should be a number")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{value!r} should be a whole number")
    return value


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{value!r} should be true or false")
    return value


def _list(value: Any, of: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{value!r} should be a list of {of}")
    return value


def _seconds(value: Any) -> float:
    return parse_seconds(_text(value, '"20ms"'))


def _speeds(value: Any) -> tuple[Speed, ...]:
    return parse_speeds(_text(value, '"0-3:1,4-7:0.5"'))


def _trace(value: Any) -> tuple[tuple[float, ...], ...]:
    lists = _list(value, 'durations such as ["20ms", "21ms"], or of such lists')
    if not any(isinstance(each, list) for each in lists):
        lists = [lists]
    return tuple(tuple(_seconds(step) for step in _list(own, "durations")) for own in lists)


def _trace_text(trace: tuple[tuple[float, ...], ...]) -> str:
    lists = [_listed([_quoted(duration_text(step_s)) for step_s in own]) for own in trace]
    return lists[0] if len(lists) == 1 else _listed(lists)


def _workers(value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or not all(key.isdecimal() for key in value):
        raise UsageError(f'{value!r} should be workers with their durations, such as {{ 3 = "500ms" }}')
    return {int(worker): _seconds(duration) for worker, duration in value.items()}


def _workers_text(workers_s: dict[int, float]) -> str:
    return "{ " + ", ".join(f"{who} = {_quoted(duration_text(s))}" for who, s in workers_s.items()) + " }"


def _means(value: Any) -> tuple[Measured, ...]:
    rows = _list(value, 'rows such as [4, 1000000, "0.5ms"]')
    if not all(isinstance(row, list) and len(row) == 3 for row in rows):
        raise UsageError('means are rows of members, bytes and a duration, such as [4, 1000000, "0.5ms"]')
    return tuple((_whole(members), _whole(nbytes), _seconds(took)) for members, nbytes, took in rows)


def _means_text(means: tuple[Measured, ...]) -> str:
    rows = (
        f"    [{members}, {nbytes}, {_quoted(duration_text(took))}],\n" for members, nbytes, took in means
    )
    return "[\n" + "".join(rows) + "]"


def _cold(value: Any) -> tuple[tuple[float, float], ...]:
    rows = _list(value, 'pairs such as ["2ms", "100us"]')
    if not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise UsageError(
            'cold are pairs of a sleep and what work then takes longer, such as ["2ms", "100us"]'
        )
    return tuple((_seconds(slept), _seconds(extra)) for slept, extra in rows)


def _cold_text(cold: tuple[tuple[float, float], ...]) -> str:
    return _listed([_listed([_quoted(duration_text(each)) for each in pair]) for pair in cold])


def _crowding(value: Any) -> tuple[tuple[int, float], ...]:
    rows = _list(value, "pairs such as [8, 1.3]")
    if not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise UsageError("crowding are pairs of participants on a host and a factor, such as [8, 1.3]")
    return tuple((_whole(many), _number(factor)) for many, factor in rows)


def _crowding_text(crowding: tuple[tuple[int, float], ...]) -> str:
    return _listed([f"[{many}, {factor!r}]" for many, factor in crowding])


def _listed(items: list[str]) -> str:
    return "[" + ", ".join(items) + "]"


def _quoted(text: str) -> str:
    return json.dumps(text)


DURATION = Kind(_seconds, lambda seconds: _quoted(duration_text(seconds)))
RATE = Kind(lambda value: parse_rate(_text(value, '"1gbit"')), lambda rate: _quoted(rate_text(rate)))
BYTE_RATE = Kind(
    lambda value: parse_rate(_text(value, '"4gbyte"')), lambda rate: _quoted(rate_text(rate, "byte"))
)
NUMBER = Kind(_number, repr)
WHOLE = Kind(_whole, str)
SWITCH = Kind(_yes_or_no, lambda value: str(value).lower())
STRAGGLER = Kind(
    lambda value: parse_straggler(_text(value, '"4x"')), lambda straggler: _quoted(str(straggler))
)
SPEEDS = Kind(_speeds, lambda speeds: _quoted(",".join(map(str, speeds))))
TRACE = Kind(_trace, _trace_text)
WORKERS = Kind(_workers, _workers_text)
COLD = Kind(_cold, _cold_text)
CROWDING = Kind(_crowding, _crowding_text)
MEANS = Kind(_means, _means_text)

__all__ = [
    "BYTE_RATE",
    "COLD",
    "CROWDING",
    "DURATION",
    "MEANS",
    "NUMBER",
    "RATE",
    "SPEEDS",
    "STRAGGLER",
    "SWITCH",
    "TRACE",
    "WHOLE",
    "WORKERS",
    "Entry",
    "Kind",
]
