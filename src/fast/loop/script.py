"""A user's script as a worker's program."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from fast.engine import current_seat
from fast.errors import UsageError
from fast.loop.session import close_sessions


def run_script(script: str, arguments: list[str]) -> None:
    """Run a script as `__main__`, then leave the training if it was joined.

    A script that ends with `sys.exit(0)` has ended well, like one that just ends.
    """
    seat = current_seat()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    if seat.workers > 1 and not seat.sessions and not wants_help:
        raise UsageError(
            f"{script} ended without calling fast.join, so {seat.workers} workers would each have trained alone. "
            "Call fast.join(model, optimizer) before the loop."
        )
    close_sessions(seat)
