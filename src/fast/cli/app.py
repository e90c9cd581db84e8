"""`fast`: the commands, and how errors end them."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import TyperException

from fast.cli.calibrate import calibrate_command
from fast.cli.compare import compare_command
from fast.cli.data import data_command
from fast.cli.doctor import doctor_command
from fast.cli.plan import plan_command
from fast.cli.replay import replay_command
from fast.cli.report import report_command
from fast.cli.run import RunCommand, run_command
from fast.cli.secret import secret_command
from fast.cli.simulate import simulate_command
from fast.cli.strategies import strategies_command
from fast.cli.sweep import sweep_command
from fast.cli.tasks import tasks_command
from fast.cli.worker import worker_command
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
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options_of_all)
    app.command("run", cls=RunCommand)(run_command)
    app.command("worker")(worker_command)
    app.command("secret")(secret_command)
    app.command("doctor")(doctor_command)
    app.command("replay")(replay_command)
    app.command("compare")(compare_command)
    app.command("simulate")(simulate_command)
    app.command("plan")(plan_command)
    app.command("sweep")(sweep_command)
    app.command("calibrate")(calibrate_command)
    app.command("report")(report_command)
    app.command("strategies")(strategies_command)
    app.command("tasks")(tasks_command)
    app.command("data")(data_command)
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
    try:
        code = make_app()(standalone_mode=False)
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        _end(str(error), 2)
    except FastError as error:
        _end(str(error), 1)
    except TyperException as error:
        _end(_in_words(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _end("interrupted; all workers have been ended", INTERRUPTED)


def _in_words(error: TyperException) -> str:
    """What typer found wrong; for an unknown option, with the nearest one that exists."""
    if not hasattr(error, "possibilities"):
        return error.format_message()
    words = f"there is no option {getattr(error, 'option_name', '')}."
    return f"{words} Did you mean {error.possibilities[0]}?" if error.possibilities else words


def _end(message: str, code: int) -> None:
    if message:  # a command without arguments has shown its help
        print(f"fast: {message}", file=sys.stderr)
    sys.exit(code)
