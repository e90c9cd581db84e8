"""Standard output and standard error that can't be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from fast.errors import FastError

_STDERR = 2


class OutputLost(FastError):
    """What is printed goes nowhere: the disk is full, or the terminal is gone."""


@contextmanager
def writing(stream: IO[str] | None) -> Iterator[None]:
    """Inside, something is written to a standard stream. Where that fails, OutputLost is raised."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        name = "standard error" if stream is not None and stream.fileno() == _STDERR else "standard output"
        _drop(stream)
        raise OutputLost(f"{name} can't be written: {error.strerror}") from error


def flush() -> None:
    """Write what is left in standard output, before Python does so where an error has no way out."""
    if sys.stdout is not None:
        with writing(sys.stdout):
            sys.stdout.flush()


def check_output() -> None:
    """Raise OutputLost if standard output can't be written."""
    if sys.stdout is not None:
        with writing(sys.stdout):
            sys.stdout.write("\n")
            sys.stdout.flush()


def complain(text: str) -> None:
    """Write to standard error. Where that is lost, nobody can be told."""
    if sys.stderr is not None:
        with suppress(OutputLost), writing(sys.stderr):
            sys.stderr.write(text)
            sys.stderr.flush()


def drop_output() -> None:
    """Nobody reads any more."""
    for stream in (sys.stdout, sys.stderr):
        _drop(stream)


def _drop(stream: IO[str] | None) -> None:
    """What this stream still holds goes nowhere, so that Python doesn't try again when it ends."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
