"""All that was found, kept in a file; and how what is missing is found, several processes at a time."""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import harness
from advising.answers import Found, Offer, Question, advised, answered
from advising.situations import STEP_S, TASK, Case
from advising.trainings import (
    RATES,
    SYNCHRONOUS,
    TICKS,
    Reached,
    Training,
    is_lock_step,
    learned,
    tuned,
    twin_of,
)
from fast.lab.planner.efficiency import LOSSES
from fast.loop.loading import strategy_from


@dataclass
class Notes:
    """All that was found so far; a file of it, if one is named."""

    file: Path | None
    offers: dict[str, list[Offer]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    known: dict[str, Reached | None] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)

    @staticmethod
    def of(file: Path | None) -> Notes:
        if file is None or not file.exists():
            return Notes(file)
        data = json.loads(file.read_text())
        if data["terms"] != _terms():
            sys.exit(f"{file} was made with {data['terms']}, and this is {_terms()}: name another file")
        same = data["efficiency"] == _efficiency()
        offers = data["offers"] if same else {}  # the order is another one now
        return Notes(
            file,
            {key: [Offer(**each) for each in offered] for key, offered in offers.items()},
            data["rates"],
            {key: None if each is None else Reached(**each) for key, each in data["known"].items()},
            {
                key: {call: None if each is None else (each[0], each[1]) for call, each in found.items()}
                for key, found in data["found"].items()
            },
        )

    def keep(self, summary: Mapping[str, Any] | None = None) -> None:
        if self.file is None:
            return
        data = {
            "schema": 1,
            "terms": _terms(),
            "efficiency": _efficiency(),
            "offers": {key: [asdict(each) for each in offers] for key, offers in self.offers.items()},
            "rates": self.rates,
            "known": {key: each and asdict(each) for key, each in self.known.items()},
            "found": self.found,
            **({} if summary is None else {"summary": summary}),
        }
        whole = self.file.with_suffix(".part")
        whole.write_text(json.dumps(data, indent=1) + "\n")
        whole.replace(self.file)


def _terms() -> dict[str, Any]:
    return {"task": TASK, "rates": list(RATES), "ticks": TICKS, "step_s": STEP_S}


def _efficiency() -> dict[str, list[float]]:
    return {kind: list(loss.row) for kind, loss in LOSSES.items()}


def tuned_key(call: str, workers: int) -> str:
    return f"{call} on {workers}"


def known_key(call: str, workers: int, seed: int) -> str:
    return f"{call} on {workers} with seed {seed}"


# Finding it


Do = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@contextmanager
def several(processes: int) -> Iterator[Do]:
    """Jobs are independent and seeded, so that it makes no difference who does which."""
    if processes == 1:
        yield lambda work, jobs: map(work, jobs)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, torch.set_num_threads, (1,)) as pool:
        yield lambda work, jobs: _in_turn(pool, processes, work, jobs)


def _in_turn(
    pool: ProcessPoolExecutor, processes: int, work: Callable[[Any], Any], jobs: Sequence[Any]
) -> Iterator[Any]:
    """Results in the order of the jobs, of which few are under way: whoever stops waits for those only."""
    under_way: deque[Future[Any]] = deque()
    for job in jobs:
        under_way.append(pool.submit(work, job))
        if len(under_way) > processes:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


class Paused(Exception):
    """Time is up."""


@dataclass(frozen=True)
class Filling:
    """Adds what is missing to the notes, until the time is up."""

    notes: Notes
    do: Do
    until_s: float = math.inf

    def all(self, cases: Sequence[Case]) -> None:
        """Everything about these situations, step by step; what is known already isn't done again."""
        notes = self.notes
        self._fill("advised", notes.offers, {case.key: case for case in cases}, advised)
        pairs = {(call, case.workers) for case in cases for call in trained_calls(notes, case)}
        self._fill("rates tuned", notes.rates, {tuned_key(*pair): pair for pair in sorted(pairs)}, tuned)
        self._fill("trained in lock-step", notes.known, trainings_of(notes, cases), learned)
        for case in cases:
            if set(notes.found.get(case.key, ())) != {offer.call for offer in notes.offers[case.key]}:
                notes.found.pop(case.key, None)
        questions = {case.key: question_of(notes, case) for case in cases}
        self._fill("situations simulated", notes.found, questions, answered)

    def _fill(
        self, said: str, place: dict[str, Any], jobs: Mapping[str, Any], work: Callable[[Any], Any]
    ) -> None:
        missing = [key for key in jobs if key not in place]
        results = self.do(work, [jobs[key] for key in missing])
        for number, (key, result) in enumerate(zip(missing, results, strict=True), 1):
            place[key] = result
            self.notes.keep()
            if number % 10 == 0 or number == len(missing):
                harness.note(f"{number} of {len(missing)} {said}")
            if time.monotonic() > self.until_s:
                raise Paused


def trainings_of(notes: Notes, cases: Sequence[Case]) -> dict[str, Training]:
    """All that are needed of calls in lock-step, each once."""
    return {
        known_key(call, case.workers, case.seed): Training(
            call, case.workers, case.seed, notes.rates[tuned_key(call, case.workers)]
        )
        for case in cases
        for call in trained_calls(notes, case)
        if is_lock_step(call)
    }


def trained_calls(notes: Notes, case: Case) -> list[str]:
    """Each once, with synchronous training, to which samples are compared, even where it isn't allowed."""
    base = strategy_from(SYNCHRONOUS).call
    return list(dict.fromkeys([base, *(twin_of(offer.call) for offer in notes.offers[case.key])]))


def question_of(notes: Notes, case: Case) -> Question:
    offers = notes.offers[case.key]
    return Question(
        case,
        tuple(offers),
        {offer.call: notes.rates[tuned_key(twin_of(offer.call), case.workers)] for offer in offers},
        {
            offer.call: notes.known[known_key(twin_of(offer.call), case.workers, case.seed)]
            for offer in offers
            if is_lock_step(offer.call)
        },
    )
