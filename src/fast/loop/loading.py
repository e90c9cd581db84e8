"""Strategies by name, call or file, as scripts and the command line give them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fast.core import Strategy
from fast.errors import FastError, UsageError
from fast.strategies.expression import parse_strategies, parse_strategy


def strategy_from(given: str | Strategy) -> Strategy:
    """A Strategy, whichever way it was given."""
    if isinstance(given, Strategy):
        return given
    if isinstance(given, str):
        with _refusing(given):
            return parse_strategy(given, load_name)
    raise UsageError(
        f"strategy={given!r} is neither a name such as 'torus', nor a call such as 'local_sgd(tau=4)', "
        "nor a Strategy object"
    )


def strategies_from(text: str) -> list[Strategy]:
    """A list of them, separated by commas."""
    with _refusing(text):
        return parse_strategies(text, load_name)


@contextmanager
def _refusing(text: str) -> Iterator[None]:
    """What a strategy's own constructor raises is a refusal of its arguments."""
    try:
        yield
    except FastError:
        raise
    except Exception as error:
        raise UsageError(f"{text} can't be built: {type(error).__name__}: {error}") from error


def load_name(path: str, name: str) -> Any:
    """The object called `name` in a Python file."""
    main = _running(path)
    if main is not None and hasattr(main, name):
        return getattr(main, name)
    module = load_module(path, name)
    if not hasattr(module, name):
        known = [key for key in classes_of(module) if key[0] != "_"]
        raise UsageError(f"{path} has no {name}. It defines: {', '.join(known) or 'no classes'}.")
    return getattr(module, name)


def load_module(path: str, wanted: str) -> ModuleType:
    """A Python file as a module, from which `wanted` should come."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"there is no file {path}, from which {wanted} should be loaded")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if sys.modules.get(file.stem) is module:
            del sys.modules[file.stem]
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{path} can't be loaded: {type(error).__name__}: {error}{where}") from error
    return module


def classes_of(module: ModuleType) -> dict[str, type]:
    """The classes that a module defines itself."""
    own = {key: value for key, value in vars(module).items() if isinstance(value, type)}
    return {key: value for key, value in own.items() if value.__module__ == module.__name__}


def _running(path: str) -> ModuleType | None:
    """The script that runs here, if this is its file: then its objects are the ones that are meant."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return main if file and Path(file).resolve() == Path(path).expanduser().resolve() else None
