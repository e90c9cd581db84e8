"""`fast.launch`: a function on many workers of this machine, from a script, a notebook or a prompt."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any, final

import torch

from fast.core import Strategy
from fast.engine import Failure, Job, check_room, current_seat
from fast.engine.forked import run_forked
from fast.errors import UsageError, WorkerFailed
from fast.loop.loading import strategy_from
from fast.loop.packing import pack, unpack
from fast.loop.run_folder import RUNS, open_log, say
from fast.loop.session import close_sessions

SERVER_ENTRY = "fast.loop.serving:serve"
MOST_SECONDS, MOST_THREADS = 1_000_000_000, 1024
_PRELOAD = ("fast.loop.serving", "torch._dynamo")
"""Imported once in the caller, and not in every worker: what torch imports with the first optimizer takes seconds."""


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int = 2,
    strategy: str | Strategy | None = None,
    seed: int | None = None,
    threads: int | None = None,
    deadline: float = 60.0,
    log: bool = True,
    name: str | None = None,
    runs: str = RUNS,
) -> list[Any]:
    """Call `function(*arguments)` on this many workers of this machine; returns what each of them returned.

        def train(rate):
            model, optimizer = fast.join(model, torch.optim.SGD(model.parameters(), lr=rate), "local_sgd(tau=8)")
            ...
            return fast.consolidate(model).state_dict()

        states = fast.launch(train, 0.1, workers=4)

    It does from Python what `fast run` does with a script, and the options mean the same: `strategy` overrides that of
    `fast.join`, `threads` is the number of torch threads per worker, and `log=False` keeps no log in RUNS/NAME.

    The workers are copies of this process, so the function may be defined in a notebook or at a prompt, and it finds
    everything that was defined before. Nothing that it changes is seen here: only what it returns comes back, as
    numbers, text, tensors, and lists and dictionaries of them. If it fails in a worker, WorkerFailed is raised
    here with the worker's traceback, and all workers are ended.
    """
    _check_caller(function)
    check_options(workers, threads, deadline, lambda option, value: f"fast.launch({option}={value})")
    if strategy is not None:
        strategy = strategy_from(strategy)
        strategy.check(workers)
    for module in _PRELOAD:
        importlib.import_module(module)
    job = Job(
        workers=workers,
        entry="",
        server_entry=SERVER_ENTRY,
        seed=seed,
        deadline_s=deadline,
        threads=threads or threads_per_worker(workers),
    )
    title = re.sub(r"\W+", "", getattr(function, "__name__", type(function).__name__)) or "launch"
    with open_log(log, job, runs, name, title) as run_log, _Results(workers) as results:
        outcome = run_forked(job, _body(function, arguments, strategy, results), _Printer())
        run_log.finish(outcome.failure)
        for line in run_log.summary():
            say(line)
        if outcome.failure is not None:
            raise _error_of(outcome.failure)
        return results.read()


def check_options(
    workers: int, threads: int | None, deadline: float, said: Callable[[str, object], str]
) -> None:
    """Raise UsageError for options that no run can have; `said` is how the user gave one."""
    if workers < 1:
        raise UsageError(f"{said('workers', workers)}: a run needs at least 1 worker")
    check_room(workers)
    if not 0 < deadline <= MOST_SECONDS:
        raise UsageError(
            f"{said('deadline', f'{deadline:g}')}: a deadline is longer than 0 seconds and at most {MOST_SECONDS:,}"
        )
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UsageError(
            f"{said('threads', threads)}: a worker needs at least 1 thread and has at most {MOST_THREADS}"
        )


def threads_per_worker(workers: int) -> int:
    """Number of cores per worker, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // workers if hasattr(os, "sched_getaffinity") else 1)


def _check_caller(function: object) -> None:
    if not callable(function):
        raise UsageError(
            f"fast.launch needs a function and got {function!r}. Give it the function itself and its arguments: "
            "fast.launch(train, 0.1, workers=4)."
        )
    if current_seat().workers > 1:
        raise UsageError(
            "fast.launch was called inside a worker, which can't start workers of its own. Call it from a plain "
            "script, or start this script with `fast run` and call the function itself."
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise UsageError(
            "fast.launch can't copy a process that uses CUDA already. Call it before anything is on a GPU, or put the "
            "training into a script and start that with `fast run`."
        )


def _body(
    function: Callable[..., Any], arguments: tuple[Any, ...], strategy: Strategy | None, results: _Results
) -> Callable[[], None]:
    """What each worker does, in its own process."""

    def body() -> None:
        seat = current_seat()
        seat.strategy = strategy
        try:
            value = function(*arguments)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise
            value = None
        packed = pack(value)
        close_sessions(seat)
        results.write(seat.id, packed)

    return body


@final
class _Results:
    """Nameless memory for what each worker returns, which the workers inherit."""

    def __init__(self, workers: int) -> None:
        self._files = [os.memfd_create(f"fast-result-{worker}") for worker in range(workers)]

    def write(self, worker: int, data: bytes) -> None:
        with open(self._files[worker], "wb", closefd=False) as file:
            file.write(data)

    def read(self) -> list[Any]:
        """In the caller, in the workers' order; None for a worker that was told to stop."""
        packed = []
        for descriptor in self._files:
            os.lseek(descriptor, 0, os.SEEK_SET)
            with open(descriptor, "rb", closefd=False) as file:
                packed.append(file.read())
        return [unpack(data) if data else None for data in packed]

    def __enter__(self) -> _Results:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._files:
            os.close(descriptor)


@final
class _Printer:
    """Prints what the workers print, with their names."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "line":
                file = sys.stderr if event["stream"] == 2 else sys.stdout
                print(f"[{event['who']}] {event['text']}", file=file, flush=True)
            case "say" if event["text"] not in self._said:  # workers tend to say the same
                self._said.add(event["text"])
                say(event["text"])


def _error_of(failure: Failure) -> Exception:
    if failure.usage:
        return UsageError(failure.message)
    return WorkerFailed(failure.who, failure.message, failure.traceback)
