"""A scenario: sentences about what goes wrong, joined by ";" or new lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from fast.core import Strategy
from fast.errors import UsageError
from fast.sim.faults import checking
from fast.sim.faults.deeds import Clause, Datagrams, Deed, Moves, Notices, Resends
from fast.sim.faults.reading import read_clause

RESEND_NS = 200_000_000
"""A stream sends again what wasn't confirmed for so long: what TCP waits for at least on most systems."""
NOTICE_NS = 1_000_000_000
"""A death is known after so long, unless told: a few missed signs of life."""

Kind = TypeVar("Kind", bound=Clause)


@dataclass(frozen=True)
class Scenario:
    """What goes wrong in a run. Empty: nothing.

    >>> str(parse_scenario("worker 3 dies at 2000ms ; 1.0% of letters are lost"))
    'worker 3 dies at 2s; 1% of letters are lost'
    """

    clauses: tuple[Clause, ...] = ()

    def of(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """Its clauses of one kind, in order."""
        return tuple(clause for clause in self.clauses if isinstance(clause, kind))

    @cached_property
    def datagrams(self) -> bool:
        """Whether letters go one by one instead of in a stream that keeps their order and loses none."""
        return bool(self.of(Datagrams))

    @cached_property
    def resend_ns(self) -> int:
        return max((clause.after_ns for clause in self.of(Resends)), default=RESEND_NS)

    @cached_property
    def notice_ns(self) -> int:
        return max((clause.after_ns for clause in self.of(Notices)), default=NOTICE_NS)

    @cached_property
    def absent(self) -> frozenset[int]:
        """The workers that are not there at the start, because they join later."""
        joins = (clause for clause in self.of(Moves) if clause.deed is Deed.JOIN)
        return frozenset(worker for clause in joins for worker in clause.who.workers)

    def check(self, strategy: Strategy, workers: int, servers: int) -> None:
        """Refuse what can't be, with this strategy on so many workers and servers, before it runs."""
        checking.check(self.clauses, strategy, checking.Cast(workers, servers, self.notice_ns))

    def __bool__(self) -> bool:
        return bool(self.clauses)

    def __str__(self) -> str:
        return "; ".join(map(str, self.clauses))


def parse_scenario(text: str) -> Scenario:
    """Sentences separated by ";" or new lines; what follows a # is a comment."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    sentences = (sentence for line in lines for sentence in line.split(";"))
    return Scenario(tuple(read_clause(sentence) for sentence in sentences if sentence.strip()))


def read_scenario(given: str) -> Scenario:
    """A scenario as text, or the name of a file that has it."""
    if not _is_file(given):
        if given.strip() and " " not in given.strip():
            raise UsageError(
                f"{given!r} is neither a file nor a sentence. Give sentences such as "
                '"worker 3 dies at 2s; 1% of letters are lost", or a file with one in each line.'
            )
        return parse_scenario(given)
    try:
        return parse_scenario(Path(given).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{given} can't be read as a scenario: {error}") from error


def _is_file(given: str) -> bool:
    try:
        return Path(given).is_file()
    except (OSError, ValueError):  # much too long for a name, or with characters that none has
        return False
