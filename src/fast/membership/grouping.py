"""Groups of workers, as a user writes them."""

from __future__ import annotations

import itertools
import re

from fast.errors import UsageError
from fast.view import Groups

_HOW = "Write 2x4 (two groups of four workers), 0-3,4-7 (the same by their numbers), 0+2,1+3, or all"


def parse_groups(text: str, workers: int) -> Groups:
    """The groups within which sums are made first; `all` is one group. Every worker is in one of them.

    >>> parse_groups("2x2", 4), parse_groups("0+2-3,1", 4)
    (((0, 1), (2, 3)), ((0, 2, 3), (1,)))
    """
    name = text.replace(" ", "").lower()
    if name == "all":
        return (tuple(range(workers)),)
    found = _equal(name, workers) if "x" in name else [_members(part, text) for part in name.split(",")]
    named = sorted(worker for group in found for worker in group)
    if named != list(range(workers)):
        raise UsageError(f"--groups {text}: {_wrong(named, workers)}. {_HOW}.")
    return tuple(sorted(map(tuple, map(sorted, found))))


def _equal(name: str, workers: int) -> list[list[int]]:
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", name)
    if match is None:
        raise UsageError(f"--groups {name}: these are no groups. {_HOW}.")
    groups, each = int(match[1]), int(match[2])
    if groups * each != workers:
        raise UsageError(
            f"--groups {name}: that is {groups * each} workers, and there are {workers}. Change one of them, or name "
            "the workers of each group: 0-2,3."
        )
    return [list(range(k * each, (k + 1) * each)) for k in range(groups)]


def _members(part: str, text: str) -> list[int]:
    found: list[int] = []
    for piece in part.split("+"):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", piece)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--groups {text}: {piece!r} names no workers. {_HOW}.")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def _wrong(named: list[int], workers: int) -> str:
    twice = next((a for a, b in itertools.pairwise(named) if a == b), None)
    if twice is not None:
        return f"worker {twice} is named twice, and each belongs to one group"
    if named[-1] >= workers:
        return f"there is no worker {named[-1]}, only {workers} workers from 0 on"
    missing = next(worker for worker in range(workers) if worker not in named)
    return f"worker {missing} is in no group"
