"""The folder of a run, `runs/NAME/`: run.json says what ran and how it ended, `metrics/` holds the logbooks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from statistics import fmean
from typing import Any, Self, final

import msgspec
from rich.filesize import decimal

from fast.engine import Failure, Job
from fast.errors import UsageError
from fast.runtime.logbook import METRICS, SCHEMA, first_lines, last_lines, metrics_file, totals
from fast.runtime.record import processor, versions
from fast.trace import Meter

RUN, RUNS = "run.json", "runs"
KIND = "fast run"
"""By which run.json of such a folder is told from that of a comparison."""


class NoLog:
    """In place of the folder of a run that isn't logged."""

    def finish(self, failure: Failure | None) -> None: ...

    def summary(self) -> list[str]:
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@final
class RunFolder:
    """The folder of one run, written by the process that starts it. Use it in a `with` statement."""

    def __init__(self, path: Path, facts: dict[str, Any], workers: int) -> None:
        self.path, self.facts = path, facts
        self._workers, self._began, self._finished = workers, time.monotonic(), False

    @staticmethod
    def create(runs: Path, name: str | None, title: str, job: Job) -> RunFolder:
        """A new folder for this job's participants. OSError if it can't be made, UsageError if it is there already."""
        path = _new_folder(runs, name, title)
        (path / METRICS).mkdir()
        folder = RunFolder(path, _facts(title, job), job.workers)
        folder._write()
        job.log = str(path.resolve())
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._finished:
            interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
            self.finish(Failure("the run", "it was interrupted" if interrupted else "it was given up"))

    def finish(self, failure: Failure | None) -> None:
        """Write down how the run ended."""
        self._finished = True
        opening = {line["kind"]: line for line in first_lines(metrics_file(self.path, "worker 0"))}
        joined = opening.get("joined", {})
        self.facts |= {
            "strategy": joined.get("strategy"),
            "parameters": joined.get("parameters"),
            "duration_s": time.monotonic() - self._began,
            "failure": None if failure is None else {"who": failure.who, "message": failure.message},
            "participants": self._totals(),
        }
        with contextlib.suppress(OSError):  # what the participants wrote is there all the same
            self._write()

    def summary(self) -> list[str]:
        """What a finished run did, in three lines at most. A worker that was killed lost the last second of its log."""
        last = f"log: {self.path}; to draw it: fast report {self.path}"
        participants = self.facts["participants"]
        every = [participants.get(f"worker {number}", totals(Meter())) for number in range(self._workers)]
        trained = [each for each in every if each["steps"]]
        if not trained:
            return [last]
        work = _work_in_words(every) if self.facts["failure"] is None else f"logged: {_work_in_words(every)}"
        sent = sum(each["bytes_sent"] for each in participants.values())
        return [work, f"{_time_in_words(trained)}; sent by all: {decimal(sent)}", last]

    def _write(self) -> None:
        beside = self.path / f".{RUN}.new"
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self.facts), indent=1) + b"\n")
        os.replace(beside, self.path / RUN)

    def _totals(self) -> dict[str, Any]:
        """By participant, as far as each has written."""
        names = [f"{kind} {number}" for kind in ("worker", "server") for number in range(self._workers)]
        tails = {name: last_lines(metrics_file(self.path, name)) for name in names}
        found = {name: [line for line in tail if line["kind"] == "totals"] for name, tail in tails.items()}
        return {
            name: {key: value for key, value in lines[-1].items() if key not in ("kind", "at_s")}
            for name, lines in found.items()
            if lines
        }


RunLog = RunFolder | NoLog


def open_log(wanted: bool, job: Job, runs: str, name: str | None, title: str) -> RunLog:
    """The log of this run, if one is wanted. Where it can't be written, a line says so and the run goes on without."""
    if not wanted:
        return NoLog()
    try:
        return RunFolder.create(Path(runs), name, title, job)
    except OSError as error:
        say(
            f"no log of this run: {runs} can't be written ({error.strerror}). Choose another folder for runs."
        )
        return NoLog()


def say(line: str) -> None:
    print(f"fast: {line}", file=sys.stderr, flush=True)


def candidates_for(runs: Path, name: str | None, title: str) -> Iterator[Path]:
    """Candidates for a new folder: the name that was given, else one made of title and time."""
    if name is not None:
        if name != Path(name).name or name in ("", ".", ".."):
            raise UsageError(f"--name {name}: a name of a folder in {runs}, without slashes")
        return iter((runs / name,))
    first = f"{title}-{time.strftime('%Y%m%d-%H%M%S')}"
    return chain((runs / first,), (runs / f"{first}-{number}" for number in count(2)))


def _new_folder(runs: Path, name: str | None, title: str) -> Path:
    candidates = candidates_for(runs, name, title)
    runs.mkdir(parents=True, exist_ok=True)
    for path in candidates:
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise UsageError(f"{runs / str(name)} is there already. Choose another --name, or remove it first.")


def _facts(title: str, job: Job) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "title": title,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "settings": {
            "script": job.arguments.get("script"),
            "arguments": job.arguments.get("arguments"),
            "strategy": job.strategy,
            "workers": job.workers,
            "seed": job.seed,
            "threads": job.threads,
            "deadline_s": job.deadline_s,
        },
        "versions": versions(),
        "machine": {"processor": processor(), "cores": os.cpu_count()},
    }


# In words


def _work_in_words(workers: Sequence[Mapping[str, Any]]) -> str:
    seconds = max(map(_seconds, workers))
    samples = sum(totals["samples"] for totals in workers)
    rate = f"; {samples / seconds:,.0f} samples/s by all" if seconds else ""
    return (
        f"steps per worker: {_span(workers, 'steps')}; samples per worker: {_span(workers, 'samples')}{rate}"
    )


def _time_in_words(workers: Sequence[Mapping[str, Any]]) -> str:
    """The mean over workers of the share of each kind of time."""
    kinds = {"computing": "compute_s", "waiting": "wait_s", "sending": "send_s", "merging": "merge_s"}
    shares = {
        word: fmean(totals[key] / (_seconds(totals) or 1) for totals in workers)
        for word, key in kinds.items()
    }
    return "time of a worker: " + ", ".join(f"{share:.0%} {word}" for word, share in shares.items())


def _seconds(totals: Mapping[str, Any]) -> float:
    return float(totals["compute_s"] + totals["merge_s"] + totals["send_s"] + totals["wait_s"])


def _span(workers: Sequence[Mapping[str, Any]], key: str) -> str:
    low, high = (choose(totals[key] for totals in workers) for choose in (min, max))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
