"""What a forked participant does first and last. It ends with `os._exit`, never with a return."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch

from fast.core import Strategy
from fast.engine.messages import Channel, Job
from fast.engine.seat import Seat, seated
from fast.errors import FastError, RunEnded, UsageError
from fast.runtime import Logbook, Recorder
from fast.runtime.journal import seed_script
from fast.transport import ShmTransport

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30
_BETWEEN_HOSTS = "fast.engine.attached.between:BetweenHosts"
"""By its name: TLS and all that belongs to it is imported where it is needed only."""


def die_with_parent(parent: int) -> None:
    """Be killed when the process that started us is gone (Linux; elsewhere the channel's end tells)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """As `ps`, `top` and `pgrep` show it, in at most 15 letters (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def keep_freed_memory() -> None:
    """Don't give memory back to the system between steps (glibc; elsewhere nothing happens).

    Every backward allocates all gradients anew. Given back and fetched again, their pages cost
    hundreds of page faults a step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)


def find(entry: str) -> Callable[..., Any]:
    """The function behind "module:function"."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def run_worker(
    id: int, job: Job, arenas: list[int], channel: Channel, body: Callable[[], Any] | None = None
) -> NoReturn:
    """A worker: call this function, or the job's, in its seat; report how it ended."""
    seat = make_seat(id, job, arenas, channel)
    end_with(channel, body or (lambda: find(job.entry)(**job.arguments)), seat, job)


def run_server(
    id: int, job: Job, arenas: list[int], channel: Channel, call: str, meeting: dict[str, Any] | None = None
) -> NoReturn:
    """A server. `meeting` is what the workers have agreed on, if they are on several hosts."""
    seat = make_seat(id, job, arenas, channel, meeting)
    end_with(
        channel,
        lambda: find(job.server_entry)(call, id - job.workers, **job.server_arguments),
        seat,
        job,
    )


def make_seat(
    id: int, job: Job, arenas: list[int], channel: Channel, meeting: dict[str, Any] | None = None
) -> Seat:
    between = None if job.part is None else find(_BETWEEN_HOSTS)(id, job, arenas, meeting)

    def start_servers(strategy: Strategy, count: int) -> None:
        if not strategy.call:
            raise UsageError(
                f"{strategy!r} has servers, which run in processes of their own and are built there from a "
                "call such as 'ssp(bound=3)'. Give the strategy as text: a preset, or 'file.py:Name(arguments)'."
            )
        more = {} if between is None else {"meeting": between.told()}
        channel.send({"event": "start servers", "count": count, "call": strategy.call, **more})

    return Seat(
        id=id,
        workers=job.workers,
        connect=between.connect if between is not None else lambda: ShmTransport(id, arenas),
        start_servers=start_servers,
        say=lambda line: channel.send({"event": "say", "text": line}),
        seed=job.seed,
        strategy=job.strategy,
        deadline_s=job.deadline_s,
        groups=job.groups,
    )


def make_journal(id: int, job: Job) -> Recorder | None:
    """Of a run that is recorded; then the script's random numbers start from known ones too."""
    if job.record is None:
        return None
    seed_script(job.seed, id)
    return Recorder(Path(job.record), id, job.threads)


def open_logbook(seat: Seat, job: Job) -> Logbook | None:
    """Of a run that is logged. Where it can't be written, the training goes on without it."""
    if job.log is None:
        return None
    name = f"worker {seat.id}" if seat.id < job.workers else f"server {seat.id - job.workers}"
    try:
        return Logbook(Path(job.log), seat.id, name, seat.say)
    except OSError as error:
        seat.say(f"no log of {name}: {job.log} can't be written ({error.strerror}); the training goes on")
        return None


def end_with(channel: Channel, body: Callable[[], Any], seat: Seat, job: Job) -> NoReturn:
    """Run the body, tell the host how it ended, and go."""
    code = 0

    def report(message: str, **more: Any) -> None:
        if seat.journal is not None:
            with contextlib.suppress(FastError):  # the record itself may be what failed
                seat.journal.raised(message)
        close_logbook(seat, message)
        channel.send({"event": "failed", "message": message, **more})

    try:
        faulthandler.enable()
        keep_freed_memory()
        torch.set_num_threads(job.threads)
        if job.folder:
            os.chdir(job.folder)
        seat.journal = make_journal(seat.id, job)
        seat.logbook = open_logbook(seat, job)
        with seated(seat):
            result = body()
        channel.send({"event": "result", "value": result})
    except SystemExit as stop:
        code = _exit_code(stop)
        if code:
            report(f"the script ended with exit code {code}")
    except UsageError as error:
        code = 2
        report(str(error), usage=True)
    except FastError as error:  # its message says all; the frames are ours
        code = 1
        report(str(error), elsewhere=isinstance(error, RunEnded))
    except BaseException as error:
        code = 1
        report(summary_of(error), traceback=traceback_of(error))
    close_logbook(seat, None)
    _leave(code)


def close_logbook(seat: Seat, failure: str | None) -> None:
    if seat.logbook is not None:
        seat.logbook.close(failure)


def summary_of(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, _users_frames(error)))


def _users_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the user's own first frame on; all of it where there is none."""
    ours = (str(Path(__file__).parents[1]), "<frozen")
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    return trace if trace is not None or isinstance(error, SyntaxError) else error.__traceback__


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return 1


def _leave(code: int) -> NoReturn:
    """Run the user's exit handlers and flush, but nothing that the host has registered."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
