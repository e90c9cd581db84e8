"""The seat of a worker that somebody else has started."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NoReturn, TypeVar, final

from fast.core import Strategy
from fast.engine.attached.meeting import Meeting, Met, meet
from fast.engine.attached.servers import start_servers
from fast.engine.attached.surroundings import Place, place_in
from fast.engine.seat import Seat, say
from fast.errors import FastError, UsageError
from fast.transport import Transport
from fast.transport.tcp import Secret, parse_secret, read_secret

Number = TypeVar("Number", int, float)
SystemExitCode = str | int | None
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
_FAREWELL_S = 5.0
"""How long the others may take to learn that they can't meet."""


@dataclass(frozen=True)
class Choices:
    """What the user says through the environment where no command line of ours is there."""

    strategy: str | None
    seed: int | None
    deadline_s: float
    listen_at: str
    secret: Secret | None
    encrypted: bool


def choices_in(environ: Mapping[str, str]) -> Choices:
    """FAST_STRATEGY, FAST_SEED, FAST_DEADLINE, FAST_LISTEN, FAST_SECRET_FILE, FAST_SECRET, FAST_PLAIN_TCP."""
    seed = environ.get("FAST_SEED")
    return Choices(
        strategy=environ.get("FAST_STRATEGY"),
        seed=None if seed is None else _number("FAST_SEED", seed, int),
        deadline_s=_number("FAST_DEADLINE", environ.get("FAST_DEADLINE", "60"), float),
        listen_at=environ.get("FAST_LISTEN", ""),
        secret=secret_in(environ),
        encrypted=environ.get("FAST_PLAIN_TCP") != "1",
    )


def _number(name: str, text: str, kind: Callable[[str], Number]) -> Number:
    try:
        value = kind(text)
    except ValueError:
        value = kind("-1")
    if not 0 <= value < 1e9:
        raise UsageError(f"{name}={text!r} in the environment: a number is needed, 0 or more")
    return value


def secret_in(environ: Mapping[str, str]) -> Secret | None:
    """The job's secret: in a file that only its owner can read, or in the environment."""
    if "FAST_SECRET_FILE" in environ:
        return read_secret(environ["FAST_SECRET_FILE"])
    return parse_secret(environ["FAST_SECRET"]) if "FAST_SECRET" in environ else None


def attached_seat(environ: Mapping[str, str] = os.environ) -> Seat | None:
    """This process's seat, if the environment says that it is one worker of several."""
    hook = sys.excepthook
    sys.excepthook = partial(_show, hook)
    place = place_in(environ)
    if place is None:
        sys.excepthook = hook
        return None
    choices = choices_in(environ)
    ending = Attached(place, choices)
    return Seat(
        id=place.worker,
        workers=place.workers,
        connect=ending.connect,
        start_servers=ending.start_servers,
        say=say,
        seed=choices.seed,
        strategy=choices.strategy,
        strategy_from="FAST_STRATEGY",
        deadline_s=choices.deadline_s,
        at_exit=ending.register,
    )


def _show(hook: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Our own errors are one sentence each; all others keep their traceback."""
    if isinstance(error, FastError):
        say(str(error))
    else:
        hook(kind, error, trace)


@final
class Attached:
    """A worker's training from the meeting to its end: when the script ends, well or not, it leaves, or tells the
    others why they can't go on."""

    def __init__(self, place: Place, choices: Choices) -> None:
        self._place, self._choices, self._worker = place, choices, place.worker
        self._met: Met | None = None
        self._leave: Callable[[], None] | None = None
        self._failure = ""
        self._process = os.getpid()
        self._hook, self._exit = sys.excepthook, sys.exit
        sys.excepthook = self._excepthook

    def connect(self) -> Transport:
        place, choices = self._place, self._choices
        if not choices.encrypted and place.worker == 0:
            say("warning: FAST_PLAIN_TCP=1, so nothing between workers is encrypted or authenticated")
        rendezvous = place.rendezvous(choices.deadline_s)
        meeting = Meeting(
            worker=place.worker,
            workers=place.workers,
            rendezvous=rendezvous,
            secret=choices.secret,
            meets_at=place.meets_at,
            listen_at=choices.listen_at,
            encrypted=choices.encrypted,
            deadline_s=choices.deadline_s,
        )
        try:
            self._met = meet(meeting)
        except BaseException:
            rendezvous.leave(_FAREWELL_S)
            raise
        atexit.register(self._end)
        sys.exit = self._exit_with
        rendezvous.leave(choices.deadline_s)
        return self._met.transport

    def start_servers(self, strategy: Strategy, count: int) -> None:
        assert self._met is not None, "servers are started by a worker that has joined"
        start_servers(strategy, count, self._met.job, self._met.secret, self._choices.seed)

    def register(self, leave: Callable[[], None]) -> None:
        """Call this at the end of the script, in the main thread."""
        self._leave = leave

    # The end

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """The script ends with an error that nobody has caught."""
        self._failure = self._in_words(error)
        if isinstance(error, KeyboardInterrupt):
            say(self._failure)
        else:
            self._hook(kind, error, trace)

    def _exit_with(self, status: SystemExitCode = None, /) -> NoReturn:
        """The only way to learn a script's exit code before it has ended. `raise SystemExit` goes unseen."""
        if status:
            code = status if isinstance(status, int) else 1
            self._failure = f"worker {self._worker} failed: the script ended with exit code {code}"
        self._exit(status)

    def _in_words(self, error: BaseException) -> str:
        """For the others."""
        if isinstance(error, KeyboardInterrupt):
            return f"worker {self._worker} was interrupted"
        return f"worker {self._worker} failed: {traceback.format_exception_only(error)[-1].strip()}"

    def _end(self) -> None:
        """Runs when the script has ended, in whatever way."""
        if self._met is None or os.getpid() != self._process:
            return  # a process that the script has forked
        left_well = bool(self._failure) or self._tries_to_leave()
        if self._failure:
            self._met.transport.fail(self._failure)
        self._met.transport.close()
        if not left_well:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # an exit handler can't change the exit code in another way

    def _tries_to_leave(self) -> bool:
        """Whether this worker could. If not, the others are to be told."""
        if self._leave is None:
            return True
        try:
            self._leave()
        except SystemExit:
            return True  # it was told to stop while it waited for the others
        except (Exception, KeyboardInterrupt) as error:
            self._excepthook(type(error), error, error.__traceback__)
        return not self._failure
