"""The scripts of `benchmarks/` as modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@cache
def script(name: str) -> ModuleType:
    """A benchmark. Scripts find one another because Python looks for modules beside a script."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return _codecs() if name == "codecs" else importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


def _codecs() -> ModuleType:
    """By its file, because Python has a module of the same name."""
    spec = importlib.util.spec_from_file_location("benchmark_codecs", BENCHMARKS / "codecs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for their annotations
    spec.loader.exec_module(module)
    return module
