"""What a run shows: each worker's lines with its name, one live line on a terminal."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fast.cli.output import OutputLost, complain, writing
from fast.engine import Outcome
from fast.errors import UsageError

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
_QUIET_S = 10.0
"""Without a terminal, a line about the progress at most this often."""


MAIN = "worker 0"
"""The worker whose progress bars are shown; those of the others would be the same."""


class RunDisplay:
    """A listener of the engine. Use it in a `with` statement."""

    def __init__(self, title: str, workers: int) -> None:
        self._title, self._workers = title, workers
        self._out = Console(soft_wrap=True, highlight=False)
        self._err = Console(stderr=True, soft_wrap=True, highlight=False)
        self._live: Live | None = None
        self._began = self._spoke = self._barred = time.monotonic()
        self._steps = [0] * workers
        self._bars: list[str] = []
        self._said: set[str] = set()

    def __enter__(self) -> RunDisplay:
        if self._err.is_terminal:
            self._live = Live(
                get_renderable=self._status, console=self._err, refresh_per_second=8, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OutputLost), writing(sys.stderr):
                self._live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "line" if event["who"] == MAIN or not event["bar"]:
                self._bars = [] if event["bar"] else self._bars  # it is one of them, and has come to its end
                self._line(event["who"], event["text"], to_stderr=event["stream"] == 2)
            case "bars":
                self._show_bars(event["bars"])
            case "say" if event["text"] not in self._said:  # workers tend to say the same
                self._said.add(event["text"])
                self._print(self._err, Text(f"fast: {event['text']}", style="dim"))
            case "progress" if any(event["steps"]):  # while nobody has stepped there is none
                self._progress(event["steps"])

    def summary(self) -> dict[str, Any]:
        return {"script": self._title, "workers": self._workers, "steps": self._steps}

    def _line(self, who: str, text: str, *, to_stderr: bool) -> None:
        self._print(self._err if to_stderr else self._out, _labelled(who, Text(text)))

    def _print(self, console: Console, line: Text) -> None:
        if self._live is not None and console.is_terminal:
            console = self._live.console
        with writing(console.file):
            console.print(line)

    def _show_bars(self, bars: list[str]) -> None:
        """On a terminal they live above the status; elsewhere one appears every now and then."""
        self._bars = bars
        if bars and self._live is None and time.monotonic() - self._barred > _QUIET_S:
            self._barred = time.monotonic()
            for bar in bars:
                self._line(MAIN, bar, to_stderr=True)

    def _progress(self, steps: list[int]) -> None:
        self._steps = steps
        if self._live is None and time.monotonic() - self._spoke > _QUIET_S:
            self._spoke = time.monotonic()
            self._print(self._err, self._in_words())

    def _status(self) -> Group:
        return Group(*(_labelled(MAIN, Text.from_ansi(bar)) for bar in self._bars), self._in_words())

    def _in_words(self) -> Text:
        elapsed = time.monotonic() - self._began
        steps = " ".join(str(step) for step in self._steps)
        return Text(f"{self._title}: {elapsed:.0f} s, steps per worker: {steps}", style="dim")


def _labelled(who: str, text: Text) -> Text:
    number = int(who.split()[-1])
    return Text.assemble((f"[{who}] ", _COLOURS[number % len(_COLOURS)]), text)


def end_of(outcome: Outcome, to: str | None, facts: dict[str, Any]) -> int:
    """Print how a run ended, write it down if asked, and return the exit code."""
    failure = outcome.failure
    code = 0
    if failure is not None:
        code = 2 if failure.usage else 1
        if failure.traceback:
            complain(failure.traceback)
        who = "" if failure.usage or failure.message.startswith(failure.who) else f"{failure.who} failed: "
        complain(f"fast: {who}{failure.message}\n")
    if to is not None:
        ended = None if failure is None else {"who": failure.who, "message": failure.message}
        write_json(to, {"schema": 1, **facts, "failure": ended})
    return code


def write_json(to: str, data: dict[str, Any] | list[Any]) -> None:
    """To a file, or to standard output for `-`."""
    text = json.dumps(data, indent=1, allow_nan=False)
    if to == "-":
        print(text)
        return
    try:
        Path(to).write_text(text + "\n")
    except OSError as error:
        raise UsageError(f"--json {to}: can't write there: {error.strerror}") from error
