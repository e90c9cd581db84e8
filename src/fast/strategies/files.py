"""`file.py:Name` inside the text of a strategy: a path is not Python, so it is covered up before `ast` sees it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fast.errors import UsageError
from fast.parts import Rule
from fast.parts.merge import Arrived

QUOTED_OR_FILE = re.compile(
    r"""'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" |
    (?<![^\s,()\[\]'"=])(?P<path>[^\s,()\[\]'"=]+\.py):(?P<name>[^\W\d]\w*)""",
    re.VERBOSE,
)
_COVERED = re.compile(r"\b_file_([0-9a-f]+)\b")


def covered(text: str) -> str:
    """With a name in the place of every file, from which the file can be read again.

    >>> covered("torus(rule=my.py:merge)")
    'torus(rule=_file_6d792e70793a6d65726765)'
    """
    return QUOTED_OR_FILE.sub(
        lambda found: found[0] if found["path"] is None else f"_file_{found[0].encode().hex()}", text
    )


def uncovered(text: str) -> str:
    """The files again.

    >>> uncovered(covered("torus(rule=my.py:merge)"))
    'torus(rule=my.py:merge)'
    """
    return _COVERED.sub(lambda found: bytes.fromhex(found[1]).decode(), text)


@dataclass(frozen=True)
class RuleFromFile:
    """A merge rule of the user's own. Its text is where it was found, so that other processes find it too."""

    place: str
    rule: Rule

    def __call__(self, own: Tensor, weight: float, arrived: Sequence[Arrived]) -> Tensor:
        return self.rule(own, weight, arrived)

    def __getattr__(self, name: str) -> Any:
        """What the rule says about itself, such as `needs`."""
        if name.startswith("__") or name == "rule":
            raise AttributeError(name)
        return getattr(self.rule, name)

    def __repr__(self) -> str:
        return self.place


def rule_from_file(place: str, found: object) -> RuleFromFile:
    """What was found there, if it can be called as a rule."""
    if isinstance(found, type) or not callable(found) or _required(found) != 3:
        raise UsageError(
            f"{place} is {found!r}, and as an argument only a merge rule is read from a file: a function of "
            "(own, weight, arrived) that returns one tensor. For anything else, write a function there that returns "
            "the strategy with this argument, and name that function."
        )
    return RuleFromFile(place, found)


def _required(function: Any) -> int:
    """How many arguments it must be given, in a row."""
    parameters = inspect.signature(function).parameters.values()
    return sum(each.default is each.empty for each in parameters if each.kind < each.VAR_POSITIONAL)
