"""What a journal knows from before is checked before anything is run: its file may be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from fast.lab.journal import DAMAGED, Journal, damaged_line
from fast.lab.results import Result, summary_of
from fast.lab.tuning import Trial


class _Time(msgspec.Struct):
    at: str


class _Alone(msgspec.Struct):
    samples_per_s: float | None


_KINDS: Mapping[str, type[msgspec.Struct]] = MappingProxyType(
    {"run of ": Result, "trial ": Trial, "started": _Time, "ended": _Time, "alone": _Alone}
)
"""How the keys of a journal begin, and what is known by them."""


def check_known(journal: Journal) -> None:
    """Refuse what can't have been written by a comparison."""
    for key, values in journal.finished.items():
        kind = next((kind for start, kind in _KINDS.items() if key.startswith(start)), None)
        try:
            known = msgspec.convert(values, kind or dict[str, Any])
            if isinstance(known, Result):
                known.to_json(), summary_of([known])
        except DAMAGED as error:
            raise damaged_line(journal.metrics or "the journal", repr(key), error) from error
