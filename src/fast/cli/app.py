"""`fast`: the commands, and how errors end them."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import TyperException

from fast.cli.commands import CONTEXT, LateCommands
from fast.cli.ending import Ended
from fast.cli.output import check_output, complain, drop_output, flush
from fast.errors import FastError, UsageError

INTERRUPTED = 130


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fast {version('fast-training')}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """The typer application."""
    app = typer.Typer(
        name="fast",
        cls=LateCommands,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings=dict(CONTEXT),
    )
    app.callback()(options_of_all)
    return app


def options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Flexible (A)synchronous Scalable Training: one model, many workers, any way for them to talk."""


def main() -> None:
    """A wrong call ends with one sentence and exit code 2, a failed run with 1, Ctrl-C with 130."""
    _open_standard_streams()
    try:
        sys.exit(_call())
    except UsageError as error:
        _end(str(error), 2)
    except FastError as error:
        _end(str(error), 1)
    except TyperException as error:
        _end(_in_words(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _end("interrupted; all workers have been ended", INTERRUPTED)
    except Ended as ended:
        _end(str(ended), ended.code)
    except BrokenPipeError:  # of something like `fast strategies | head`
        drop_output()
        sys.exit(1)


def _open_standard_streams() -> None:
    """Those that are closed: the next file that is opened would take their numbers."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # Late: it imports torch, which `fast --help` doesn't need.
        from fast.engine import fill_standard_streams

        fill_standard_streams()


def _call() -> int:
    """Returns the exit code, when everything has been written."""
    try:
        code = make_app()(standalone_mode=False)
    except BrokenPipeError:
        raise
    except OSError:
        check_output()
        raise
    if code == INTERRUPTED:  # what typer makes of Ctrl-C
        raise KeyboardInterrupt
    flush()
    return code if isinstance(code, int) else 0


def _in_words(error: TyperException) -> str:
    """What typer found wrong; for an unknown option, with the nearest one that exists."""
    if not hasattr(error, "possibilities"):
        return error.format_message()
    words = f"there is no option {getattr(error, 'option_name', '')}."
    return f"{words} Did you mean {error.possibilities[0]}?" if error.possibilities else words


def _end(message: str, code: int) -> None:
    if message:  # a command without arguments has shown its help
        complain(f"fast: {message}\n")
    sys.exit(code)
