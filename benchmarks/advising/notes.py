"""All that was found, kept in a file; and how what is missing is found, several processes at a time."""

from __future__ import annotations

import gc
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
    tuned_as,
    twin_of,
)
from fast.lab.planner.prediction import Prediction
from fast.loop.loading import strategy_from

KEPT_S = 5.0
"""The file is written so often."""


@dataclass
class Notes:
    """All that was found so far; a file of it, if one is named. Predictions of an earlier run stay what they were; what
    the advisor makes of them, and so its offers, is found anew in every run."""

    file: Path | None
    predictions: dict[str, dict[str, Prediction]] = field(default_factory=dict)
    """By situation and call."""
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
        return Notes(
            file,
            {
                key: {call: Prediction(**each) for call, each in predicted.items()}
                for key, predicted in data["predictions"].items()
            },
            {},
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
            "schema": 2,
            "terms": _terms(),
            "predictions": {
                key: {call: each.to_json() for call, each in predicted.items()}
                for key, predicted in self.predictions.items()
            },
            "rates": self.rates,
            "known": {key: each and asdict(each) for key, each in self.known.items()},
            "found": self.found,
            **({} if summary is None else {"summary": summary}),
        }
        whole = self.file.with_suffix(".part")
        whole.write_text(json.dumps(data) + "\n")
        whole.replace(self.file)


def _terms() -> dict[str, Any]:
    return {"task": TASK, "rates": list(RATES), "ticks": TICKS, "step_s": STEP_S}


def tuned_key(call: str, workers: int) -> str:
    return f"{call} on {workers}"


def known_key(call: str, case: Case) -> str:
    data = "" if case.split == "iid" else f", data {case.split}"
    return f"{call} on {case.workers} with seed {case.seed}{data}"


# Finding it


Do = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@contextmanager
def several(processes: int) -> Iterator[Do]:
    """Jobs are independent and seeded, so that it makes no difference who does which."""
    if processes == 1:
        yield lambda work, jobs: map(work, jobs)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, _begin) as pool:
        yield lambda work, jobs: _in_turn(pool, processes, work, jobs)


def _begin() -> None:
    """What was imported stays, so no simulation has to look for garbage in it: that takes longer than some of them."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


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
        self._fill(
            "advised",
            notes.offers,
            {case.key: (case, notes.predictions.get(case.key, {})) for case in cases},
            advised,
            lambda key: notes.predictions.setdefault(key, {}).update(predictions_of(notes.offers[key])),
        )
        pairs = {(tuned_as(call), case.workers) for case in cases for call in trained_calls(notes, case)}
        self._fill("rates tuned", notes.rates, {tuned_key(*pair): pair for pair in sorted(pairs)}, tuned)
        self._fill("trained in lock-step", notes.known, trainings_of(notes, cases), learned)
        for case in cases:
            if set(notes.found.get(case.key, ())) != {offer.call for offer in notes.offers[case.key]}:
                notes.found.pop(case.key, None)
        questions = {case.key: question_of(notes, case) for case in cases}
        self._fill("situations simulated", notes.found, questions, answered)

    def _fill(
        self,
        said: str,
        place: dict[str, Any],
        jobs: Mapping[str, Any],
        work: Callable[[Any], Any],
        then: Callable[[str], None] = lambda key: None,
    ) -> None:
        missing = [key for key in jobs if key not in place]
        results = self.do(work, [jobs[key] for key in missing])
        kept_s = time.monotonic()
        for number, (key, result) in enumerate(zip(missing, results, strict=True), 1):
            place[key] = result
            then(key)
            late = time.monotonic() > self.until_s
            if late or number == len(missing) or time.monotonic() > kept_s + KEPT_S:
                self.notes.keep()
                kept_s = time.monotonic()
            if number % 10 == 0 or number == len(missing):
                harness.note(f"{number} of {len(missing)} {said}")
            if late:
                raise Paused


def predictions_of(offers: Sequence[Offer]) -> dict[str, Prediction]:
    return {offer.asked: offer.prediction for offer in offers}


def trainings_of(notes: Notes, cases: Sequence[Case]) -> dict[str, Training]:
    """All that are needed of calls in lock-step, each once."""
    return {
        known_key(call, case): Training(
            call, case.workers, case.seed, notes.rates[tuned_key(tuned_as(call), case.workers)], case.split
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
    reference = notes.known[known_key(strategy_from(SYNCHRONOUS).call, case)]
    return Question(
        case,
        tuple(offers),
        {offer.call: notes.rates[tuned_key(tuned_as(offer.call), case.workers)] for offer in offers},
        {
            offer.call: notes.known[known_key(twin_of(offer.call), case)]
            for offer in offers
            if is_lock_step(offer.call)
        },
        0 if reference is None else reference.steps,
    )
