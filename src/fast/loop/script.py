"""A user's script as a worker's program."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from fast.engine import current_seat
from fast.errors import UsageError
from fast.loop.session import close_sessions


def run_script(script: str, arguments: list[str], module: str | None = None) -> None:
    """Run a script, or a module by its name, as `__main__`; then leave the training if it was joined.

    A script that ends with `sys.exit(0)` has ended well, like one that just ends.
    """
    seat = current_seat()
    sys.argv = [script, *arguments]
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    try:
        _run(script, module)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    if seat.workers > 1 and not seat.sessions and not wants_help:
        raise UsageError(
            f"{module or script} ended without calling fast.join, so {seat.workers} workers would each have trained "
            "alone. Call fast.join(model, optimizer) before the loop."
        )
    close_sessions(seat)


def _run(script: str, module: str | None) -> None:
    """As `python script` and `python -m module` do, with the first entry of sys.path that they have."""
    if module is None:
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")
    else:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def find_module(name: str, folder: str) -> str:
    """The file that `python -m name` runs in this folder, found without importing anything.

    A file inside the folder is given relative to it, so that a record can be moved together with the folder.
    """
    spec = _find_spec(name, folder)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_spec(f"{name}.__main__", folder)
    if spec is not None and spec.origin is not None and (file := Path(spec.origin)).is_file():
        return str(file.relative_to(folder) if file.is_relative_to(folder) else file)
    hint = f" Leave out -m to run the file: fast run {name}" if Path(folder, name).is_file() else ""
    raise UsageError(
        f"-m {name}: there is no module or package with a __main__ of this name, neither in this folder nor "
        f"installed.{hint}"
    )


def _find_spec(name: str, folder: str) -> ModuleSpec | None:
    path, spec = [folder, *sys.path], None
    for depth in range(1, len(parts := name.split(".")) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), path)
        path = list(spec.submodule_search_locations or []) if spec is not None else []
    return spec
