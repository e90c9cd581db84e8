"""`fast simulate --fuzz`: many seeds of random machines and faults, until a strategy breaks a promise."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fast.cli.comparing import check_json
from fast.cli.display import write_json
from fast.cli.options import Asked
from fast.core import Strategy
from fast.errors import FastError, UsageError
from fast.lab import load_task
from fast.lab.fuzzing import command_of, fuzz_task
from fast.loop.loading import strategies_from
from fast.sim.checkers import Seen
from fast.sim.cluster.words import counted
from fast.sim.fuzzing import Case, Outcome

TASK = "quadratic"
_QUIET_S = 10.0


_ASKED = ("task", "strategies", "seed")
"""What may be chosen; all else is drawn."""
_FOLDER = ("name", "runs", "again", "resume")


def check_fuzzed(asked: Asked, **others: str | int | None) -> None:
    """Refuse options that would be ignored."""
    given = [each.name for each in fields(asked) if getattr(asked, each.name) is not None]
    given += [name for name, value in others.items() if value is not None]
    for name in given:
        if name in _FOLDER:
            raise UsageError(f"--fuzz has no folder of results: it prints what it finds; leave out --{name}")
        if name not in _ASKED:
            said = name.removesuffix("_s")
            raise UsageError(
                f"--fuzz draws workers, steps, machines and faults from each seed; leave out --{said}"
            )


def fuzz_strategies(
    task: str | None, strategies: str | None, count: int, first: int, json: str | None = None
) -> int:
    """Fuzz each of them over `count` seeds from `first` on; the exit code is 1 if anything was found."""
    check_json(json)
    if count < 1:
        raise UsageError(f"--fuzz {count}: how many seeds to try, at least 1")
    if strategies is None:
        raise UsageError("which strategy? For example `fast simulate --strategies gossip --fuzz 100`")
    name = TASK if task is None else task
    problem = load_task(name)
    told: list[dict[str, Any]] = []
    for strategy in strategies_from(strategies):
        with FuzzDisplay(repr(strategy), count) as display:
            outcome = fuzz_task(problem, strategy, range(first, first + count), display.tell)
        finding = outcome.finding
        command = None if finding is None else command_of(problem, name, strategy, as_typed(finding.case))
        words = passed(strategy, outcome, first) if command is None else found(strategy, outcome, command)
        print(words, file=sys.stderr if json == "-" else sys.stdout)
        told.append(as_data(strategy, outcome, first, command))
    if json is not None:
        write_json(json, {"schema": 1, "task": name, "strategies": told})
    return int(any(each["finding"] for each in told))


def as_typed(case: Case) -> Case:
    """The same case in words that are accepted: when it was made smaller it kept the speeds of all workers."""
    speeds = case.machines.speeds
    there = None if speeds is None else ",".join(speeds.split(",")[: case.workers])
    return replace(case, machines=replace(case.machines, speeds=there))


def as_data(strategy: Strategy, outcome: Outcome, first: int, command: str | None) -> dict[str, Any]:
    """What is printed, for programs."""
    finding = outcome.finding
    return {
        "strategy": repr(strategy),
        "seeds": [first, first + outcome.seeds - 1],
        "faults": outcome.faults,
        **asdict(outcome.seen),
        "checked": list(outcome.promises),
        "finding": None
        if finding is None
        else {
            "seed": finding.case.seed,
            "error": f"{type(finding.error).__name__}: {finding.error}",
            "command": command,
        },
    }


# In words


def passed(strategy: Strategy, outcome: Outcome, first: int) -> str:
    lines = [
        f"{strategy!r}: {counted(outcome.seeds, 'seed')} from {first} on, no violation",
        f"  {_amounts(outcome)}",
        *(f"  checked: {promise}" for promise in outcome.promises),
    ]
    return "\n".join(lines)


def found(strategy: Strategy, outcome: Outcome, command: str) -> str:
    finding = outcome.finding
    assert finding is not None
    case, drawn = finding.case, finding.drawn
    clauses = len(drawn.scenario.clauses)
    lines = [
        f"{strategy!r}: seed {case.seed} fails, after {counted(outcome.seeds - 1, 'seed')} without a violation",
        f"  {_amounts(outcome)}",
        f"  drawn: {counted(drawn.workers, 'worker')}, {counted(drawn.steps, 'step')}, {counted(clauses, 'fault')}",
        f"  made smaller in {counted(finding.tries, 'run')}: {counted(case.workers, 'worker')}, "
        f"{counted(case.steps, 'step')}, {case.scenario or 'nothing goes wrong'}",
        "",
        *(f"  {line}" for line in _error(finding.error).splitlines()),
        "",
        "see it again with:",
        f"  {command}",
    ]
    return "\n".join(lines)


def _amounts(outcome: Outcome) -> str:
    """What was watched, and what of it was out of the ordinary."""
    seen = outcome.seen
    watched = (
        (seen.events, "event"),
        (seen.steps, "step"),
        (seen.letters, "letter"),
        (seen.rounds, "contribution"),
        (outcome.faults, "fault"),
    )
    special = (
        (seen.died, "death"),
        (seen.came, "arrival"),
        (seen.dropped, "dropped letter"),
        (seen.doubled, "doubled letter"),
    )
    return "; with ".join(words for each in (watched, special) if (words := _listed(each)))


def _listed(amounts: Sequence[tuple[int, str]]) -> str:
    return ", ".join(counted(number, what) for number, what in amounts if number)


def _error(error: Exception) -> str:
    """What our own errors say is enough; of others one wants to know where they come from."""
    if isinstance(error, FastError):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error)).rstrip()


# While it runs


class FuzzDisplay:
    """One live line on a terminal, a plain one now and then elsewhere; all of it on standard error."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._spoke = time.monotonic()
        title = TextColumn("{task.description}", markup=False)
        columns = (title, BarColumn(20), TextColumn("{task.fields[words]}", markup=False))
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=self._console, transient=True, disable=not self._live
        )
        self._bar = self._progress.add_task(name, total=count, words="starting")

    @property
    def _live(self) -> bool:
        return self._console.is_terminal

    def __enter__(self) -> FuzzDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def tell(self, seeds: int, seen: Seen) -> None:
        words = f"{seeds} of {self._count} seeds, {seen.events:,} events"
        self._progress.update(self._bar, completed=seeds, words=words)
        if not self._live and time.monotonic() - self._spoke > _QUIET_S:
            self._spoke = time.monotonic()
            print(f"fast: {self._name}: {words}", file=sys.stderr)
